"""Small versioned JSON documents, written by compare-and-set on the revision."""

from __future__ import annotations

from wiggle_core.errors import RevisionConflict
from wiggle_core.stores.store import Document
from wiggle_core.tasks.task import Clock
from wiggle_store_sqlite.connections import Connections

_REVISION = "SELECT revision FROM document WHERE kind = ? AND key = ?"
_PUT = """
    INSERT INTO document (kind, key, revision, body, updated_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (kind, key) DO UPDATE
    SET revision = excluded.revision, body = excluded.body, updated_at = excluded.updated_at
"""
_GET = "SELECT kind, key, revision, body, updated_at FROM document WHERE kind = ? AND key = ?"
_LIST = "SELECT kind, key, revision, body, updated_at FROM document WHERE kind = ? ORDER BY key"
_DELETE = "DELETE FROM document WHERE kind = ? AND key = ?"


def put_document(
    connections: Connections, clock: Clock, kind: str, key: str, body: str, *, revision: int | None
) -> int:
    """Write a document if it has the revision named; the new one. Raises RevisionConflict."""
    with connections.writing() as connection:
        rows = connection.execute(_REVISION, (kind, key)).fetchall()
        present = int(rows[0][0]) if rows else 0
        if revision not in (None, present):
            raise RevisionConflict(kind, key)
        connection.execute(_PUT, (kind, key, present + 1, body, clock()))
    return present + 1


def get_document(connections: Connections, kind: str, key: str) -> Document | None:
    """One document."""
    with connections.reading() as connection:
        rows = connection.execute(_GET, (kind, key)).fetchall()
    return Document(*rows[0]) if rows else None


def list_documents(connections: Connections, kind: str) -> list[Document]:
    """All documents of a kind, by key."""
    with connections.reading() as connection:
        return [Document(*row) for row in connection.execute(_LIST, (kind,)).fetchall()]


def delete_document(connections: Connections, kind: str, key: str) -> bool:
    """Whether there was one."""
    with connections.writing() as connection:
        return connection.execute(_DELETE, (kind, key)).rowcount > 0
