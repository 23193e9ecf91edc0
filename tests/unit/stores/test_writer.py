"""The SQL writer: what it binds, what it leaves to the dialect, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal

import pytest

from wiggle_core.criteria.fields import Task
from wiggle_core.criteria.tree import FALSE, TRUE, And, Not, Or, Predicate, Wildcard, normalize
from wiggle_core.errors import CriteriaError
from wiggle_core.stores.sql.writer import Bind, LikeParts, SqlDialect, SqlWriter

region, total = Task.attr("region", str), Task.attr("total", Decimal)


def _attribute(name: str, bind: Bind) -> str:
    return f"attr({bind(name)})"


def _like(expression: str, parts: LikeParts, bind: Bind) -> str:
    pattern = "".join(part.value if isinstance(part, Wildcard) else f"<{part}>" for part in parts)
    return f"{expression} MATCHES {bind(pattern)}"


PLAIN = SqlDialect(attribute=_attribute, like=_like)
NUMBERED = SqlDialect(
    attribute=_attribute,
    like=_like,
    placeholder=lambda number: f":{number}",
    column='"{}"'.format,
    text=lambda value, bind: f"binary({bind(value)})",
    absent="is_absent({})".format,
)


def render(predicate: Predicate, dialect: SqlDialect = PLAIN) -> tuple[str, tuple[object, ...]]:
    fragment = SqlWriter(dialect).render(normalize(predicate))
    return fragment.text, fragment.binds


INSTANT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("predicate", "text", "binds"),
    [
        (TRUE, "1 = 1", ()),
        (FALSE, "1 = 0", ()),
        (Task.step == "a", "step = ?", ("a",)),
        (~(Task.step == "a"), "NOT (step = ?)", ("a",)),
        (~(Task.node == "a"), "(node IS NULL OR NOT (node = ?))", ("a",)),
        (Task.created_at > INSTANT, "created_at > ?", (1_000_000,)),
        (Task.version.between(1, 2), "version BETWEEN ? AND ?", (1, 2)),
        (Task.version.in_([2, 1]), "version IN (?, ?)", (1, 2)),
        (Task.node.is_null(), "node IS NULL", ()),
        (Task.node.is_not_null(), "NOT (node IS NULL)", ()),
        (Task.step.is_null(), "1 = 0", ()),
        (Task.step.like("a%"), "step MATCHES ?", ("<a>%",)),
        (region == "eu", "attr(?) = ?", ("region", "seu")),
        (region < "eu", "(attr(?) < ? AND attr(?) >= ?)", ("region", "seu", "region", "s")),
        (region <= "eu", "attr(?) BETWEEN ? AND ?", ("region", "s", "seu")),
        (region > "eu", "(attr(?) > ? AND attr(?) < ?)", ("region", "seu", "region", "t")),
        (region >= "eu", "attr(?) BETWEEN ? AND ?", ("region", "seu", "t")),
        (region != "eu", "(attr(?) <> ? AND attr(?) BETWEEN ? AND ?)", ("region", "seu", "region", "s", "t")),
        (~(region == "eu"), "(attr(?) IS NULL OR NOT (attr(?) = ?))", ("region", "region", "seu")),
        (
            region.is_null(),
            "(attr(?) IS NULL OR NOT (attr(?) BETWEEN ? AND ?))",
            ("region", "region", "s", "t"),
        ),
        (region.is_not_null(), "attr(?) BETWEEN ? AND ?", ("region", "s", "t")),
        (region.like("%u"), "attr(?) MATCHES ?", ("region", "<s>%<u>")),
        (region.like("e%"), "attr(?) MATCHES ?", ("region", "<se>%")),
        (total == Decimal("0.5"), "attr(?) = ?", ("total", "n24995")),
    ],
)
def test_each_leaf_has_its_text(predicate: Predicate, text: str, binds: tuple[object, ...]) -> None:
    """C2, C5: a negated leaf holds for what is absent, and a range of keys ends where its family ends."""
    assert render(predicate) == (text, binds)


def test_the_dialect_spells_what_differs() -> None:
    """Placeholders, columns, text and the test for absence are the dialect's own, in the order of the text."""
    predicate = ~(Task.node == "n") & (region == "eu")
    text, binds = render(predicate, NUMBERED)
    assert text == '((is_absent("node") OR NOT ("node" = binary(:1))) AND attr(:2) = binary(:3))'
    assert binds == ("n", "region", "seu")
    shifted = SqlWriter(NUMBERED).render(normalize(Task.step == "a"), offset=4)
    assert shifted.text == '"step" = binary(:5)'


def test_nothing_of_the_user_is_in_the_text() -> None:
    """No value and no attribute name reaches SQL text: hostile ones are binds like any other."""
    hostile = "x' OR 1=1; DROP TABLE task --"
    predicate = (
        (Task.step == hostile)
        & (region == hostile)
        & Task.node.in_([hostile, "y"])
        & region.like(f"%{hostile}")
        & Task.kind.between(hostile, "z")
    )
    text, binds = render(predicate)
    assert "DROP" not in text
    assert "region" not in text
    assert sum("DROP" in str(bind) for bind in binds) == 5


def test_long_lists_are_the_dialects() -> None:
    """A dialect may bind a long list as one value; a short one stays as it is written."""

    def members(values: Sequence[object], bind: Bind) -> str:
        return f"UNPACKED({bind(tuple(values))})"

    dialect = SqlDialect(attribute=_attribute, like=_like, members=members)
    text, binds = render(total.in_([Decimal(each) for each in range(1, 18)]), dialect)
    assert text == "attr(?) IN UNPACKED(?)"
    assert binds[0] == "total"
    assert len(binds[1]) == 17  # type: ignore[arg-type]  # binds are of any type
    assert render(Task.version.in_([1, 2]), dialect) == ("version IN (?, ?)", (1, 2))


def test_a_chain_of_thousands_is_a_shallow_nest() -> None:
    """SQ3: brackets go as deep as the logarithm of the number of conditions, with every bind in its place."""
    text, binds = render(Or(tuple(Task.correlation_id == f"c{number}" for number in range(5000))))
    depth = deepest = 0
    for character in text:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
    assert deepest <= 4
    assert len(binds) == text.count("?") == 5000
    assert sorted(binds) == sorted(f"c{number}" for number in range(5000))  # type: ignore[type-var]  # all are text


def test_too_many_values_are_refused_in_words() -> None:
    """A query that the database cannot bind is refused with its limit, before it is sent."""
    small = SqlDialect(attribute=_attribute, like=_like, max_binds=3)
    with pytest.raises(CriteriaError, match="4 values in one query; this store binds 3 at most"):
        SqlWriter(small).render(normalize((region == "eu") & (total == Decimal(1))))


def test_only_normal_forms_are_rendered() -> None:
    """Negation has been pushed to the leaves before a store sees a predicate."""
    with pytest.raises(ValueError, match="no negation"):
        SqlWriter(PLAIN).render(And((Not(Task.step == "a"), TRUE)))
