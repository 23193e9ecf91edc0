"""`wiggle attributes`: what a declaration reads from contexts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, assert_never

import typer

from wiggle_core.cli.failures import InputError
from wiggle_core.cli.files import read_lines
from wiggle_core.cli.options import JsonOption
from wiggle_core.cli.output import print_json
from wiggle_core.criteria.instants import format_instant
from wiggle_core.criteria.tree import Value, ValueType, canonical_decimal
from wiggle_core.errors import TaskRejected
from wiggle_core.tasks.attributes import Attribute, Declaration

group = typer.Typer(help="Attributes: try a declaration on contexts.")


@group.callback()
def attributes() -> None:
    """Attributes: try a declaration on contexts."""


@group.command()
def extract(
    declare: Annotated[
        list[str],
        typer.Option(
            "--declare",
            metavar="NAME:TYPE:PATH",
            help="An attribute; the type is string, long, decimal, boolean or instant.",
        ),
    ],
    contexts: Annotated[
        str, typer.Option("--contexts", metavar="FILE", help="Contexts, one JSON document a line; - for stdin.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Print the attributes of each context: one JSON object a line, with the values as wire literals.

    What does not resolve or does not fit is left out. A line that is no JSON ends the command with code 2.
    """
    declaration = Declaration(_attribute(each) for each in declare)
    kinds = {attribute.name: attribute.type for attribute in declaration.attributes}
    for line in read_lines(contexts):
        try:
            found = declaration.extract(line.text()).values
        except TaskRejected as error:
            raise InputError(f"{line.place}: {error}") from error
        print_json(_literals(found, kinds))


def _attribute(text: str) -> Attribute:
    name, _, rest = text.partition(":")
    kind, _, path = rest.partition(":")
    if not path:
        raise InputError(f"--declare {text[:80]!r}: NAME:TYPE:PATH is expected")
    if kind not in list(ValueType):
        raise InputError(f"--declare {text[:80]!r}: no type {kind[:40]!r}; there are {', '.join(ValueType)}")
    return Attribute(name, ValueType(kind), path)


def _literals(values: Mapping[str, Value], kinds: Mapping[str, ValueType]) -> dict[str, object]:
    return {name: _literal(value, kinds[name]) for name, value in values.items()}


def _literal(value: Value, kind: ValueType) -> object:
    """The value by its declared type. A LONG is a plain number at any size, as in the public cases."""
    match value:
        case bool() | str():
            return value
        case datetime():
            return {"instant": format_instant(value)}
        case int() | Decimal():
            return {"decimal": canonical_decimal(Decimal(value))} if kind is ValueType.DECIMAL else int(value)
        case _:
            assert_never(value)
