"""`wiggle worker`: run a worker that a user's module defines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from wiggle_core.cli.failures import InputError, configure_log
from wiggle_core.cli.options import JsonOption, StoreOption, opened_engine
from wiggle_core.cli.output import print_json, print_line
from wiggle_core.engine.engine import Engine
from wiggle_core.errors import StoreError, WiggleError
from wiggle_core.worker.worker import Worker


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="A Worker, or a callable that takes the engine and returns a Worker."
        ),
    ],
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a worker until SIGTERM or SIGINT, then finish or release what it holds.

    The module is looked for in the current folder too. `--store` is for a callable; a Worker has its own engine.
    """
    configure_log(logging.INFO)
    found = _load(target)
    if isinstance(found, Worker):
        if store is not None:
            raise InputError(f"{target} is a Worker with an engine of its own: leave --store out")
        _run(found, as_json)
    elif callable(found):
        with opened_engine(store) as engine:
            _run(_made(target, found, engine), as_json)
    else:
        raise InputError(f"{target} is neither a Worker nor a callable that returns one")


def _made(target: str, factory: Callable[[Engine], object], engine: Engine) -> Worker:
    try:
        made = factory(engine)
    except WiggleError:
        raise
    except Exception as error:  # whatever a user's function raises
        raise InputError(f"{target} failed: {type(error).__name__}: {error}") from error
    if not isinstance(made, Worker):
        raise InputError(f"{target} returned {type(made).__name__}, not a Worker")
    return made


def _run(worker: Worker, as_json: bool) -> None:
    worker.run()
    counts = asdict(worker.counts)
    if as_json:
        print_json({"worker": worker.id, **counts})
    else:
        print_line(f"worker {worker.id} stopped: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


def _load(target: str) -> object:
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise InputError(f"{target!r}: MODULE:NAME is expected, such as shop.workers:eu")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found: object = import_module(module_name)
    except StoreError:
        raise
    except Exception as error:  # whatever a user's module raises as it is imported
        raise InputError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InputError(f"{module_name} has no {name}") from None
    return found
