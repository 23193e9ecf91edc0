"""The options that every command shares, and opening what `--store` names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, TypeAlias

import typer
from sqlalchemy import make_url

from wiggle_core.engine.engine import Engine, open_engine
from wiggle_core.stores.registry import open_store, store_url
from wiggle_core.stores.store import Store

StoreOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Where the tasks are; else $WIGGLE_DATABASE_URL, else the file named by $WIGGLE_DATABASE_URL_FILE, "
        "else sqlite:///wiggle.db.",
        show_default=False,
    ),
]
JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@contextmanager
def opened_store(url: str | None) -> Iterator[Store]:
    """The store that the option, the environment or the default names; its schema is not looked at."""
    with closing(open_store(store_url(url))) as store:
        yield store


@contextmanager
def opened_engine(url: str | None) -> Iterator[Engine]:
    """The engine over that store. Raises SchemaError, naming the command that helps, unless its schema is right."""
    with open_engine(url) as engine:
        yield engine


def shown_url(url: str | None) -> str:
    """The store's URL, as it may be shown: without its password, and without options, which may hold another."""
    return make_url(store_url(url)).set(query={}).render_as_string(hide_password=True)
