"""One entry of the journal, which is one transaction: what it holds, and its line in the file.

A line is the CRC of the rest, a space, JSON in ASCII and a line break. Whatever a killed process or a power failure
leaves of a line does not pass for one.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from zlib import crc32

from wiggle_core.stores.store import Document
from wiggle_core.tasks.keys import decode_attributes, encode_attributes
from wiggle_core.tasks.retry import RetryPolicy
from wiggle_core.tasks.task import State, TaskId, TaskRecord

DocumentKey = tuple[str, str]
"""Kind and key."""


@dataclass(slots=True)
class Entry:
    """What one transaction leaves behind: the tasks and documents as they are after it, and what it took away.

    Entries say what *is*, not what was done, so that reading them needs no rules that may change with a version.
    """

    tasks: dict[TaskId, TaskRecord] = field(default_factory=dict)
    forgotten: list[TaskId] = field(default_factory=list)
    reserved: dict[TaskId, int] = field(default_factory=dict)
    """The tasks that `due` returned, with the time."""
    documents: dict[DocumentKey, Document] = field(default_factory=dict)
    deleted: list[DocumentKey] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many things it says; 0 for an entry that need not be written."""
        return sum(map(len, (self.tasks, self.forgotten, self.reserved, self.documents, self.deleted)))


def write_line(entry: Entry) -> bytes:
    """The line of an entry, line break included."""
    parts: dict[str, object] = {
        "tasks": [_task_to_object(task) for task in entry.tasks.values()],
        "forgotten": entry.forgotten,
        "reserved": entry.reserved,
        "documents": [asdict(document) for document in entry.documents.values()],
        "deleted": entry.deleted,
    }
    return seal({name: part for name, part in parts.items() if part})


def read_line(line: bytes) -> Entry | None:
    """The entry in a line, or None for a line that is torn or damaged."""
    parts = unseal(line)
    if parts is None:
        return None
    return Entry(
        tasks={obj["id"]: _task_from_object(obj) for obj in parts.get("tasks", ())},
        forgotten=parts.get("forgotten", []),
        reserved=parts.get("reserved", {}),
        documents={(obj["kind"], obj["key"]): Document(**obj) for obj in parts.get("documents", ())},
        deleted=[(kind, key) for kind, key in parts.get("deleted", ())],
    )


def seal(parts: dict[str, object]) -> bytes:
    """JSON as a line with its checksum."""
    text = json.dumps(parts, separators=(",", ":")).encode("ascii")
    return b"%08x %b\n" % (crc32(text), text)


def unseal(line: bytes) -> dict[str, Any] | None:  # Any: parsed JSON
    """What `seal` wrote, or None when the checksum or the line break is not there."""
    checksum, _, text = line.removesuffix(b"\n").partition(b" ")
    if not line.endswith(b"\n") or checksum != b"%08x" % crc32(text):
        return None
    parts: dict[str, Any] = json.loads(text)  # Any: parsed JSON
    return parts


_NAMES = [each.name for each in fields(TaskRecord)]


def _task_to_object(task: TaskRecord) -> dict[str, object]:
    """Every field by name. Attributes go as their keys, which keep type and digits of each value (section 5)."""
    values = {name: getattr(task, name) for name in _NAMES}
    values |= {"attributes": encode_attributes(task.attributes), "retry": task.retry.dump()}
    return {name: value for name, value in values.items() if value is not None}


def _task_from_object(obj: dict[str, Any]) -> TaskRecord:  # Any: parsed JSON
    return TaskRecord(
        **obj
        | {
            "state": State(obj["state"]),
            "attributes": decode_attributes(obj["attributes"]),
            "retry": RetryPolicy.load(obj["retry"]),
        }
    )
