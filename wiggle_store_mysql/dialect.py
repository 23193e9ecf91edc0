"""How MySQL and MariaDB spell the leaves of a predicate.

Columns have an exact collation: binary, without padding, in the order of code points (MY4). Attributes are JSON, and
JSON functions answer in utf8mb4_bin, which pads; so the collation stands on the expression, and no connection's
collation can replace it. Text is compared with text only and nothing is cast (MY5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wiggle_core.criteria.tree import Wildcard
from wiggle_core.stores.sql.writer import Bind, LikeParts, SqlDialect, SqlWriter
from wiggle_store_mysql.place import Product

_LIKE_WILDCARDS = {Wildcard.ANY_RUN: "%", Wildcard.ANY_ONE: "_"}
_LIKE_SPECIALS = str.maketrans({"%": "!%", "_": "!_", "!": "!!"})


def like_pattern(parts: LikeParts) -> str:
    """A pattern as LIKE has it with `!` as its escape: the backslash depends on NO_BACKSLASH_ESCAPES (MY9)."""
    return "".join(
        _LIKE_WILDCARDS[part] if isinstance(part, Wildcard) else part.translate(_LIKE_SPECIALS) for part in parts
    )


def _attribute(collation: str) -> Callable[[str, Bind], str]:
    return lambda name, bind: f"(JSON_VALUE(attributes, {bind(f'$.{name}')}) COLLATE {collation})"


def _like(expression: str, parts: LikeParts, bind: Bind) -> str:
    return f"{expression} LIKE {bind(like_pattern(parts))} ESCAPE '!'"


def _writer(product: Product) -> SqlWriter:
    return SqlWriter(
        SqlDialect(
            attribute=_attribute(product.collation),
            like=_like,
            placeholder=lambda _: "%s",
            max_binds=1_000_000,
        )
    )


WRITERS: Mapping[Product, SqlWriter] = {product: _writer(product) for product in Product}
"""What renders predicates for each product."""
