"""`wiggle store-contract`: what a store has to keep, as the checks of the kit say it, and what lanes ask of it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from wiggle_core.cli.failures import InputError
from wiggle_core.cli.options import JsonOption
from wiggle_core.cli.output import print_json, print_line, print_table

if TYPE_CHECKING:
    from wiggle_core.conformance.contract import Contract

_NEEDED = ("pytest", "hypothesis")


def store_contract(as_json: JsonOption = False) -> None:
    """Print what a store has to keep: every check of the conformance kit, under each rule that it proves; and the
    methods of lanes, for a store that has them."""
    contract = _read()
    if as_json:
        print_json(_as_object(contract))
        return
    for title, rows in _tables(contract).items():
        print_table(("rule", "promise", "check"), rows, title)
    methods = [(each.name, each.promise, each.signature) for each in contract.lanes]
    print_table(("method", "promise", "call"), methods, "The `Lanes` protocol, for a store whose `lanes` is not None")
    unnamed = ", ".join(contract.unnamed()) or "none"
    print_line(f"{len(contract.checks)} checks; rules that none of them names: {unnamed}")


def _read() -> Contract:
    try:
        # Not before it is asked for: the kit needs pytest, which is an extra.
        from wiggle_core.conformance.contract import read_contract  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise InputError(f"the conformance kit needs {error.name}: pip install 'wiggle-core[test]'") from error
    return read_contract()


def _as_object(contract: Contract) -> dict[str, object]:
    rules = {
        rule: [{"check": check.name, "promise": check.promise} for check in checks]
        for rule, checks in contract.by_rule().items()
    }
    return {"rules": rules, "unnamed": contract.unnamed(), "lanes": [asdict(each) for each in contract.lanes]}


def _tables(contract: Contract) -> dict[str, list[tuple[str, str, str]]]:
    """Rows by what the rules are about; a rule stands at the first of its checks."""
    from wiggle_core.conformance.contract import family  # noqa: PLC0415  # as above

    tables: dict[str, list[tuple[str, str, str]]] = {}
    for rule, checks in contract.by_rule().items():
        rows = tables.setdefault(family(rule), [])
        rows += [(rule if check is checks[0] else "", check.promise, check.name) for check in checks]
    return tables
