"""Small versioned JSON documents, written by compare-and-set on the revision. Those of a kind lie in one partition."""

from __future__ import annotations

from wiggle_core.errors import AmbiguousStoreError, RevisionConflict, TransientStoreError
from wiggle_core.stores.store import Document
from wiggle_store_cassandra.connections import Connections

_KEY = "space = ? AND kind = ? AND name = ?"
_CREATE = (
    "INSERT INTO $document (revision, body, updated_at, space, kind, name) VALUES (1, ?, ?, ?, ?, ?) IF NOT EXISTS"
)
_REPLACE = f"UPDATE $document SET revision = ?, body = ?, updated_at = ? WHERE {_KEY} IF revision = ?"
_GET = f"SELECT kind, name, revision, body, updated_at FROM $document WHERE {_KEY}"
_LIST = "SELECT kind, name, revision, body, updated_at FROM $document WHERE space = ? AND kind = ?"
_DELETE = f"DELETE FROM $document WHERE {_KEY} IF EXISTS"


def put_document(connections: Connections, now: int, kind: str, key: str, body: str, *, revision: int | None) -> int:
    """Write a document if it has the revision named; the new one. Raises RevisionConflict."""
    if revision is not None:
        if not _is_written(connections, Document(kind, key, revision + 1, body, now)):
            raise RevisionConflict(kind, key)
        return revision + 1
    while True:  # each time that it is not written, somebody else's document was
        found = get_document(connections, kind, key)
        following = found.revision + 1 if found else 1
        if _is_written(connections, Document(kind, key, following, body, now)):
            return following


def get_document(connections: Connections, kind: str, key: str) -> Document | None:
    """One document."""
    rows = connections.rows(_GET, (connections.place.space, kind, key))
    return Document(*rows[0]) if rows else None


def list_documents(connections: Connections, kind: str) -> list[Document]:
    """All documents of a kind, by key."""
    return [Document(*row) for row in connections.rows(_LIST, (connections.place.space, kind))]


def delete_document(connections: Connections, kind: str, key: str) -> bool:
    """Whether there was one."""
    return connections.applied([(_DELETE, (connections.place.space, kind, key))])


def _is_written(connections: Connections, wanted: Document) -> bool:
    """Write a document in place of the revision before it; False if there is another one."""
    before = wanted.revision - 1
    place = (connections.place.space, wanted.kind, wanted.key)
    statement: tuple[str, tuple[object, ...]] = (
        (_REPLACE, (wanted.revision, wanted.body, wanted.updated_at, *place, before))
        if before
        else (_CREATE, (wanted.body, wanted.updated_at, *place))
    )
    try:
        return connections.applied([statement])
    except AmbiguousStoreError as unanswered:
        return _was_written(connections, wanted, unanswered)


def _was_written(connections: Connections, wanted: Document, unanswered: AmbiguousStoreError) -> bool:
    """Look for a document that was sent without an answer. The look itself settles whether it is there (CA3)."""
    rows = connections.serial_rows(_GET, (connections.place.space, wanted.kind, wanted.key))
    found = Document(*rows[0]) if rows else None
    if found == wanted:
        return True
    revision = found.revision if found else 0
    if revision == wanted.revision - 1:
        raise TransientStoreError(
            f"a document did not reach {connections.place}, or too late to be written"
        ) from unanswered
    if revision == wanted.revision:
        return False
    raise unanswered  # it may have been there, and have been written over
