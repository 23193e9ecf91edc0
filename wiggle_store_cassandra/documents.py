"""Small versioned JSON documents, written by compare-and-set on the revision. Those of a kind lie in one partition."""

from __future__ import annotations

from wiggle_core.errors import AmbiguousStoreError, RevisionConflict
from wiggle_core.stores.store import Document
from wiggle_store_cassandra.connections import Connections

_KEY = "space = ? AND kind = ? AND name = ?"
_CREATE = (
    "INSERT INTO $document (revision, body, updated_at, space, kind, name) VALUES (1, ?, ?, ?, ?, ?) IF NOT EXISTS"
)
_REPLACE = f"UPDATE $document SET revision = ?, body = ?, updated_at = ? WHERE {_KEY} IF revision = ?"
_GET = f"SELECT kind, name, revision, body, updated_at FROM $document WHERE {_KEY}"
_LIST = "SELECT kind, name, revision, body, updated_at FROM $document WHERE space = ? AND kind = ?"
_DELETE = f"DELETE FROM $document WHERE {_KEY} IF EXISTS"


def put_document(connections: Connections, now: int, kind: str, key: str, body: str, *, revision: int | None) -> int:
    """Write a document if it has the revision named; the new one. Raises RevisionConflict."""
    if revision is not None:
        if not _is_written(connections, Document(kind, key, revision + 1, body, now)):
            raise RevisionConflict(kind, key)
        return revision + 1
    while True:  # each time that it is not written, somebody else's document was
        following = _revision(get_document(connections, kind, key)) + 1
        if _is_written(connections, Document(kind, key, following, body, now)):
            return following


def get_document(connections: Connections, kind: str, key: str) -> Document | None:
    """One document."""
    rows = connections.rows(_GET, (connections.place.space, kind, key))
    return Document(*rows[0]) if rows else None


def list_documents(connections: Connections, kind: str) -> list[Document]:
    """All documents of a kind, by key."""
    return [Document(*row) for row in connections.rows(_LIST, (connections.place.space, kind))]


def delete_document(connections: Connections, kind: str, key: str) -> bool:
    """Whether there was one."""
    return connections.applied([(_DELETE, (connections.place.space, kind, key))])


def _is_written(connections: Connections, wanted: Document) -> bool:
    """Write a document in place of the revision before it; False if there is another one."""
    try:
        return connections.applied([_writing(connections, wanted)])
    except AmbiguousStoreError as unanswered:
        found = _settled(connections, wanted)
        if _revision(found) == wanted.revision - 1:
            # What was sent may still be on its way. It is sent again: of two that are alike only one is applied.
            if connections.applied([_writing(connections, wanted)]):
                return True
            found = _settled(connections, wanted)
        if _revision(found) > wanted.revision:
            raise unanswered  # it may have been there, and have been written over
        return found == wanted


def _writing(connections: Connections, wanted: Document) -> tuple[str, tuple[object, ...]]:
    place = (connections.place.space, wanted.kind, wanted.key)
    if wanted.revision == 1:
        return _CREATE, (wanted.body, wanted.updated_at, *place)
    return _REPLACE, (wanted.revision, wanted.body, wanted.updated_at, *place, wanted.revision - 1)


def _settled(connections: Connections, wanted: Document) -> Document | None:
    """The document under that name, after what was begun has come to an end (CA3)."""
    rows = connections.serial_rows(_GET, (connections.place.space, wanted.kind, wanted.key))
    return Document(*rows[0]) if rows else None


def _revision(document: Document | None) -> int:
    return document.revision if document else 0
