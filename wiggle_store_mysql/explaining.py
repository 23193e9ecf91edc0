"""How a claim is carried out: what it asks first, run and rolled back, as the server tells of it (N5)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from wiggle_core.stores.store import Explanation, Route
from wiggle_store_mysql.claims import first_statements
from wiggle_store_mysql.connections import Connections, Row, Session
from wiggle_store_mysql.place import Product, in_place

_PLAN = {Product.MYSQL: "EXPLAIN FORMAT=TRADITIONAL {}", Product.MARIADB: "EXPLAIN {}"}
_COLUMNS = {
    Product.MYSQL: ("id", "select_type", "table", "", "type", "", "key", "key_len", "", "rows", "", "Extra"),
    Product.MARIADB: ("id", "select_type", "table", "type", "", "key", "key_len", "", "rows", "Extra"),
}
"""The columns of a plan; what has no name here is left out."""

# A condition that is tested in the storage engine would hide the rows that it leaves out: neither product counts them.
_WHOLE = "optimizer_switch='index_condition_pushdown=off'"
_ANALYSIS = {
    Product.MYSQL: f"EXPLAIN ANALYZE SELECT /*+ SET_VAR({_WHOLE}) */ {{}}",
    Product.MARIADB: f"SET STATEMENT {_WHOLE} FOR ANALYZE FORMAT=JSON SELECT {{}}",
}
_COUNTED = ("task", "head")
"""What claims call tasks and the rows of a lane."""
_SCAN = re.compile(r"-> .*? on (\w+)\b.*\(actual time=\S+ rows=(\S+) loops=(\d+)\)")


def explain(connections: Connections, now: int | None, route: Route, limit: int) -> Explanation:
    """The statements by which a claim by this route finds its tasks, and what the server did for them. Nothing stays
    claimed."""
    texts: list[str] = []
    binds: list[object] = []
    plan: list[str] = []
    rows_read = 0.0
    with connections.rolled_back() as session:
        for statement, values in first_statements(session.server.product, (route,), limit):
            text = statement.strip()
            texts.append(in_place(text, connections.place))
            binds += values
            plan += _plan(session, text, values)
            rows_read += _rows_read(session, text, values)
    return Explanation(";\n".join(texts), tuple(binds), tuple(plan), round(rows_read))


def _plan(session: Session, text: str, binds: Sequence[object]) -> Iterator[str]:
    product = session.server.product
    for row in session.rows(_PLAN[product].format(text), binds):
        yield " ".join(
            f"{name}={value}"
            for name, value in zip(_COLUMNS[product], row, strict=True)
            if name and value not in (None, "")
        )


def _rows_read(session: Session, text: str, binds: Sequence[object]) -> float:
    """The rows of tasks and of lanes that a statement reads, those included that a test then left out."""
    product = session.server.product
    analysis = _ANALYSIS[product].format(text.removeprefix("SELECT"))
    scans = _SCANS[product](session.rows(analysis, binds))
    return sum(rows * loops for name, rows, loops in scans if name in _COUNTED)


_Scan = tuple[str, float, float]
"""A table, how many rows of it one loop read on average, and how many loops there were."""


def _scans_of_tree(rows: Sequence[Row]) -> Iterator[_Scan]:
    for name, read, loops in _SCAN.findall(rows[0][0]):
        yield name, float(read), float(loops)


def _scans_of_json(rows: Sequence[Row]) -> Iterator[_Scan]:
    return _tables(json.loads(rows[0][0]))


def _tables(node: Any) -> Iterator[_Scan]:  # Any: whatever the JSON holds
    if isinstance(node, dict):
        if "table_name" in node:
            yield node["table_name"], node.get("r_rows") or 0.0, node.get("r_loops") or 0.0
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _tables(each)


_SCANS = {Product.MYSQL: _scans_of_tree, Product.MARIADB: _scans_of_json}
