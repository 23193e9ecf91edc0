"""Checks of documents: small JSON texts, written by compare-and-set on their revision."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wiggle_core.conformance.plugin import ManualClock
from wiggle_core.errors import RevisionConflict
from wiggle_core.stores.store import Document, Store

HOSTILE_KEYS = [
    "",
    "a",
    "A",
    "a ",
    "o'brien",
    '"',
    "a/b",
    "%",
    "_",
    "\\",
    "é",
    "e\u0301",
    "\U0001f600",
    "\uff5e",
    "-- x",
]


def test_revisions_grow_from_one(store: Store, clock: ManualClock) -> None:
    """Section 6: each write of a document gives the next revision, from 1, and the time of the write."""
    assert store.put_document("worker", "w1", '{"a":1}') == 1
    clock.move(5)
    assert store.put_document("worker", "w1", '{"a":2}') == 2
    assert store.put_document("worker", "w1", '{"a":3}', 2) == 3
    assert store.get_document("worker", "w1") == Document("worker", "w1", 3, '{"a":3}', clock.now)


def test_a_write_over_a_newer_revision_is_refused(store: Store) -> None:
    """Section 6: a write that names another revision than the present one raises RevisionConflict, changing nothing."""
    store.put_document("worker", "w1", "1")
    store.put_document("worker", "w1", "2")
    before = store.get_document("worker", "w1")
    for revision in (0, 1, 3):
        with pytest.raises(RevisionConflict) as refused:
            store.put_document("worker", "w1", "x", revision)
        assert (refused.value.kind, refused.value.key) == ("worker", "w1")
    assert store.get_document("worker", "w1") == before


def test_revision_zero_is_for_a_new_document(store: Store) -> None:
    """Section 6: revision 0 says that there is none yet; any other revision needs a document."""
    with pytest.raises(RevisionConflict):
        store.put_document("worker", "w1", "1", 1)
    assert store.get_document("worker", "w1") is None
    assert store.put_document("worker", "w1", "1", 0) == 1
    with pytest.raises(RevisionConflict):
        store.put_document("worker", "w1", "1", 0)


def test_documents_are_listed_by_kind_in_key_order(store: Store) -> None:
    """Section 6, C4: `list_documents` gives one kind's documents, ordered by the code points of their keys."""
    for number, key in enumerate(HOSTILE_KEYS):
        store.put_document("worker", key, str(number), 0)
    store.put_document("Worker", "other", "x")
    listed = store.list_documents("worker")
    assert [document.key for document in listed] == sorted(HOSTILE_KEYS)
    assert {document.key: document.body for document in listed} == {key: str(n) for n, key in enumerate(HOSTILE_KEYS)}
    assert store.list_documents("none") == []


def test_a_deleted_document_is_gone(store: Store) -> None:
    """Section 6: deleting says whether there was a document; afterwards it can be written as a new one."""
    store.put_document("worker", "w1", "1")
    store.put_document("worker", "w2", "2")
    assert store.delete_document("worker", "w1")
    assert not store.delete_document("worker", "w1")
    assert not store.delete_document("other", "w2")
    assert store.get_document("worker", "w1") is None
    assert [document.key for document in store.list_documents("worker")] == ["w2"]
    assert store.put_document("worker", "w1", "3", 0) == 1


def test_bodies_come_back_as_written(store: Store) -> None:
    """Section 6: a document's body is kept to the last character."""
    body = '{"text": "it\'s %_\\\\ \u00e9e\u0301 \U0001f600\\u0000", "n": 1.10}' + " " * 50_000
    store.put_document("lane", "k", body)
    document = store.get_document("lane", "k")
    assert document is not None
    assert document.body == body


def test_another_handle_sees_a_written_document(store: Store, open_handle: Callable[[], Store]) -> None:
    """Section 6: what one handle wrote, another reads, and its compare-and-set sees the same revision."""
    other = open_handle()
    store.put_document("worker", "w1", "1")
    assert other.put_document("worker", "w1", "2", 1) == 2
    with pytest.raises(RevisionConflict):
        store.put_document("worker", "w1", "3", 1)
