"""How MySQL and MariaDB spell the leaves of a predicate.

Columns have an exact collation: binary, without padding, in the order of code points (MY4). Attributes are JSON, and
JSON functions answer in utf8mb4_bin, which pads; so the collation stands on the expression, where no collation of a
connection or a literal can replace it. Texts are compared with texts and numbers with numbers, and nothing is cast, so
no stored value can make a comparison fail (MY5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wiggle_core.criteria.tree import Wildcard
from wiggle_core.stores.sql.writer import Bind, LikeParts, SqlDialect, SqlWriter
from wiggle_store_mysql.place import Product

_LIKE_WILDCARDS = {Wildcard.ANY_RUN: "%", Wildcard.ANY_ONE: "_"}
_LIKE_SPECIALS = str.maketrans({"%": "!%", "_": "!_", "!": "!!"})

# One of five attributes, over 300,000 tasks: JSON_VALUE was measured at 0.6-0.8 us and JSON_UNQUOTE(JSON_EXTRACT()) at
# 1.0-1.3 us on MariaDB 10.11, and both at 0.5-0.7 us on MySQL 9.7; a column takes 0.03 us. MySQL has JSON_VALUE since
# 8.0.21 only, and cuts what it answers at 512 characters.
_ATTRIBUTE = {
    Product.MYSQL: "(JSON_UNQUOTE(JSON_EXTRACT(attributes, {path})) COLLATE {collation})",
    Product.MARIADB: "(JSON_VALUE(attributes, {path}) COLLATE {collation})",
}


def like_pattern(parts: LikeParts) -> str:
    """A pattern as LIKE has it with `!` for its escape: whether a backslash is one hangs on the session (MY9)."""
    return "".join(
        _LIKE_WILDCARDS[part] if isinstance(part, Wildcard) else part.translate(_LIKE_SPECIALS) for part in parts
    )


def _like(expression: str, parts: LikeParts, bind: Bind) -> str:
    return f"{expression} LIKE {bind(like_pattern(parts))} ESCAPE '!'"


def _members(values: Sequence[object], bind: Bind) -> str:
    """One bind for the whole list, so that texts differ in shape only: the driver writes brackets around it.

    200 values, the most that there are, are tested like one. MariaDB would make a table to join of 1,000.
    """
    return bind(list(values))


def _writer(product: Product) -> SqlWriter:
    def attribute(name: str, bind: Bind) -> str:
        return _ATTRIBUTE[product].format(path=bind(f"$.{name}"), collation=product.collation)

    return SqlWriter(
        SqlDialect(
            attribute=attribute,
            like=_like,
            placeholder=lambda _: "%s",
            members=_members,
            # The servers do not count them, since the driver writes them into the text. So many of 256 bytes each are
            # what fits into the 16 MiB that MariaDB takes at once unless told otherwise.
            max_binds=65_000,
        )
    )


WRITERS: Mapping[Product, SqlWriter] = {product: _writer(product) for product in Product}
"""What renders predicates for each product."""
