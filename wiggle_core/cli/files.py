"""Reading the files that commands are given: bounded, in UTF-8, with file and line number in every refusal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import BinaryIO

from wiggle_core.cli.failures import InputError

MAX_LINE_BYTES = 16 * 1024 * 1024
STDIN = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file, not yet decoded."""

    source: str
    number: int
    raw: bytes

    @property
    def place(self) -> str:
        return f"{self.source}:{self.number}"

    def text(self) -> str:
        """The line's text. Raises InputError when it is empty or no UTF-8."""
        try:
            text = self.raw.decode("utf-8").strip(" \t\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.place}: not UTF-8 text (byte {error.start + 1} of the line)") from None
        if not text:
            raise InputError(f"{self.place}: an empty line; JSON is expected")
        return text


def read_lines(path: str) -> Iterator[Line]:
    """The lines of a file, or of stdin for "-", one at a time. Raises InputError."""
    source = "stdin" if path == STDIN else path
    with _opened(path) as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(raw) > MAX_LINE_BYTES:
                raise InputError(f"{source}:{number}: a line of more than {MAX_LINE_BYTES // 1024**2} MiB")
            yield Line(source, number, raw.removeprefix(_BYTE_ORDER_MARK) if number == 1 else raw)


def read_whole(path: str, limit: int) -> bytes:
    """The content of a file, or of stdin for "-"; one byte more than `limit` when it is longer. Raises InputError."""
    with _opened(path) as file:
        return file.read(limit + len(_BYTE_ORDER_MARK) + 1).removeprefix(_BYTE_ORDER_MARK)[: limit + 1]


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    try:
        with nullcontext(sys.stdin.buffer) if path == STDIN else open(path, "rb") as file:
            yield file
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{path}: {reason}") from error
