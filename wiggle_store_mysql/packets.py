"""What goes out at once: parts of what is to be sent, none above a limit of bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def packed(items: Iterable[T], size_of: Callable[[T], int], room: float, most: int | None = None) -> Iterator[list[T]]:
    """The items in parts of at most `room` bytes, and `most` items. One that is larger is a part by itself."""
    part: list[T] = []
    size = 0
    for each in items:
        more = size_of(each)
        if part and (len(part) == most or size + more > room):
            yield part
            part, size = [], 0
        part.append(each)
        size += more
    if part:
        yield part


def places(rows: Sequence[object]) -> str:
    """What stands for so many rows in an INSERT."""
    return ", ".join(["%s"] * len(rows))
