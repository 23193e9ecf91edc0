"""Small versioned JSON documents, written by compare-and-set on the revision, each in one round trip."""

from __future__ import annotations

from pymysql import IntegrityError
from pymysql.constants import ER

from wiggle_core.errors import RevisionConflict
from wiggle_core.stores.store import Document
from wiggle_store_mysql.connections import Connections
from wiggle_store_mysql.moment import moment

# Not INSERT IGNORE: that would cut a key that is too long.
_CREATE = "INSERT INTO $document (kind, name, revision, body, updated_at) VALUES (%s, %s, 1, %s, {now})"
_PUT = f"{_CREATE} ON DUPLICATE KEY UPDATE revision = revision + 1, body = %s, updated_at = {{now}}"
_REPLACE = """
    UPDATE $document SET revision = revision + 1, body = %s, updated_at = {now}
    WHERE kind = %s AND name = %s AND revision = %s
"""
_REVISION = "SELECT revision FROM $document WHERE kind = %s AND name = %s"
_GET = "SELECT kind, name, revision, body, updated_at FROM $document WHERE kind = %s AND name = %s"
_LIST = "SELECT kind, name, revision, body, updated_at FROM $document WHERE kind = %s ORDER BY name"
_DELETE = "DELETE FROM $document WHERE kind = %s AND name = %s"


def put_document(
    connections: Connections, now: int | None, kind: str, key: str, body: str, *, revision: int | None
) -> int:
    """Write a document if it has the revision named; the new one. Raises RevisionConflict."""
    if revision is None:
        return _put(connections, now, kind, key, body)
    is_written = (
        _replace(connections, now, (body, kind, key, revision))
        if revision
        else _create(connections, now, (kind, key, body))
    )
    if not is_written:
        raise RevisionConflict(kind, key)
    return revision + 1


def _put(connections: Connections, now: int | None, kind: str, key: str, body: str) -> int:
    """The row is ours until the end of the transaction, and with it the revision that is read behind."""
    put = _PUT.format(now=moment(now)), (kind, key, body, body)
    with connections.transaction() as session:
        _, found = session.commit([put, (_REVISION, (kind, key))])
    return int(found.rows[0][0])


def _create(connections: Connections, now: int | None, binds: tuple[str, str, str]) -> bool:
    with connections.changing() as session:
        try:
            session.run(_CREATE.format(now=moment(now)), binds)
        except IntegrityError as error:
            if error.args[0] != ER.DUP_ENTRY:
                raise
            return False
    return True


def _replace(connections: Connections, now: int | None, binds: tuple[str, str, str, int]) -> bool:
    with connections.changing() as session:
        return session.run(_REPLACE.format(now=moment(now)), binds) > 0


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
