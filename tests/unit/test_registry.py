"""From a URL to a store: schemes, drivers, settings, and what the errors say."""

from __future__ import annotations

import re
import sys
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import URL

from wiggle_core.errors import InvalidStoreUrl, StoreNotInstalled, UnknownScheme
from wiggle_core.stores import registry
from wiggle_core.stores.memory import MemoryStore
from wiggle_core.stores.registry import PluginInfo, list_plugins, open_scratch, open_store, store_url
from wiggle_core.tasks.task import Clock

SETTINGS = ("WIGGLE_DATABASE_URL", "WIGGLE_DATABASE_URL_FILE")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)


def install(monkeypatch: pytest.MonkeyPatch, module: ModuleType, scheme: str = "strange") -> None:
    """Make a module a plug-in, found as an entry point is."""
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entries = {entry.name: entry for entry in metadata.entry_points(group=registry.GROUP)}
    entries[scheme] = EntryPoint(scheme, module.__name__, registry.GROUP)
    monkeypatch.setattr(metadata, "entry_points", lambda group: tuple(entries.values()))


def plugin(driver: str = "", extra: str = "", tested: str = "") -> ModuleType:
    """A plug-in module whose store is the memory store, unless its driver is missing."""
    module = ModuleType("strange_store")

    def opened(url: URL, *, clock: Clock | None = None) -> MemoryStore:
        if driver:
            __import__(driver)
        return MemoryStore(clock)

    module.__dict__.update(DRIVER=driver, EXTRA=extra, LIVE_TESTED=tested, open_store=opened, open_scratch=opened)
    return module


def test_the_installed_stores_are_listed_by_scheme() -> None:
    """Section 9: the memory and the SQLite store come with the distribution."""
    found = {each.scheme: each for each in list_plugins()}
    assert list(found) == sorted(found)
    assert {"memory", "sqlite"} <= found.keys()
    assert found["memory"].installed
    assert (found["sqlite"].driver, found["sqlite"].installed) == ("sqlite3", True)
    assert found["sqlite"].package == "wiggle-core"
    assert re.match(r"\d+\.\d+", found["sqlite"].version)


@pytest.mark.parametrize("url", ["memory://", "MEMORY://", "memory+anything://"])
def test_a_scheme_opens_its_store(url: str) -> None:
    """Section 6: the scheme chooses the store, in any case, with or without a driver."""
    for opened in (open_store(url), open_scratch(url)):
        assert isinstance(opened, MemoryStore)
        opened.close()


def test_the_clock_reaches_the_store() -> None:
    """L1: tests may inject a clock."""
    assert open_store("memory://", clock=lambda: 7).now() == 7
    assert open_scratch("memory://", clock=lambda: 8).now() == 8


def test_an_unknown_scheme_names_the_nearest_and_those_installed() -> None:
    """Section 6: the error for a misspelt scheme says which one was meant."""
    with pytest.raises(
        UnknownScheme, match=r"'sqlit' \(did you mean 'sqlite'\?\); installed: cassandra, mariadb, memory"
    ) as bad:
        open_store("sqlit:///x.db")
    assert bad.value.scheme == "sqlit"
    with pytest.raises(UnknownScheme, match="no store for 'zzz'; installed"):
        open_scratch("zzz://host/x")


@pytest.mark.parametrize("url", ["", "wiggle.db", "sqlite:/x.db", "://", "://x", "memory://user:hunter2@host:port/x"])
def test_a_url_that_cannot_be_read_is_refused(url: str) -> None:
    """Section 6: what is no URL is refused, and a password in it is never repeated."""
    with pytest.raises((InvalidStoreUrl, UnknownScheme)) as refused:
        open_store(url)
    assert "hunter2" not in str(refused.value)


def test_a_password_is_not_in_the_error() -> None:
    """Errors never contain a password."""
    for url in ("memory://user:hunter2@host/x", "nowhere://user:hunter2@host/x", "x y://user:hunter2@h"):
        with pytest.raises((InvalidStoreUrl, UnknownScheme)) as refused:
            open_store(url)
        assert "hunter2" not in str(refused.value)


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 6: the `pip install` line is in the message, the ImportError is the cause."""
    install(monkeypatch, plugin(driver="no_such_driver", extra="strange"))
    for opening in (open_store, open_scratch):
        with pytest.raises(StoreNotInstalled, match=r"pip install 'wiggle-core\[strange\]'") as missing:
            opening("strange://host/x")
        assert isinstance(missing.value.__cause__, ImportError)
        assert missing.value.scheme == "strange"


def test_another_import_that_fails_is_not_blamed_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 6: nobody is told to install what is installed."""
    module = plugin(driver="no_such_driver")
    module.__dict__.update(DRIVER="json")
    install(monkeypatch, module)
    with pytest.raises(StoreNotInstalled, match="'strange' cannot be opened: ModuleNotFoundError"):
        open_store("strange://host/x")


def test_plugins_whose_driver_is_missing_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 9: `wiggle plugins` lists what is there, whether or not the driver is."""
    for driver in ("no_such_driver", "no_such_package.driver", "json.no_such_module"):
        install(monkeypatch, plugin(driver=driver, extra="strange", tested="1.0"))
        assert PluginInfo("strange", "", "", driver, False, "1.0") in list_plugins()
    install(monkeypatch, plugin(driver="json.decoder"))
    assert PluginInfo("strange", "", "", "json.decoder", True, "") in list_plugins()


def test_a_broken_plugin_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Section 9: a plug-in that cannot be loaded is listed as not installed, and the rest as ever."""
    (tmp_path / "broken_store.py").write_text("raise RuntimeError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, ModuleType("unused"))
    for value in ("broken_store", "no_such_module", "json"):
        broken = EntryPoint("strange", value, registry.GROUP)
        good = EntryPoint("memory", "wiggle_core.stores.memory", registry.GROUP)
        monkeypatch.setattr(metadata, "entry_points", lambda group, both=(broken, good): both)
        assert [(each.scheme, each.installed) for each in list_plugins()] == [("memory", True), ("strange", False)]
        with pytest.raises(StoreNotInstalled, match="'strange' cannot be loaded"):
            open_store("strange://")


def test_the_url_is_looked_for_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Section 9: the option, else the variable, else the file that a variable names, else sqlite:///wiggle.db."""
    assert store_url() == "sqlite:///wiggle.db"
    secret = tmp_path / "url"
    secret.write_text("memory://from-file\n", encoding="utf-8")
    monkeypatch.setenv("WIGGLE_DATABASE_URL_FILE", str(secret))
    assert store_url() == "memory://from-file"
    monkeypatch.setenv("WIGGLE_DATABASE_URL", "memory://from-variable")
    assert store_url() == "memory://from-variable"
    assert store_url("memory://given") == "memory://given"
    monkeypatch.setenv("WIGGLE_DATABASE_URL", "")
    assert store_url() == "memory://from-file"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"", b" \n"])
def test_a_url_file_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    """Section 9: a secret that is missing, unreadable or empty is an error, never a silent default."""
    secret = tmp_path / "url"
    if content is not None:
        secret.write_bytes(content)
    monkeypatch.setenv("WIGGLE_DATABASE_URL_FILE", str(secret))
    with pytest.raises(InvalidStoreUrl, match="WIGGLE_DATABASE_URL_FILE names"):
        store_url()
