"""What workflows declare about their attributes, kept as documents so that every node extracts alike (A1)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from wiggle_core.criteria.check import MAX_LONG, MIN_LONG, check_text
from wiggle_core.criteria.tree import Value, ValueType
from wiggle_core.engine.misses import Misses
from wiggle_core.errors import CriteriaError, DeclarationError, RevisionConflict
from wiggle_core.stores.store import Store
from wiggle_core.tasks.attributes import Attribute, Declaration

KIND = "declaration"

_Key: TypeAlias = tuple[str, int]


class Declarations:
    """The declarations of one store. One that was found is kept, for it never changes; a missing one is asked for
    again by each call, so that what another process declares is seen at once."""

    def __init__(self, store: Store, misses: Misses) -> None:
        self._store = store
        self._known: dict[_Key, Declaration] = {}
        self._misses = misses

    def declare(self, workflow: str, version: int, attributes: Iterable[Attribute]) -> None:
        """Store a declaration; the same again is a no-op. Raises DeclarationError for another one of that version."""
        _check_name(workflow, version)
        wanted = Declaration(attributes)
        try:
            self._store.put_document(KIND, _document_key(workflow, version), _dump(workflow, version, wanted), 0)
        except RevisionConflict:
            self._compare(workflow, version, wanted)
        self._known[workflow, version] = wanted

    def _compare(self, workflow: str, version: int, wanted: Declaration) -> None:
        present = self.find(workflow, version)
        if present is None or set(present.attributes) != set(wanted.attributes):
            raise DeclarationError(
                f"workflow {workflow!r} version {version} is declared with other attributes, by which its tasks were "
                f"read: declare a new version"
            )

    def find(self, workflow: str, version: int) -> Declaration | None:
        """The declaration of a workflow version, if there is one."""
        known = self._known.get((workflow, version))
        if known is not None:
            return known
        document = self._store.get_document(KIND, _document_key(workflow, version))
        if document is None:
            return None
        found = self._known[workflow, version] = _load(document.body)
        return found

    def reading(self) -> Reading:
        """The view of one call, or one batch."""
        return Reading(self, self._misses)


class Reading:
    """One call's view of the declarations, in which a missing one is asked for once."""

    __slots__ = ("_declarations", "_found", "_misses")

    def __init__(self, declarations: Declarations, misses: Misses) -> None:
        self._declarations = declarations
        self._misses = misses
        self._found: dict[_Key, Declaration | None] = {}

    def attributes(
        self, workflow: str | None, version: int | None, payload: str, present: Mapping[str, Value] | None = None
    ) -> Mapping[str, Value]:
        """The attributes to store with a payload's JSON text (A2); `present` ones stay where nothing is declared.

        What is declared and absent is counted (A3).
        """
        if workflow is None or version is None:
            return present or {}
        key = workflow, version
        if key not in self._found:
            self._found[key] = self._declarations.find(workflow, version)
        declaration = self._found[key]
        if declaration is None:
            return present or {}
        extracted = declaration.extract(payload)
        if extracted.misses:
            self._misses.add(workflow, version, extracted.misses)
        return extracted.values


def _check_name(workflow: object, version: object) -> None:
    try:
        if not check_text(workflow):
            raise DeclarationError("a workflow needs a name")
    except CriteriaError as error:
        raise DeclarationError(f"workflow: {error.message}") from None
    if not isinstance(version, int) or isinstance(version, bool) or not MIN_LONG <= version <= MAX_LONG:
        raise DeclarationError("version: a whole number of 64 bits is expected")


def _document_key(workflow: str, version: int) -> str:
    # The number comes first: it holds no colon, so no two workflows share a key, whatever their names hold.
    return f"{version}:{workflow}"


def _dump(workflow: str, version: int, declaration: Declaration) -> str:
    rows = [{"name": each.name, "type": each.type.value, "path": each.path} for each in declaration.attributes]
    return json.dumps({"workflow": workflow, "version": version, "attributes": rows}, ensure_ascii=False)


def _load(body: str) -> Declaration:
    rows = json.loads(body)["attributes"]
    return Declaration(Attribute(row["name"], ValueType(row["type"]), row["path"]) for row in rows)
