"""Predicates with every value and attribute name exchanged for marked ones, and the statements that a store sends.

What a statement may depend on is the shape: kinds of nodes, fields, operators, types, the lengths of lists and where a
pattern's wildcards stand. Everything else here carries a mark, so that a search of the text finds it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any

import pytest

from wiggle_core.criteria.instants import EPOCH
from wiggle_core.criteria.tree import (
    And,
    AttributeReference,
    Between,
    Compare,
    In,
    IsNull,
    Like,
    Not,
    Or,
    Predicate,
    Reference,
    Value,
    Wildcard,
    pattern_parts,
)

MARK = "zq7x"
DIGITS = 70707
HOSTILE = "'\"`\\;--/*?:x$1{0}%%[]|\n"
"""Ends quotes, comments and statements, and means something to placeholders, formats and patterns."""


def leaks(statement: str) -> bool:
    """Whether the text holds anything that is marked."""
    return MARK in statement.casefold() or str(DIGITS) in statement


@dataclass(slots=True)
class Rewording:
    """Gives marked values and names, no two alike; `series` keeps two rewordings of one predicate apart."""

    series: str
    serial: count[int]

    @classmethod
    def of(cls, series: str) -> Rewording:
        return cls(series, count(1))

    def text(self) -> str:
        """A marked text that tries to break out of whatever quotes it."""
        return f"{MARK}{self.series}{next(self.serial)}{HOSTILE}"

    def whole(self) -> int:
        return DIGITS * 10**6 + 1000 * len(self.series) + next(self.serial)

    def predicate(self, predicate: Predicate) -> Predicate:
        """A predicate of the same shape in which nothing else is the same."""
        match predicate:
            case And(arguments):
                return And(tuple(map(self.predicate, arguments)))
            case Or(arguments):
                return Or(tuple(map(self.predicate, arguments)))
            case Not(argument):
                return Not(self.predicate(argument))
            case Compare():
                return replace(predicate, reference=self._reference(predicate), value=self._value(predicate.value))
            case Between():
                low, high = self._value(predicate.low), self._value(predicate.high)
                return replace(predicate, reference=self._reference(predicate), low=low, high=high)
            case In():
                values = tuple(map(self._value, predicate.values))
                return replace(predicate, reference=self._reference(predicate), values=values)
            case Like():
                return self._like(predicate)
            case IsNull():
                return replace(predicate, reference=self._reference(predicate))

    def _reference(self, leaf: Compare | Between | In | Like | IsNull) -> Reference:
        reference = leaf.reference
        if not isinstance(reference, AttributeReference):
            return reference
        return AttributeReference(f"{MARK}_{self.series}{next(self.serial)}", reference.type)

    def _value(self, value: Value) -> Value:
        match value:
            case str():
                return self.text()
            case bool():
                return not value
            case int():
                return self.whole()
            case Decimal():
                return Decimal(f"{self.whole()}.{DIGITS}")
            case datetime():
                return EPOCH + timedelta(microseconds=self.whole())

    def _like(self, leaf: Like) -> Like:
        """The wildcards stay where they are; each run between them becomes a marked one without wildcards."""
        parts = pattern_parts(leaf.pattern, leaf.escape)
        literal = HOSTILE.replace("%", "")
        pattern = "".join(
            part.value if isinstance(part, Wildcard) else f"{MARK}{self.series}{next(self.serial)}{literal}"
            for part in parts
        )
        return replace(leaf, reference=self._reference(leaf), pattern=pattern, escape=None)


Recorder = Callable[[pytest.MonkeyPatch], list[str]]
"""Makes a driver write down, from now on, the text of every statement that it is given."""


def record_sqlite(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Connections opened from now on write their statements down as they were given, without the values bound."""
    statements: list[str] = []

    class Cursor(sqlite3.Cursor):
        def execute(self, sql: str, *binds: Any) -> Cursor:  # Any: what may be bound
            statements.append(sql)
            return super().execute(sql, *binds)

        def executemany(self, sql: str, binds: Iterable[Any]) -> Cursor:  # Any: as above
            statements.append(sql)
            return super().executemany(sql, binds)

        def executescript(self, sql: str) -> sqlite3.Cursor:
            statements.append(sql)
            return super().executescript(sql)

    class Connection(sqlite3.Connection):
        def cursor(self, factory: Any = Cursor) -> Any:  # Any: as the driver declares it
            return super().cursor(factory)

        def execute(self, sql: str, *binds: Any) -> Cursor:  # Any: what may be bound
            return self.cursor().execute(sql, *binds)  # type: ignore[no-any-return]  # a Cursor, by the factory

        def executemany(self, sql: str, binds: Iterable[Any]) -> Cursor:  # Any: as above
            return self.cursor().executemany(sql, binds)  # type: ignore[no-any-return]  # as above

        def executescript(self, sql: str) -> Cursor:
            return self.cursor().executescript(sql)  # type: ignore[no-any-return]  # as above

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Connection))
    return statements
