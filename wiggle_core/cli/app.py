"""The commands put together, and `run`, which turns whatever happens in one into an exit code and one line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from io import TextIOWrapper
from typing import Annotated

import typer

from wiggle_core import cli
from wiggle_core.cli import attributes, criteria, db, lanes, task
from wiggle_core.cli.backlog import backlog
from wiggle_core.cli.contract import store_contract
from wiggle_core.cli.demo import demo
from wiggle_core.cli.enqueue import enqueue
from wiggle_core.cli.failures import ExitCode, configure_log, failure_of
from wiggle_core.cli.new_store import new_store
from wiggle_core.cli.output import print_error, print_line
from wiggle_core.cli.plugins import plugins
from wiggle_core.cli.worker import worker


def _exit_codes() -> str:
    """The table of exit codes in the package's docstring, a paragraph each so that the help keeps the lines."""
    lines = (cli.__doc__ or "").splitlines()
    return "\n\n".join(["Exit codes:", *(line.strip() for line in lines if line.startswith("    "))])


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print_line(f"wiggle {metadata.version('wiggle-core')}")
        raise typer.Exit


app = typer.Typer(
    name="wiggle",
    epilog=_exit_codes(),
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def wiggle(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_show_version)] = False,
) -> None:
    """Criteria-query routing of heterogeneous work, on your own database."""


app.command()(demo)
app.add_typer(db.group, name="db")
app.command()(plugins)
app.add_typer(criteria.group, name="criteria")
app.add_typer(attributes.group, name="attributes")
app.command()(enqueue)
app.command()(backlog)
app.add_typer(task.group, name="task")
app.add_typer(lanes.group, name="lanes")
app.command()(worker)
app.command()(store_contract)
app.command()(new_store)


def run(arguments: Sequence[str]) -> int:
    """Run one command, or show the help without one, and return the exit code. Raises nothing."""
    _write_utf8()
    configure_log()
    try:
        code = _invoke(list(arguments) or ["--help"])
        sys.stdout.flush()
    except BaseException as error:
        return _end(error, as_json="--json" in arguments)
    return code


def _invoke(arguments: list[str]) -> int:
    # Not `app()`: that one has exit codes and messages of its own for what goes wrong.
    command = typer.main.get_command(app)
    try:
        with command.make_context("wiggle", arguments) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return ExitCode.OK


def _end(error: BaseException, *, as_json: bool) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else ExitCode.BUG
    code, message = failure_of(error)
    try:
        if message:
            print_error(message, as_json=as_json)
        sys.stdout.flush()
    except OSError:
        code = ExitCode.READER_GONE if code is ExitCode.OK else code
        _drop_output()
    if code is ExitCode.READER_GONE:
        _drop_output()
    return code


def _write_utf8() -> None:
    """Output is UTF-8 wherever it goes, so that no text is beyond it; a lone surrogate is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _drop_output() -> None:
    """Nobody reads what is left in the buffer; without this the interpreter complains of it as it exits."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
