"""SQLite's errors as wiggle's three classes, with a sentence that names the file and what to do, and no SQL."""

from __future__ import annotations

import sqlite3
from typing import TypeAlias

from wiggle_core.errors import AmbiguousStoreError, PermanentStoreError, StoreError, TransientStoreError

DriverError: TypeAlias = sqlite3.Error | sqlite3.Warning | UnicodeEncodeError | OverflowError
"""What Python's sqlite3 raises; the last two for values that it cannot bind."""

DRIVER_ERRORS = (sqlite3.Error, sqlite3.Warning, UnicodeEncodeError, OverflowError)

# Primary result codes; the extended code is `primary | detail << 8` (https://sqlite.org/rescode.html).
_TRANSIENT = {
    sqlite3.SQLITE_BUSY: "{} is locked by another process for longer than the timeout; `?timeout=SECONDS` raises it",
    sqlite3.SQLITE_LOCKED: "{} is locked by another statement",
    sqlite3.SQLITE_PROTOCOL: "{} is locked by another process that is just opening it",
    sqlite3.SQLITE_SCHEMA: "the schema of {} changed meanwhile",
    sqlite3.SQLITE_INTERRUPT: "the work on {} was interrupted",
    sqlite3.SQLITE_NOMEM: "there is not enough memory to work on {}",
}
_PERMANENT = {
    sqlite3.SQLITE_FULL: "{} cannot grow: the disk is full, or its page limit is reached; free space, then go on",
    sqlite3.SQLITE_READONLY: "{} is read-only here: give this user write permission on the file and its directory",
    sqlite3.SQLITE_CANTOPEN: "{} cannot be opened: check that its directory exists and that this user may write in it",
    sqlite3.SQLITE_PERM: "{} may not be accessed: give this user permission on the file and its directory",
    sqlite3.SQLITE_AUTH: "{} may not be accessed: give this user permission on the file and its directory",
    sqlite3.SQLITE_NOTADB: "{} is not a SQLite database: name another file in the store URL",
    sqlite3.SQLITE_CORRUPT: "{} is damaged: see `wiggle db check`, and restore a backup",
    sqlite3.SQLITE_IOERR: "the disk under {} reports an error: look into the system's log",
    sqlite3.SQLITE_TOOBIG: "a value is larger than {} can hold",
    sqlite3.SQLITE_CONSTRAINT: "what is stored in {} contradicts itself: see `wiggle db check`",
}
# Of the I/O errors these are about locks, which another process may give back.
_PASSING_IO = frozenset(
    {
        sqlite3.SQLITE_IOERR_BLOCKED,
        sqlite3.SQLITE_IOERR_NOMEM,
        sqlite3.SQLITE_IOERR_LOCK,
        sqlite3.SQLITE_IOERR_RDLOCK,
        sqlite3.SQLITE_IOERR_UNLOCK,
        sqlite3.SQLITE_IOERR_CHECKRESERVEDLOCK,
        sqlite3.SQLITE_IOERR_SHMLOCK,
    }
)


def translate(error: DriverError, place: str, *, is_commit: bool = False) -> StoreError:
    """The error to raise, with the driver's as its cause. `place` names the database.

    A commit that met an I/O error may be on the disk or not; one that met any other error is not.
    """
    if not isinstance(error, sqlite3.Error):
        return PermanentStoreError(f"a value is given to {place} that it cannot hold: {type(error).__name__}")
    extended = getattr(error, "sqlite_errorcode", None)  # absent where the driver itself raises
    if extended is None:
        return PermanentStoreError(f"the driver refused the work on {place}: {type(error).__name__}")
    primary = extended & 0xFF
    if primary == sqlite3.SQLITE_IOERR and is_commit:
        return AmbiguousStoreError(f"the disk under {place} reported an error while a transaction was committed")
    if extended in _PASSING_IO:
        return TransientStoreError(f"a lock on {place} could not be taken")
    if primary in _TRANSIENT:
        return TransientStoreError(_TRANSIENT[primary].format(place))
    message = _PERMANENT.get(primary, "{} refused the work: see `wiggle db check`")
    return PermanentStoreError(f"{message.format(place)} ({getattr(error, 'sqlite_errorname', '')})")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds a lock that it may give back."""
    return _primary(error) == sqlite3.SQLITE_BUSY


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether SQLite read a page that makes no sense."""
    return _primary(error) == sqlite3.SQLITE_CORRUPT


def _primary(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
