"""`wiggle db`: create or upgrade the schema, check it and the data, print its statements and a role's grants."""

from __future__ import annotations

from typing import Annotated

import typer

from wiggle_core.cli.failures import ExitCode, InputError
from wiggle_core.cli.options import JsonOption, StoreOption, opened_store, shown_url
from wiggle_core.cli.output import print_json, print_line, print_raw
from wiggle_core.stores.store import Advises, Grants

group = typer.Typer(help="The database: upgrade or check its schema, print the statements.")


@group.command()
def upgrade(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Create the schema, or bring it to this version. Safe to run twice, and by two at once."""
    with opened_store(store) as opened:
        applied = opened.migrate()
    if as_json:
        print_json({"applied": applied})
        return
    for name in applied:
        print_line(f"applied {name}")
    print_line(f"{shown_url(store)} is up to date")


@group.command()
def check(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check the schema, then the stored data. Exit code 1 when the data has findings, 3 when the schema is wrong.

    Where a server's settings may cost tasks, notes say so, which are no findings.
    """
    with opened_store(store) as opened:
        opened.verify()
        findings = opened.audit()
        notes = opened.advice() if isinstance(opened, Advises) else None
    if as_json:
        print_json({"ok": not findings, "findings": findings} | ({} if notes is None else {"notes": notes}))
    else:
        for finding in findings:
            print_line(finding)
        for note in notes or ():
            print_line(f"note: {note}")
        print_line(f"findings: {len(findings)}" if findings else f"{shown_url(store)} is in order")
    if findings:
        raise typer.Exit(ExitCode.NO)


@group.command()
def sql(store: StoreOption = None, as_json: JsonOption = False) -> None:
    """Print the statements that `upgrade` runs on an empty database. Connects to nothing."""
    with opened_store(store) as opened:
        statements = opened.schema_sql()
    if as_json:
        print_json({"sql": statements})
    else:
        print_raw(statements)


@group.command()
def roles(
    role: Annotated[str, typer.Option("--role", help="The role that the application connects as.")] = "wiggle_app",
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what to grant to a role that works with the store but owns nothing. Connects to nothing."""
    with opened_store(store) as opened:
        if not isinstance(opened, Grants):
            raise InputError(f"{shown_url(store)} has no roles")
        statements = opened.role_sql(role)
    if as_json:
        print_json({"sql": statements})
    else:
        print_raw(statements)
