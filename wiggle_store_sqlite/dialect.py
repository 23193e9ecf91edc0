"""How SQLite spells the leaves of a predicate. LIKE is GLOB, since SQLite's own LIKE ignores ASCII case (SQ2)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from wiggle_core.criteria.tree import Wildcard
from wiggle_core.stores.sql.writer import Bind, LikeParts, SqlDialect, SqlWriter

_GLOB_WILDCARDS = {Wildcard.ANY_RUN: "*", Wildcard.ANY_ONE: "?"}
_GLOB_SPECIALS = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})


def glob_pattern(parts: LikeParts) -> str:
    """A LIKE pattern as GLOB's: `*` any run, `?` one code point, and what GLOB treats specially as a class of one."""
    return "".join(
        _GLOB_WILDCARDS[part] if isinstance(part, Wildcard) else part.translate(_GLOB_SPECIALS) for part in parts
    )


def _attribute(name: str, bind: Bind) -> str:
    return f"json_extract(attributes, {bind(f'$.{name}')})"


def _like(expression: str, parts: LikeParts, bind: Bind) -> str:
    # The plus hides from SQLite that the pattern is a bind: it would compile the statement anew at each execution, in
    # search of an index range (which was measured to cost 50 us).
    return f"{expression} GLOB +{bind(glob_pattern(parts))}"


def _members(values: Sequence[object], bind: Bind) -> str:
    """One bind for the whole list: 32 criteria of 100 lists of 200 values are far beyond what a statement may bind."""
    return f"(SELECT value FROM json_each({bind(json.dumps(values))}))"


WRITER = SqlWriter(SqlDialect(attribute=_attribute, like=_like, members=_members))
