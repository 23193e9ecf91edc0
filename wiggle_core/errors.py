"""The errors that wiggle raises, all below `WiggleError`.

    WiggleError
    ├── CriteriaError               a predicate or criteria was refused; `path` points at the offender (C6)
    ├── DeclarationError            a workflow's attributes were refused (A1)
    ├── TaskRejected                a task was refused at enqueue; `field` names what was wrong (C7)
    ├── WorkerRejected              a worker was refused at start
    ├── EnlistRejected              tasks cannot join the transaction of the connection given
    ├── LeaseLost                   a lease was no longer held when it was named (L2)
    ├── RevisionConflict            a document changed since it was read
    ├── NoLanes                     the store has no lanes: everything walks (N4)
    ├── StaleLanes                  the lanes of the store changed; read them again (N3)
    ├── UnknownScheme               no store serves the URL's scheme
    ├── StoreNotInstalled           the store's driver is missing
    ├── InvalidStoreUrl             the store cannot be reached by such a URL
    ├── InvalidSetting              an environment variable has a value that cannot be used
    ├── PermanentError              raised by a handler: fail the task at once, do not retry
    └── StoreError                  the database answered with an error; `reference` finds the cause in the log
        ├── TransientStoreError     nothing was applied; replayed
        ├── AmbiguousStoreError     a commit without an answer; looked up, never replayed blindly
        └── PermanentStoreError     replaying cannot help
            └── SchemaError         the schema is missing, older, newer or altered; the message names the command

Callers never see SQL text or a password: the driver's error is kept as `__cause__` only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import uuid4


class WiggleError(Exception):
    """Everything that wiggle raises on purpose. It may be pickled, as a pool of processes does with what its workers
    raise: by its text and attributes, since Python alone would call the class with the text as its only argument."""

    def __reduce__(self) -> tuple[Callable[..., WiggleError], tuple[object, ...]]:
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[WiggleError], arguments: tuple[object, ...], attributes: dict[str, object]) -> WiggleError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(attributes)
    return error


class CriteriaError(WiggleError):
    """A predicate or criteria was refused (C6). `path` is a JSON pointer into the wire form, "" for the whole."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.message = message
        self.path = path


class DeclarationError(WiggleError):
    """A declaration of attributes was refused (A1). `name` is the attribute's, where one is to blame."""

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class TaskRejected(WiggleError):
    """A task was refused at enqueue (C7). `field` names the offending field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class WorkerRejected(WiggleError):
    """A worker was refused at start: no handler, a queue named twice, or criteria that can never match."""


class EnlistRejected(WiggleError):
    """Tasks cannot join the caller's transaction: the store knows no such thing, or the connection given is of another
    kind, leads to another database, or is in no transaction. Nothing was sent that changes anything."""


class LeaseLost(WiggleError):
    """The lease named is no longer held: it ran out and was taken back, or the task was settled or cancelled (L2)."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"the lease on task {task_id!r} is no longer held; its result is dropped")
        self.task_id = task_id


class RevisionConflict(WiggleError):
    """A document was changed by somebody else since it was read."""

    def __init__(self, kind: str, key: str) -> None:
        super().__init__(f"document {kind} {key!r} changed since it was read; read it again")
        self.kind = kind
        self.key = key


class NoLanes(WiggleError):
    """Lanes were asked of a store that has none (N4)."""


class StaleLanes(WiggleError):
    """Tasks were placed, or a claim was planned, by lanes that have changed since (N3): read the changes, and do it
    again. The engine does, so that its callers never see this.

    `done` are the ids of what was applied before that came to light, in stores whose calls are not one transaction.
    """

    def __init__(self, done: Collection[str] = ()) -> None:
        super().__init__("the lanes of the store changed since they were read")
        self.done = frozenset(done)


class UnknownScheme(WiggleError):
    """No installed store serves the URL's scheme. `scheme` is the one that was asked for."""

    def __init__(self, scheme: str, message: str) -> None:
        super().__init__(message)
        self.scheme = scheme


class StoreNotInstalled(WiggleError):
    """The store is known but its driver is not installed; the message has the `pip install` line."""

    def __init__(self, scheme: str, message: str) -> None:
        super().__init__(message)
        self.scheme = scheme


class InvalidStoreUrl(WiggleError):
    """The URL cannot be read, or names something the store cannot open. Never contains a password."""


class InvalidSetting(WiggleError):
    """An environment variable has a value that cannot be used. `variable` is its name."""

    def __init__(self, variable: str, message: str) -> None:
        super().__init__(f"{variable}: {message}")
        self.variable = variable


class PermanentError(WiggleError):
    """Raised by a handler to fail its task at once, whatever the retry policy says."""


class StoreError(WiggleError):
    """The database answered with an error. `reference` also stands in the log, beside the cause."""

    def __init__(self, message: str) -> None:
        self.reference = uuid4().hex[:12]
        super().__init__(f"{message} (reference {self.reference})")


class TransientStoreError(StoreError):
    """Nothing was applied and trying again may help: busy, deadlock victim, connection refused."""


class AmbiguousStoreError(StoreError):
    """A commit was sent and no answer came; it may or may not have been applied (L6)."""


class PermanentStoreError(StoreError):
    """Trying again cannot help: disk full, read-only, not a database, no permission."""


class SchemaError(PermanentStoreError):
    """The store's schema is missing, older, newer or altered. The message names the command that helps."""
