"""The text form of predicates read, the SQL-92 conditional subset, for people: command line, environment, console.

    step = 'charge' AND correlation_id LIKE 'eu-%' AND NOT attr.total >= 1000 AND attr.region:string IS NULL

Keywords in any case, names exactly. `attr.name[:type]`: the type may be left out where the literal tells it (a whole
number is LONG, one with a fraction or exponent DECIMAL). Unlike SQL, a comparison on an absent value is false and NOT
of it is true (C2). What SQL has no words for: `TRUE`, `FALSE`, `IN ()`, and `AND (x)`, `OR (x)` with one argument.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import NamedTuple

from wiggle_core.criteria.check import MAX_JSON_BYTES, MAX_NODES, MAX_VALUES, check
from wiggle_core.criteria.instants import has_lost_digits, parse_instant
from wiggle_core.criteria.tree import (
    FALSE,
    TRUE,
    And,
    AttributeReference,
    Between,
    Compare,
    FieldReference,
    In,
    IsNull,
    Leaf,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    Value,
    ValueType,
)
from wiggle_core.criteria.written import format_text, told_type
from wiggle_core.errors import CriteriaError

__all__ = ["format_text", "parse_text"]

MAX_TEXT_BYTES = 2 * MAX_JSON_BYTES
"""Whatever fits the JSON form fits here: only quotes take more, and those twice as much."""

_MAX_NESTING = 64
_SHOWN = 60
_SPACE = " \t\r\n"
_KEYWORDS = frozenset(
    {"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "TIMESTAMP"}
)
_POWERS = {"OR": 1, "AND": 2}
_LISTS: dict[str, type[And] | type[Or]] = {"OR": Or, "AND": And}
_NOT_POWER = 3
_COMPARISONS = {**{operator.value: operator for operator in Operator}, "!=": Operator.NOT_EQUAL}
_TOKEN = re.compile(
    r"[ \t\r\n]*(?:(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<text>'[^']*(?:''[^']*)*')"
    r"|(?P<sign><>|!=|<=|>=|[=<>(),.:])"
    r"|(?P<end>\Z))"
)


def parse_text(text: str) -> Predicate:
    """The checked predicate of its text form.

    Raises CriteriaError: the message shows the line with a caret under the offender, `path` is a JSON pointer into the
    wire form where the text could be read but says what is refused, else "" (C6).
    """
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise CriteriaError(f"more than {MAX_TEXT_BYTES // 1024} KiB of text")
    parser = _Parser(text)
    predicate = parser.whole()
    try:
        return check(predicate)
    except CriteriaError as error:
        position = parser.position(predicate, error.path)
        raise CriteriaError(_with_caret(error.message, text, position), error.path) from None


class _Literal(NamedTuple):
    """A value and the type that its spelling tells."""

    value: Value
    type: ValueType


class _Token(NamedTuple):
    """`kind` is word, number, text, sign or end. Words are keywords only where one is expected: `attr.in` is a name."""

    kind: str
    text: str
    start: int


_START = _Token("end", "", 0)


@dataclass(slots=True)
class _Parser:
    """A Pratt parser. It marks where each leaf's parts stand, so that a refusal by `check` gets its caret too."""

    source: str
    token: _Token = _START
    after: int = 0
    nesting: int = 0
    marks: dict[str, int] = field(default_factory=dict)
    leaves: dict[int, dict[str, int]] = field(default_factory=dict)

    def whole(self) -> Predicate:
        self._advance()
        predicate = self._expression(0)
        if self.token.kind != "end":
            raise self._refusal("AND, OR or the end is expected")
        return predicate

    def position(self, predicate: Predicate, path: str) -> int:
        """Where the part that a JSON pointer names stands in the text; for a list or NOT, where its first leaf does."""
        while not isinstance(predicate, Leaf):
            arguments = (predicate.argument,) if isinstance(predicate, Not) else predicate.arguments
            if not arguments:
                return 0
            step = re.match(r"/args/([0-9]+)", path)
            predicate = arguments[int(step[1]) if step else 0]
            path = path[step.end() :] if step else ""
        marks = self.leaves[id(predicate)]
        while path not in marks:
            path = path.rpartition("/")[0]
        return marks[path]

    def _expression(self, power: int) -> Predicate:
        self.nesting += 1
        if self.nesting > _MAX_NESTING:
            raise self._refusal(f"nested more than {_MAX_NESTING} deep")
        left = self._operand()
        while (word := self._infix()) and _POWERS[word] > power:
            arguments = [left]
            while self._accepted(word):
                arguments.append(self._expression(_POWERS[word]))
            left = _LISTS[word](tuple(arguments))
        self.nesting -= 1
        return left

    def _infix(self) -> str | None:
        return next((word for word in _POWERS if self._stands(word)), None)

    def _operand(self) -> Predicate:
        if self._accepted("("):
            return self._bracketed()
        if self._accepted("NOT"):
            return Not(self._expression(_NOT_POWER))
        if self._accepted("TRUE"):
            return TRUE
        if self._accepted("FALSE"):
            return FALSE
        if word := self._infix():
            self._advance()
            self._expect("(", f"{word} before a single predicate takes it in brackets")
            return _LISTS[word]((self._bracketed(),))
        return self._leaf()

    def _bracketed(self) -> Predicate:
        predicate = self._expression(0)
        self._expect(")", "AND, OR or ) is expected")
        return predicate

    def _leaf(self) -> Predicate:
        if len(self.leaves) == MAX_NODES:
            raise self._refusal(f"more than {MAX_NODES} nodes")
        self.marks = {"": self.token.start}
        name, kind = self._reference()
        negated, leaf = self._test(name, kind)
        self.leaves[id(leaf)] = self.marks
        return Not(leaf) if negated else leaf

    def _reference(self) -> tuple[str, ValueType | None]:
        """A field's name, or `attr.` with the attribute's name and its type where that is written."""
        name = self._word("a field, attr.name, NOT, TRUE, FALSE or ( is expected")
        if name != "attr":
            return name, None
        self._expect(".", "attr. takes the name of an attribute")
        name = f"attr.{self._word('the name of an attribute is expected', keywords=frozenset())}"
        if not self._accepted(":"):
            return name, None
        if self.token.text not in list(ValueType):
            raise self._refusal(f"a type is expected: {', '.join(ValueType)}")
        return name, ValueType(self._advance().text)

    def _test(self, name: str, kind: ValueType | None) -> tuple[bool, Leaf]:
        """What stands after a reference: whether it is negated, and the leaf."""
        self.marks["/op"] = self.token.start
        if self.token.text in _COMPARISONS:
            operator = _COMPARISONS[self._advance().text]
            value = self._literal("/args/1")
            return False, Compare(self._typed(name, kind, value), operator, value.value)
        if self._accepted("IS"):
            negated = self._accepted("NOT")
            self._expect("NULL", "NULL is expected")
            return negated, IsNull(self._typed(name, kind))
        return self._accepted("NOT"), self._worded_test(name, kind)

    def _worded_test(self, name: str, kind: ValueType | None) -> Leaf:
        if self._accepted("BETWEEN"):
            low = self._literal("/args/1")
            self._expect("AND", "AND and the upper end are expected")
            high = self._literal("/args/2")
            return Between(self._typed(name, kind, low, high), low.value, high.value)
        if self._accepted("IN"):
            members = self._members()
            return In(self._typed(name, kind, *members), tuple(member.value for member in members))
        if self._accepted("LIKE"):
            return self._like(name, kind)
        raise self._refusal(
            f"an operator is expected: {' '.join(_COMPARISONS)}, [NOT] BETWEEN, IN, LIKE or IS [NOT] NULL"
        )

    def _like(self, name: str, kind: ValueType | None) -> Leaf:
        self.marks["/args/1"] = self.token.start
        pattern = self._quoted("a pattern in quotes is expected")
        escape = None
        if self._accepted("ESCAPE"):
            self.marks["/escape"] = self.token.start
            escape = self._quoted("an escape in quotes is expected")
        return Like(self._typed(name, kind, _Literal(pattern, ValueType.STRING)), pattern, escape)

    def _typed(self, name: str, kind: ValueType | None, *literals: _Literal) -> Reference:
        if not name.startswith("attr."):
            return FieldReference(name)
        told = kind or told_type([literal.type for literal in literals])
        if told is None:
            raise self._refusal(f"nothing tells the type of {name}: write {name}:string, :long, ...", self.marks[""])
        return AttributeReference(name.removeprefix("attr."), told)

    def _members(self) -> list[_Literal]:
        self._expect("(", "a list in brackets is expected")
        members: list[_Literal] = []
        while not self._accepted(")"):
            if members:
                self._expect(",", ", or ) is expected")
            if len(members) == MAX_VALUES:
                raise self._refusal(f"more than {MAX_VALUES} values in a list")
            members.append(self._literal(f"/args/1/{len(members)}"))
        return members

    def _literal(self, mark: str) -> _Literal:
        self.marks[mark] = self.token.start
        if self.token.kind == "number":
            return self._number()
        if self._accepted("TRUE"):
            return _Literal(True, ValueType.BOOLEAN)
        if self._accepted("FALSE"):
            return _Literal(False, ValueType.BOOLEAN)
        if self._accepted("TIMESTAMP"):
            return self._timestamp()
        if self._stands("NULL"):
            raise self._refusal("NULL is no literal: absence is asked with IS NULL")
        return _Literal(self._quoted("a literal is expected"), ValueType.STRING)

    def _quoted(self, expected: str) -> str:
        if self.token.kind != "text":
            raise self._refusal(expected)
        return self._advance().text[1:-1].replace("''", "'")

    def _number(self) -> _Literal:
        text = self.token.text
        try:
            exact = Decimal(text) if set(text) & set(".eE") else int(text)
        except (InvalidOperation, ValueError):  # beyond the decimal module's exponents, or int()'s 4,300 digits
            raise self._refusal("a number out of range") from None
        self._advance()
        return _Literal(exact, ValueType.LONG if isinstance(exact, int) else ValueType.DECIMAL)

    def _timestamp(self) -> _Literal:
        start = self.token.start
        text = self._quoted("an instant in quotes is expected")
        if has_lost_digits(text):
            raise self._refusal("an instant has at most six digits after the second", start)
        try:
            return _Literal(parse_instant(text), ValueType.INSTANT)
        except ValueError as error:
            raise self._refusal(str(error), start) from None

    def _word(self, expected: str, keywords: frozenset[str] = _KEYWORDS) -> str:
        self.marks["/args/0"] = self.token.start
        if self.token.kind != "word" or self.token.text.upper() in keywords:
            raise self._refusal(expected)
        return self._advance().text

    def _stands(self, wanted: str) -> bool:
        return self.token.text == wanted or (self.token.kind == "word" and self.token.text.upper() == wanted)

    def _accepted(self, wanted: str) -> bool:
        stands = self._stands(wanted)
        if stands:
            self._advance()
        return stands

    def _expect(self, wanted: str, message: str) -> None:
        if not self._accepted(wanted):
            raise self._refusal(message)

    def _advance(self) -> _Token:
        """The current token; the next one becomes the current."""
        token = self.token
        found = _TOKEN.match(self.source, self.after)
        if found is None:
            rest = self.source[self.after :].lstrip(_SPACE)
            message = "a text without its closing quote" if rest.startswith("'") else "no such sign"
            raise self._refusal(message, len(self.source) - len(rest))
        kind = found.lastgroup or "end"
        self.token = _Token(kind, found[kind], found.start(kind))
        self.after = found.end()
        return token

    def _refusal(self, message: str, position: int | None = None) -> CriteriaError:
        return CriteriaError(_with_caret(message, self.source, self.token.start if position is None else position))


def _with_caret(message: str, text: str, position: int) -> str:
    """The message, what stands around the position in its line, and a caret below it."""
    line_start = text.rfind("\n", 0, position) + 1
    line, column = text.count("\n", 0, position) + 1, position - line_start + 1
    before = text[max(line_start, position - _SHOWN) : position]
    after = text[position : position + _SHOWN].partition("\n")[0]
    shown = "".join(character if character.isprintable() else " " for character in before + after)
    return f"{message} (line {line}, column {column})\n  {shown}\n  {' ' * len(before)}^"
