"""Passwords never stand in errors, their causes, logs, output or `repr` (section 3, failure classes; section 9)."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import URL, make_url

from wiggle_core.cli import app, main
from wiggle_core.engine.engine import open_engine
from wiggle_core.errors import InvalidStoreUrl, StoreNotInstalled, TransientStoreError, WiggleError
from wiggle_core.stores import registry
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.registry import hide_password, list_plugins, open_scratch, open_store, store_url
from wiggle_core.tasks.task import Clock
from wiggle_store_sqlite.place import read_url

SECRET = "hunter2"

URLS = [
    f"nowhere://user:{SECRET}@host/x",
    f"postgresql://user:x:{SECRET}@host:port/x",
    f"x y://user:{SECRET}@host",
    f"://user:{SECRET}@host",
    f"user:{SECRET}@host",
    f"sqlite://user:{SECRET}@host/x.db",
    f"sqlite://user:p@ss:{SECRET}@host/x.db",
    f"sqlite://:{SECRET}@/x.db",
    f"sqlite:///x.db?password={SECRET}",
    f"sqlite:///x.db?timeout=soon&password={SECRET}",
    f"memory://user:{SECRET}@host/x",
    f"memory://user:{SECRET}@host:port/x",
    f"memory://user:{SECRET}@[::1/x",
    f"memory://user@host:{SECRET}",
    f"memory://user:1/{SECRET}@host",
    f"memory://user:/{SECRET}@host",
    f"memory:///?password={SECRET}",
    f"strange://user:{SECRET}@host/x",
    f"strange://user:{SECRET}@host/x?password={SECRET}",
]
"""Schemes that are unknown, bad ports, bad options, and passwords with signs that had to be escaped."""


def everything_of(error: BaseException) -> str:
    """All that a log or a debugger shows of an error: the traceback, and each error of the chain with what it holds."""
    shown, seen, waiting = "".join(traceback.format_exception(error)), set[int](), [error]
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            shown += f"\n{each!r} {each.args} {vars(each)}"
            waiting += [more for more in (each.__cause__, each.__context__) if more is not None]
    return shown


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything is logged meanwhile, that of other packages too, and the secret must not be in it."""
    for variable in ("WIGGLE_DATABASE_URL", "WIGGLE_DATABASE_URL_FILE", "WIGGLE_DEBUG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(app, "configure_log", lambda: None)  # it would take the log from the test
    caplog.set_level(logging.DEBUG)
    yield
    assert SECRET not in caplog.text
    assert not any(SECRET in repr(vars(record)) for record in caplog.records)


@pytest.fixture
def _strange(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in that is reached with a password, and fails at everything."""

    class Failing(MemoryStore):
        def migrate(self) -> list[str]:
            raise TransientStoreError("the host does not answer")

    def opened(url: URL, *, clock: Clock | None = None) -> MemoryStore:
        assert url.password == SECRET
        logging.getLogger("strange").debug("opening %s, %r", url.set(query={}), url.set(query={}))
        return Failing(clock)

    module = ModuleType("strange_store")
    module.__dict__.update(DRIVER="", EXTRA="", LIVE_TESTED="", open_store=opened, open_scratch=opened)
    install(monkeypatch, module)


def install(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entries = (*metadata.entry_points(group=registry.GROUP), EntryPoint("strange", module.__name__, registry.GROUP))
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("opening", [open_store, open_scratch, open_engine], ids=lambda each: each.__name__)
@pytest.mark.usefixtures("_strange")
def test_no_error_of_opening_holds_a_password(opening: Callable[[str], object], url: str) -> None:
    """Whatever is wrong with a URL, its password is in no error, no cause and no log; a store that opens hides it."""
    if url.startswith("strange://"):
        opened = opening(url)
        assert SECRET not in f"{opened!r} {vars(opened)}"
        return
    with pytest.raises(WiggleError) as refused:
        opening(url)
    assert SECRET not in everything_of(refused.value)


@pytest.mark.usefixtures("_strange")
def test_no_error_of_a_store_holds_a_password() -> None:
    """Section 3: what a store reports, replayed and logged, names no password."""
    with pytest.raises(TransientStoreError) as failed:
        open_engine(f"strange://user:{SECRET}@host/x", migrate=True)
    assert SECRET not in everything_of(failed.value)


def test_a_missing_driver_s_error_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 6: the `pip install` line is about the driver, not about where it was to connect to."""

    def opened(url: URL, *, clock: Clock | None = None) -> MemoryStore:
        __import__("no_such_driver")
        return MemoryStore(clock)

    module = ModuleType("strange_store")
    module.__dict__.update(DRIVER="no_such_driver", EXTRA="", LIVE_TESTED="", open_store=opened, open_scratch=opened)
    install(monkeypatch, module)
    for opening in (open_store, open_scratch, open_engine):
        with pytest.raises(StoreNotInstalled) as missing:
            opening(f"strange://user:{SECRET}@host/x")
        assert SECRET not in everything_of(missing.value)


@pytest.mark.usefixtures("_strange")
def test_what_describes_a_store_holds_no_password() -> None:
    """Section 9: lists of plug-ins and the SQLite store's place know of no password."""
    assert SECRET not in repr(list_plugins())
    assert SECRET not in repr(make_url(f"strange://user:{SECRET}@host/x"))
    place = read_url(make_url("sqlite:///x.db?timeout=5"))
    assert {each.name for each in fields(place)} == {"path", "name", "timeout", "synchronous", "mode"}
    assert place.url == "sqlite:///x.db"


@pytest.mark.parametrize("content", [SECRET.encode() + b"\xff", None], ids=["not UTF-8", "missing"])
def test_a_url_s_file_is_not_repeated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None) -> None:
    """Section 9: neither what the file holds, nor a URL that was given in the place of its name."""
    file = str(tmp_path / "url") if content else f"postgresql://user:{SECRET}@host/x"
    if content:
        Path(file).write_bytes(content)
    monkeypatch.setenv("WIGGLE_DATABASE_URL_FILE", file)
    with pytest.raises(InvalidStoreUrl, match="cannot be read") as refused:
        store_url()
    assert SECRET not in everything_of(refused.value)


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize("url", URLS)
@pytest.mark.usefixtures("_strange")
def test_no_command_shows_a_password(
    url: str, debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Section 9: not in a line, not in JSON, not in a traceback; not when the URL stands in a wrong place."""
    monkeypatch.setenv("WIGGLE_DEBUG", debug)
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("backlog", "--store", url),
        ("db", "upgrade", "--store", url),
        ("db", "check", "--store", url, "--json"),
        ("backlog", "--store", url, "--json"),
    ):
        assert main(arguments) != 0 or url.startswith("strange://")
        assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize("debug", ["", "1"])
@pytest.mark.parametrize(
    "misplaced", [("backlog",), (), ("task", "show", "x"), ("criteria", "match", "--tasks"), ("backlog", "--colour")]
)
def test_a_url_in_a_wrong_place_is_shown_without_its_password(
    misplaced: tuple[str, ...], debug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Section 9: what was typed is repeated, its password is not."""
    monkeypatch.setenv("WIGGLE_DEBUG", debug)
    for more in ((), ("--json",)):
        assert main([*misplaced, f"postgresql://user:{SECRET}@host/x", *more]) != 0
        assert SECRET not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://user:{SECRET}@host/x", "postgresql://user:***@host/x"),
        (f"at 'x://user:a:/@{SECRET}@host' (line 1)", "at 'x://user:***@host' (line 1)"),
        (f"x://:{SECRET}@host", "x://:***@host"),
        (f"x://u:{SECRET}@h\ny://u:{SECRET}@h", "x://u:***@h\ny://u:***@h"),
        ("sqlite:///folder/a:b@c.db", "sqlite:///folder/a:b@c.db"),
        ("mail a@b: see https://host:80/x", "mail a@b: see https://host:80/x"),
        ("", ""),
    ],
)
def test_only_passwords_are_hidden(text: str, shown: str) -> None:
    """Section 9: the rest of a message is kept."""
    assert hide_password(text) == shown
