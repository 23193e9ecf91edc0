"""Small versioned JSON documents, written by compare-and-set on the revision, each in one statement."""

from __future__ import annotations

from wiggle_core.errors import RevisionConflict
from wiggle_core.stores.store import Document
from wiggle_store_postgres.connections import Connections
from wiggle_store_postgres.moment import moment

_VALUES = f"VALUES ($1, $2, 1, $3, {moment('$4')})"
_CREATE = f"""
    INSERT INTO $schema.document (kind, key, revision, body, updated_at) {_VALUES}
    ON CONFLICT (kind, key) DO NOTHING RETURNING revision
"""
_PUT = f"""
    INSERT INTO $schema.document AS present (kind, key, revision, body, updated_at) {_VALUES}
    ON CONFLICT (kind, key) DO UPDATE
    SET revision = present.revision + 1, body = excluded.body, updated_at = excluded.updated_at
    RETURNING revision
"""
_REPLACE = f"""
    UPDATE $schema.document SET revision = revision + 1, body = $3, updated_at = {moment("$4")}
    WHERE kind = $1 AND key = $2 AND revision = $5::bigint
    RETURNING revision
"""
_GET = "SELECT kind, key, revision, body, updated_at FROM $schema.document WHERE kind = $1 AND key = $2"
_LIST = "SELECT kind, key, revision, body, updated_at FROM $schema.document WHERE kind = $1 ORDER BY key"
_DELETE = "DELETE FROM $schema.document WHERE kind = $1 AND key = $2"


def put_document(
    connections: Connections, now: int | None, kind: str, key: str, body: str, *, revision: int | None
) -> int:
    """Write a document if it has the revision named; the new one. Raises RevisionConflict."""
    statement = _PUT if revision is None else _REPLACE if revision else _CREATE
    binds = (kind, key, body, now, *((revision,) if revision else ()))
    with connections.changing() as session:
        written = session.rows(statement, binds)
    if not written:
        raise RevisionConflict(kind, key)
    return int(written[0][0])


def get_document(connections: Connections, kind: str, key: str) -> Document | None:
    """One document."""
    with connections.reading() as session:
        rows = session.rows(_GET, (kind, key))
    return Document(*rows[0]) if rows else None


def list_documents(connections: Connections, kind: str) -> list[Document]:
    """All documents of a kind, by key."""
    with connections.reading() as session:
        return [Document(*row) for row in session.rows(_LIST, (kind,))]


def delete_document(connections: Connections, kind: str, key: str) -> bool:
    """Whether there was one."""
    with connections.changing() as session:
        return session.run(_DELETE, (kind, key)) > 0
