"""The SQL of each kind of node, spelled by a dialect that marks every piece it is asked for (C8)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal

import pytest

from wiggle_core.criteria import (
    FALSE,
    TRUE,
    And,
    AttributeReference,
    Between,
    Compare,
    FieldReference,
    In,
    IsNull,
    Like,
    Not,
    Operator,
    Or,
    Predicate,
    Reference,
    ValueType,
)
from wiggle_core.criteria.tree import Value, Wildcard
from wiggle_core.errors import CriteriaError
from wiggle_core.stores.sql.writer import Bind, LikeParts, SqlDialect, SqlWriter
from wiggle_store_mysql.dialect import WRITERS, like_pattern
from wiggle_store_mysql.place import Product
from wiggle_store_sqlite.dialect import WRITER, glob_pattern


def _attribute(name: str, bind: Bind) -> str:
    return f"key({bind(name)})"


def _like(expression: str, parts: LikeParts, bind: Bind) -> str:
    marked = ["*" if part is Wildcard.ANY_RUN else "?" if part is Wildcard.ANY_ONE else part for part in parts]
    return f"like({expression}, {bind(tuple(marked))})"


def _members(values: Sequence[object], bind: Bind) -> str:
    return f"list({bind(tuple(values))})"


DIALECT = SqlDialect(
    attribute=_attribute,
    like=_like,
    placeholder=lambda number: f":{number}",
    column="column_{}".format,
    text=lambda value, bind: f"text({bind(value)})",
    absent="absent({})".format,
)
PLAIN = SqlDialect(attribute=_attribute, like=_like)

STEP, NODE, VERSION = FieldReference("step"), FieldReference("node"), FieldReference("version")
CREATED = FieldReference("created_at")
NAME, N = AttributeReference("name", ValueType.STRING), AttributeReference("n", ValueType.LONG)
VIP, DUE = AttributeReference("vip", ValueType.BOOLEAN), AttributeReference("due", ValueType.INSTANT)
MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
MOMENT_KEY = "t062135596801000000"

SPELLED: list[tuple[Predicate, str, tuple[object, ...]]] = [
    (TRUE, "1 = 1", ()),
    (FALSE, "1 = 0", ()),
    (Compare(STEP, Operator.EQUAL, "a"), "column_step = text(:1)", ("a",)),
    (Compare(STEP, Operator.NOT_EQUAL, "a"), "column_step <> text(:1)", ("a",)),
    (Compare(VERSION, Operator.LESS_OR_EQUAL, 5), "column_version <= :1", (5,)),
    (Compare(CREATED, Operator.GREATER, MOMENT), "column_created_at > :1", (1_000_000,)),
    (Compare(STEP, Operator.EQUAL, "a", negated=True), "NOT (column_step = text(:1))", ("a",)),
    (
        Compare(NODE, Operator.LESS, "a", negated=True),
        "(absent(column_node) OR NOT (column_node < text(:1)))",
        ("a",),
    ),
    (Between(STEP, "a", "b"), "column_step BETWEEN text(:1) AND text(:2)", ("a", "b")),
    (Between(CREATED, MOMENT, MOMENT), "column_created_at BETWEEN :1 AND :2", (1_000_000, 1_000_000)),
    (In(STEP, ("a", "b")), "column_step IN (text(:1), text(:2))", ("a", "b")),
    (In(VERSION, (1, 2)), "column_version IN (:1, :2)", (1, 2)),
    (
        In(VERSION, (1,), negated=True),
        "(absent(column_version) OR NOT (column_version IN (:1)))",
        (1,),
    ),
    (Like(STEP, "a%_!_", "!"), "like(column_step, :1)", (("a", "*", "?", "_"),)),
    (IsNull(NODE), "absent(column_node)", ()),
    (IsNull(NODE, negated=True), "NOT (absent(column_node))", ()),
    (IsNull(STEP), "1 = 0", ()),
    (IsNull(STEP, negated=True), "NOT (1 = 0)", ()),
    (Compare(NAME, Operator.EQUAL, "a"), "key(:1) = text(:2)", ("name", "sa")),
    (
        Compare(NAME, Operator.NOT_EQUAL, "a"),
        "(key(:1) <> text(:2) AND key(:3) BETWEEN text(:4) AND text(:5))",
        ("name", "sa", "name", "s", "t"),
    ),
    (
        Compare(N, Operator.LESS, 5),
        "(key(:1) < text(:2) AND key(:3) >= text(:4))",
        ("n", "n25005", "n", "n"),
    ),
    (Compare(N, Operator.LESS_OR_EQUAL, 5), "key(:1) BETWEEN text(:2) AND text(:3)", ("n", "n", "n25005")),
    (
        Compare(N, Operator.GREATER, Decimal("0.5")),
        "(key(:1) > text(:2) AND key(:3) < text(:4))",
        ("n", "n24995", "n", "o"),
    ),
    (Compare(N, Operator.GREATER_OR_EQUAL, 5), "key(:1) BETWEEN text(:2) AND text(:3)", ("n", "n25005", "o")),
    (Compare(VIP, Operator.EQUAL, True), "key(:1) = text(:2)", ("vip", "b1")),
    (
        Compare(DUE, Operator.EQUAL, MOMENT, negated=True),
        "(absent(key(:1)) OR NOT (key(:2) = text(:3)))",
        ("due", "due", MOMENT_KEY),
    ),
    (Between(NAME, "a", "b"), "key(:1) BETWEEN text(:2) AND text(:3)", ("name", "sa", "sb")),
    (In(NAME, ("a", "b")), "key(:1) IN (text(:2), text(:3))", ("name", "sa", "sb")),
    (Like(NAME, "a%b"), "like(key(:1), :2)", ("name", ("sa", "*", "b"))),
    (Like(NAME, "_b"), "like(key(:1), :2)", ("name", ("s", "?", "b"))),
    (
        IsNull(VIP),
        "(absent(key(:1)) OR NOT (key(:2) BETWEEN text(:3) AND text(:4)))",
        ("vip", "vip", "b", "c"),
    ),
    (IsNull(DUE, negated=True), "key(:1) BETWEEN text(:2) AND text(:3)", ("due", "t", "u")),
    (
        And((IsNull(NODE), Or((Compare(VERSION, Operator.EQUAL, 1), Compare(N, Operator.EQUAL, 2))))),
        "(absent(column_node) AND (column_version = :1 OR key(:2) = text(:3)))",
        (1, "n", "n25002"),
    ),
]


@pytest.mark.parametrize(("predicate", "text", "binds"), SPELLED, ids=range(len(SPELLED)))
def test_spelling(predicate: Predicate, text: str, binds: tuple[object, ...]) -> None:
    """C2, C5: negation tests for absence, comparisons of keys stay within the family, binds are in order."""
    rendered = SqlWriter(DIALECT).render(predicate)
    assert (rendered.text, rendered.binds) == (text, binds)


def test_placeholders_count_on() -> None:
    """A fragment behind others begins behind their placeholders."""
    predicate = And((Compare(NAME, Operator.EQUAL, "a"), Compare(VERSION, Operator.EQUAL, 1)))
    rendered = SqlWriter(DIALECT).render(predicate, 7)
    assert rendered.text == "(key(:8) = text(:9) AND column_version = :10)"
    assert rendered.binds == ("name", "sa", 1)


def test_what_a_dialect_need_not_say() -> None:
    """Question marks, columns by their names, IS NULL, and text bound as it is."""
    predicate = Or((IsNull(NODE), Compare(STEP, Operator.EQUAL, "a"), Compare(NAME, Operator.EQUAL, "a", negated=True)))
    rendered = SqlWriter(PLAIN).render(predicate)
    assert rendered.text == "(node IS NULL OR step = ? OR (key(?) IS NULL OR NOT (key(?) = ?)))"
    assert rendered.binds == ("a", "name", "name", "sa")


@pytest.mark.parametrize(
    ("reference", "value", "stored"), [(STEP, "x", "x"), (N, 5, "n25005"), (CREATED, MOMENT, 10**6)]
)
def test_long_lists_are_one_bind_where_the_dialect_can(reference: Reference, value: Value, stored: object) -> None:
    """Section 6: up to 8 values each have a placeholder, more become the dialect's list, as they are stored."""
    writer = SqlWriter(replace(PLAIN, members=_members))
    short = writer.render(In(reference, (value,) * 8))
    assert short.text.count("?, ?") == 4
    assert short.binds[-8:] == (stored,) * 8
    long = writer.render(In(reference, (value,) * 9))
    assert long.text.endswith(" IN list(?)")
    assert long.binds[-1] == (stored,) * 9
    assert SqlWriter(PLAIN).render(In(reference, (value,) * 9)).binds[-9:] == (stored,) * 9


def test_as_many_values_as_the_database_binds() -> None:
    """C6: one more is refused before the database is asked, and the message has both numbers."""
    writer = SqlWriter(replace(PLAIN, max_binds=5))
    assert len(writer.render(In(STEP, ("a",) * 5)).binds) == 5
    with pytest.raises(CriteriaError) as refused:
        writer.render(In(STEP, ("a",) * 6))
    assert refused.value.message == "6 values in one query; this store binds 5 at most"
    assert SqlDialect(attribute=_attribute, like=_like).max_binds == 32_766


def test_long_chains_are_a_balanced_nest() -> None:
    """Databases bound the depth of an expression: thousands of conditions are three levels, each of 16 at most."""
    leaf = Compare(STEP, Operator.EQUAL, "a")
    writer = SqlWriter(PLAIN)
    assert writer.render(Or((leaf,) * 16)).text == f"({' OR '.join(['step = ?'] * 16)})"
    half = f"({' AND '.join(['step = ?'] * 16)})"
    assert writer.render(And((leaf,) * 17)).text == f"({half} AND step = ?)"
    text = writer.render(Or((leaf,) * 4_000)).text
    assert text.count("step = ?") == 4_000
    assert max(text[:at].count("(") - text[:at].count(")") for at in range(0, len(text), 97)) == 3


def test_only_normal_forms_are_written() -> None:
    """C2: a negation that was not pushed down is a mistake of the caller's."""
    with pytest.raises(ValueError, match=r"^no negation stands in a normal form$"):
        SqlWriter(PLAIN).render(Not(TRUE))


GLOBS: list[tuple[list[str | Wildcard], str]] = [
    ([], ""),
    (["a", Wildcard.ANY_RUN, "b", Wildcard.ANY_ONE], "a*b?"),
    (["a*b?c[d]e^"], "a[*]b[?]c[[]d]e^"),
    (["%_'\\"], "%_'\\"),
]


@pytest.mark.parametrize(("parts", "pattern"), GLOBS)
def test_sqlite_like_is_glob(parts: list[str | Wildcard], pattern: str) -> None:
    """SQ2, C4: wildcards change their sign, and what GLOB treats specially stands for itself."""
    assert glob_pattern(parts) == pattern
    literal = "".join(part for part in parts if isinstance(part, str))
    with sqlite3.connect(":memory:") as connection:
        text = literal if Wildcard.ANY_ONE not in parts else "aXXb\U0001f600"
        assert connection.execute("SELECT ? GLOB ?", (text, pattern)).fetchone() == (1,)
    connection.close()


def test_sqlite_spells_attributes_and_lists_by_binds() -> None:
    """Section 6: a path, a pattern and a list are values bound."""
    rendered = WRITER.render(And((Like(NAME, "a%"), In(N, tuple(range(17))))))
    assert rendered.text == (
        "(json_extract(attributes, ?) GLOB +? AND json_extract(attributes, ?) IN (SELECT value FROM json_each(?)))"
    )
    assert rendered.binds[:3] == ("$.name", "sa*", "$.n")
    assert isinstance(rendered.binds[3], str)
    assert rendered.binds[3].startswith('["n1", "n25001", "n25002"')


def test_mysql_like_is_escaped_by_an_exclamation_mark() -> None:
    """MY9, C4: the backslash is no escape, and everything that is one stands for itself."""
    parts: list[str | Wildcard] = ["a%b_c!\\'", Wildcard.ANY_RUN, "[", Wildcard.ANY_ONE]
    assert like_pattern(parts) == "a!%b!_c!!\\'%[_"
    assert like_pattern([]) == ""


@pytest.mark.parametrize(
    ("product", "key"),
    [
        (Product.MYSQL, "(JSON_UNQUOTE(JSON_EXTRACT(attributes, %s)) COLLATE utf8mb4_0900_bin)"),
        (Product.MARIADB, "(JSON_VALUE(attributes, %s) COLLATE utf8mb4_nopad_bin)"),
    ],
)
def test_mysql_spells_attributes_and_lists_by_binds(product: Product, key: str) -> None:
    """Section 6, MY4: a path, a pattern and a list are values bound, and a key has the collation of its product."""
    rendered = WRITERS[product].render(
        And((Like(NAME, "a%"), In(N, tuple(range(9))), Compare(STEP, Operator.EQUAL, "a")))
    )
    assert rendered.text == f"({key} LIKE %s ESCAPE '!' AND {key} IN %s AND step = %s)"
    assert rendered.binds[:3] == ("$.name", "sa%", "$.n")
    assert isinstance(rendered.binds[3], list)
    assert rendered.binds[3][:3] == ["n1", "n25001", "n25002"]
