"""How PostgreSQL spells the leaves of a predicate. Everything compares in the collation "C", whose order of UTF-8
bytes is the order of code points (PG10); no value is cast, so no stored value can make a comparison fail (PG9).

Attributes are one `jsonb` column: reading a key out of five was measured at 0.15 us, out of `json` at 0.7 us.
"""

from __future__ import annotations

from collections.abc import Sequence

from wiggle_core.criteria.tree import Wildcard
from wiggle_core.stores.sql.writer import Bind, LikeParts, SqlDialect, SqlWriter

_LIKE_WILDCARDS = {Wildcard.ANY_RUN: "%", Wildcard.ANY_ONE: "_"}
_LIKE_SPECIALS = str.maketrans({"%": "\\%", "_": "\\_", "\\": "\\\\"})


def like_pattern(parts: LikeParts) -> str:
    """A pattern as PostgreSQL's LIKE has it, escaped by its default, the backslash."""
    return "".join(
        _LIKE_WILDCARDS[part] if isinstance(part, Wildcard) else part.translate(_LIKE_SPECIALS) for part in parts
    )


def _attribute(name: str, bind: Bind) -> str:
    return f'((attributes ->> {bind(name)}::text) COLLATE "C")'


def _like(expression: str, parts: LikeParts, bind: Bind) -> str:
    return f"{expression} LIKE {bind(like_pattern(parts))}"


def _members(values: Sequence[object], bind: Bind) -> str:
    """One bind for the whole list: 32 criteria of 100 lists of 200 values are far beyond what a statement may bind."""
    return f"({bind(list(values))}::{'text' if isinstance(values[0], str) else 'bigint'}[])"


WRITER = SqlWriter(
    SqlDialect(
        attribute=_attribute,
        like=_like,
        placeholder="${}".format,
        members=_members,
        member_test="= ANY",
        max_binds=65_000,
    )
)
