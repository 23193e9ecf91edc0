"""The contract as the checks say it: each docstring begins with the rules that the check proves, then the promise."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass

FAMILIES = {
    "C": ("Criteria", 8),
    "A": ("Attributes", 3),
    "O": ("Order and claim", 4),
    "L": ("Leases", 7),
    "N": ("Lanes", 5),
}
"""The rules that every store has to keep, those of lanes if it has any: their letter, what they are about, and how
many there are."""

RULES = tuple(f"{letter}{number}" for letter, (_, count) in FAMILIES.items() for number in range(1, count + 1))
_OTHERS = "Everything else"
_SPAN = re.compile(r"([A-Z])(\d+)(?:-\1(\d+))?|Section \d+")


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the kit: the rules and sections that it names, and what it makes sure of."""

    name: str
    rules: tuple[str, ...]
    promise: str


@dataclass(frozen=True, slots=True)
class Contract:
    """The checks that a star-import of the kit brings."""

    checks: tuple[Check, ...]

    def by_rule(self) -> dict[str, list[Check]]:
        """The checks under each rule that they name, in the contract's order."""
        under: dict[str, list[Check]] = {}
        for check in self.checks:
            for rule in check.rules:
                under.setdefault(rule, []).append(check)
        return dict(sorted(under.items(), key=lambda each: _place(each[0])))

    def unnamed(self) -> list[str]:
        """The rules that no check names."""
        named = {rule for check in self.checks for rule in check.rules}
        return [rule for rule in RULES if rule not in named]


def read_contract() -> Contract:
    """The contract as this version's kit says it."""
    from wiggle_core import conformance  # noqa: PLC0415  # which imports this module

    names = [name for name in conformance.__all__ if name.startswith("test_")]
    return Contract(tuple(read_check(getattr(conformance, name)) for name in names))


def read_check(check: Callable[..., object]) -> Check:
    """What a check's docstring says: `L1, O4: ...`, `C1-C8: ...`, `Section 6, C4: ...`. No colon, no rules."""
    head, colon, promise = (inspect.getdoc(check) or "").partition(":")
    rules = tuple(rule for found in _SPAN.finditer(head) for rule in _expand(found)) if colon else ()
    return Check(check.__name__, rules, " ".join(promise.split()))


def add_keywords(check: Callable[..., object]) -> None:
    """Let `pytest -k leases` select the checks of a module, and `pytest -k L2` those of a rule.

    An expression of `-k` also meets the names of a function's attributes.
    """
    vars(check).update(dict.fromkeys((check.__module__.rpartition(".")[2], *read_check(check).rules), True))


def family(rule: str) -> str:
    """What a rule is about."""
    return FAMILIES[rule[0]][0] if rule in RULES else _OTHERS


def _expand(found: re.Match[str]) -> list[str]:
    letter, first, last = found.groups()
    if letter is None:
        return [found.group()]
    return [f"{letter}{number}" for number in range(int(first), int(last or first) + 1)]


def _place(rule: str) -> tuple[int, str, int]:
    """Rules in their order, other letters and sections behind them by name and number."""
    if rule in RULES:
        return RULES.index(rule), "", 0
    return len(RULES), rule.rstrip("0123456789"), int(re.sub(r"\D", "", rule))
