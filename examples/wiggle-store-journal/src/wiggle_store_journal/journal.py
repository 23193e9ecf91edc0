"""The file: locked by every process that works on it, read from where the last look ended, appended to, made durable.

A transaction is: lock, read what others appended, decide, append one line, fsync, unlock. Whoever dies in between
leaves a torn last line or none; the next writer cuts it off.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock

from wiggle_core.errors import AmbiguousStoreError, PermanentStoreError, SchemaError, TransientStoreError
from wiggle_core.stores.sql.migrations import upgrade_command
from wiggle_store_journal.entries import Entry, read_line, seal, unseal, write_line
from wiggle_store_journal.errors import translate
from wiggle_store_journal.shelf import Shelf

FORMAT, VERSION = "wiggle-journal", 1
HEADER = seal({"format": FORMAT, "version": VERSION})
_PAUSE_SECONDS = 0.002
_COMPACT_FROM, _COMPACT_AT = 10_000, 4
"""Compaction is worth its while when the journal has said so many things, and so many times as many as there are."""


class Journal:
    """Gives out the shelf for reading, and with an entry to fill for writing; every OSError leaves as a StoreError.

    Threads queue at a lock of ours, processes (and other handles of this one) at the file's.
    """

    def __init__(self, path: str, timeout: float) -> None:
        self.path, self.url = path, f"journal:///{path}"
        self._timeout = timeout
        self._process = os.getpid()
        self._turn = Lock()
        self._is_closed = False
        self._file: int | None = None
        self._forget()

    def __str__(self) -> str:
        return f"the journal {self.path!r}"

    @contextmanager
    def reading(self) -> Iterator[Shelf]:
        """Everything that was committed so far."""
        with self._locked(fcntl.LOCK_SH) as file:
            self._catch_up(file)
            yield self._shelf

    @contextmanager
    def writing(self) -> Iterator[tuple[Shelf, Entry]]:
        """The same, and an empty entry. What is in it at the end is committed; nothing is, on any exception."""
        with self._locked(fcntl.LOCK_EX) as file:
            self._catch_up(file)
            entry = Entry()
            yield self._shelf, entry
            if entry.size:
                line = write_line(entry)
                self._append(file, line)
                self._shelf.take_in(entry)
                self._offset += len(line)

    def create(self) -> bool:
        """Make the file, whole or not at all; False when it is there, by whoever."""
        draft = f"{self.path}.{os.getpid()}-{random.getrandbits(32):08x}"
        try:
            _write_new(draft, [HEADER])
            try:
                os.link(draft, self.path)  # unlike a rename, it never replaces
            finally:
                os.unlink(draft)
            _sync_folder(self.path)
        except FileExistsError:
            return False
        except OSError as error:
            raise translate(error, str(self)) from error
        return True

    def compact(self) -> bool:
        """Replace the file by one that says the same in few words, if that is worth it."""
        with self._locked(fcntl.LOCK_EX) as file:
            self._catch_up(file)
            there_are = len(self._shelf.tasks) + len(self._shelf.documents)
            if self._shelf.taken_in < max(_COMPACT_FROM, _COMPACT_AT * there_are):
                return False
            draft = f"{self.path}.compact"
            with suppress(FileNotFoundError):  # of one who was killed
                os.unlink(draft)
            _write_new(draft, [HEADER, *map(write_line, self._shelf.entries())])
            os.replace(draft, self.path)  # everybody else notices when they have the lock: see `_locked`
            _sync_folder(self.path)
            return True

    def close(self) -> None:
        """Close the file. In a forked child nothing is closed: it is the parent's."""
        if os.getpid() != self._process:
            return
        with self._turn:
            self._is_closed = True
            self._release()

    # Locks

    @contextmanager
    def _locked(self, kind: int) -> Iterator[int]:
        """The file, locked; the system takes the lock back from whoever dies."""
        if os.getpid() != self._process:
            raise PermanentStoreError(f"{self} was opened before this process was forked: open it after the fork")
        end = time.monotonic() + self._timeout
        if not self._turn.acquire(timeout=self._timeout):
            raise TransientStoreError(f"{self} is kept busy by other threads of this process")
        try:
            file = self._lock(kind, end)
            try:
                yield file
            finally:
                if self._file is not None:
                    fcntl.flock(file, fcntl.LOCK_UN)
        except OSError as error:
            raise translate(error, str(self)) from error
        finally:
            self._turn.release()

    def _lock(self, kind: int, end: float) -> int:
        while True:
            file = self._opened()
            self._wait_for(file, kind, end)
            if _is_at(file, self.path):
                return file
            self._release()  # it was compacted while we waited; what is locked is the old file

    def _wait_for(self, file: int, kind: int, end: float) -> None:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return
            if time.monotonic() > end:
                raise TransientStoreError(f"{self} is locked for longer than the timeout; `?timeout=SECONDS` raises it")
            time.sleep(random.uniform(0.2, 1) * _PAUSE_SECONDS)

    def _opened(self) -> int:
        if self._is_closed:
            raise PermanentStoreError(f"{self} was closed by this program: open the store again")
        if self._file is None:
            try:
                self._file = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise SchemaError(f"{self} is missing: run `{upgrade_command(self.url)}`") from error
        return self._file

    def _release(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None
        self._forget()

    def _forget(self) -> None:
        self._shelf, self._offset = Shelf(), 0

    # Reading and appending

    def _catch_up(self, file: int) -> None:
        """Take in what was appended since the last look."""
        size = os.fstat(file).st_size
        if size == self._offset > 0:
            return
        try:
            for line, entry in self._lines(file, size):
                self._shelf.take_in(entry)
                self._offset += len(line)
        except BaseException:
            self._forget()  # half of an entry would be worse than none
            raise
        if not self._offset:
            self._require_ours(b"")

    def _lines(self, file: int, size: int) -> Iterator[tuple[bytes, Entry]]:
        """The entries behind the offset. A last line that is torn was never committed, so it is left out."""
        with open(file, "rb", closefd=False) as lines:
            end = lines.seek(self._offset)
            for line in lines:
                end += len(line)
                if end == len(line):
                    self._require_ours(line)
                    yield line, Entry()
                elif (entry := read_line(line)) is not None:
                    yield line, entry
                elif end < size:
                    raise PermanentStoreError(f"{self} is damaged before byte {end}: restore a backup")

    def _require_ours(self, line: bytes) -> None:
        header = unseal(line) or {}
        if header.get("format") != FORMAT:
            raise SchemaError(f"{self} is the file of another program: name another one in the store URL")
        if header["version"] != VERSION:
            raise SchemaError(f"{self} has format {header['version']}: install a wiggle-store-journal that knows it")

    def _append(self, file: int, line: bytes) -> None:
        """Append behind the last whole line, cutting off a torn one; after it the line is on the disk."""
        if os.fstat(file).st_size > self._offset:
            os.ftruncate(file, self._offset)
        try:
            _write_all(file, line, self._offset)
        except OSError as error:
            os.ftruncate(file, self._offset)
            raise translate(error, str(self)) from error
        try:
            os.fsync(file)
        except OSError as error:
            # The line may be on the disk or not. Cut off, it is at least not taken for durable by those who go on.
            with suppress(OSError):
                os.ftruncate(file, self._offset)
            self._forget()
            raise AmbiguousStoreError(f"the disk under {self} reported an error at a commit") from error


def _write_all(file: int, data: bytes, offset: int) -> None:
    # The system may write a part only, as it does just before the disk is full.
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written


def _write_new(path: str, lines: list[bytes]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        _write_all(file, b"".join(lines), 0)
        os.fsync(file)
    finally:
        os.close(file)


def _sync_folder(path: str) -> None:
    """Make the file's name durable, too."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _is_at(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
