"""What commands print: JSON for programs, tables and plain lines for people.

Task data is foreign text: control characters in it are shown escaped, or they would reach the terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wiggle_core.criteria.instants import format_instant, from_micros

_WIDE = 250
_encode = json.JSONEncoder(separators=(", ", ": ")).encode


def print_json(value: object) -> None:
    """One line of JSON in ASCII, which passes every pipe and terminal."""
    print_raw(_encode(value))


def print_raw(text: str) -> None:
    """One line exactly as given."""
    sys.stdout.write(f"{text}\n")


def print_line(text: object) -> None:
    """One line for people."""
    print_raw(printable(text))


def print_error(message: str, *, as_json: bool) -> None:
    """What went wrong: a red line on stderr, or an object on stdout."""
    if as_json:
        print_json({"error": message})
    else:
        Console(stderr=True, soft_wrap=True, highlight=False).print(Text(f"wiggle: {printable(message)}", style="red"))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
    """A table for people; numbers stand to the right. Nothing is cut where the output is no terminal."""
    table = Table(title=title, title_justify="left", header_style="bold")
    body = [list(row) for row in rows]
    for index, column in enumerate(columns):
        is_numeric = bool(body) and all(isinstance(row[index], (int, float, Decimal)) for row in body)
        table.add_column(column, justify="right" if is_numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(printable(cell)) for cell in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE).print(table)


def printable(value: object) -> str:
    """The text of a value with everything escaped that is not printable, line breaks too; "" for None."""
    if value is None:
        return ""
    text = str(value)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)


def instant(micros: int | None) -> str | None:
    """Epoch microseconds as RFC 3339."""
    return None if micros is None else format_instant(from_micros(micros))


def age(micros: int) -> str:
    """A span of microseconds in words short enough for a table."""
    seconds = max(0, micros) // 1_000_000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 172_800 else f"{seconds // 86_400} d"
