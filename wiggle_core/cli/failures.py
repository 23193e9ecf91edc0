"""From an exception to an exit code and one line: what was wrong, and what to do."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from enum import IntEnum
from typing import NamedTuple

import typer

from wiggle_core.errors import StoreError, StoreNotInstalled, WiggleError
from wiggle_core.stores.registry import hide_password

DEBUG_VARIABLE = "WIGGLE_DEBUG"


class ExitCode(IntEnum):
    """What `wiggle` answers the shell; the package's docstring explains each."""

    OK = 0
    NO = 1
    WRONG_INPUT = 2
    STORE_TROUBLE = 3
    BUG = 70
    INTERRUPTED = 130
    READER_GONE = 141


class InputError(WiggleError):
    """A file, a line or an option that cannot be used. The message starts with its place, where there is one."""


class Failure(NamedTuple):
    """How a command ends; without a message, in silence."""

    code: ExitCode
    message: str


def is_debugging() -> bool:
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


def configure_log(level: int | None = None) -> None:
    """Send the log to stderr from `level` on; without one nowhere, since driver errors in it may hold SQL text."""
    if is_debugging():
        level = logging.DEBUG
    if level is not None:
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    elif not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.NullHandler())


def failure_of(error: BaseException) -> Failure:
    """The code and the line for whatever a command raised. With WIGGLE_DEBUG=1 the traceback is printed too."""
    if is_debugging():
        sys.stderr.write(hide_password("".join(traceback.format_exception(error))))
    code, message = _judge(error)
    # Usage errors repeat what was typed, a URL in the wrong place too.
    return Failure(code, hide_password("; ".join((message, *getattr(error, "__notes__", ())))) if message else "")


def _judge(error: BaseException) -> Failure:
    match error:
        case typer.TyperException():
            return Failure(ExitCode.WRONG_INPUT, _usage(error))
        case StoreError():
            has_cause = error.__cause__ is not None and not is_debugging()
            hint = f"; {DEBUG_VARIABLE}=1 shows the cause" if has_cause else ""
            return Failure(ExitCode.STORE_TROUBLE, f"{error}{hint}")
        case StoreNotInstalled():
            return Failure(ExitCode.STORE_TROUBLE, str(error))
        case WiggleError():
            return Failure(ExitCode.WRONG_INPUT, str(error))
        case KeyboardInterrupt() | typer.Abort():
            return Failure(ExitCode.INTERRUPTED, "interrupted")
        case BrokenPipeError():
            return Failure(ExitCode.READER_GONE, "")
        case OSError():
            return Failure(ExitCode.STORE_TROUBLE, f"{error.filename or 'output'}: {error.strerror or error}")
        case _:
            # Its own text may be SQL or hold a secret, so only the type is named.
            kind = type(error).__name__
            return Failure(ExitCode.BUG, f"unexpected {kind}, a bug in wiggle: {DEBUG_VARIABLE}=1 shows the traceback")


def _usage(error: typer.TyperException) -> str:
    message = error.format_message().removesuffix(".")
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message}; see `{context.command_path} --help`"
