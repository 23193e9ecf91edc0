"""From a URL to a store: plug-ins are found by the entry point group `wiggle.stores`, their name is the scheme."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import metadata
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from wiggle_core.errors import InvalidStoreUrl, StoreNotInstalled, UnknownScheme
from wiggle_core.stores.store import Store, StorePlugin
from wiggle_core.tasks.task import Clock

GROUP = "wiggle.stores"
URL_VARIABLE = "WIGGLE_DATABASE_URL"
DEFAULT_URL = "sqlite:///wiggle.db"
_PASSWORD = re.compile(r"(://[^\s/:@]*):.*@")
_PLUGIN_NAMES = ("DRIVER", "EXTRA", "LIVE_TESTED", "open_store", "open_scratch")


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """One installed plug-in: its URL scheme, the distribution that brings it, and whether its driver is there."""

    scheme: str
    package: str
    version: str
    driver: str
    installed: bool
    live_tested: str


def store_url(explicit: str | None = None) -> str:
    """The URL given, else `WIGGLE_DATABASE_URL`, else the content of the file that `WIGGLE_DATABASE_URL_FILE` names,
    else `sqlite:///wiggle.db`. Raises InvalidStoreUrl when that file cannot be read or is empty."""
    if explicit:
        return explicit
    if os.environ.get(URL_VARIABLE):
        return os.environ[URL_VARIABLE]
    file = os.environ.get(f"{URL_VARIABLE}_FILE")
    if not file:
        return DEFAULT_URL
    url = _content(file)
    if not url:
        raise InvalidStoreUrl(f"{URL_VARIABLE}_FILE names {hide_password(file)!r}, which is empty")
    return url


def _content(file: str) -> str:
    """The text of the file. No error is chained: one would hold the content, or a URL that was named for a file."""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or "no such name"
    raise InvalidStoreUrl(f"{URL_VARIABLE}_FILE names {hide_password(file)!r}, which cannot be read: {reason}")


def hide_password(text: str) -> str:
    """The text, for people, with `***` for the password of a URL in it."""
    return _PASSWORD.sub(r"\1:***@", text)


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store that a URL names; nothing is touched until it is asked something.

    Raises UnknownScheme, StoreNotInstalled (with the `pip install` line) or InvalidStoreUrl.
    """
    parsed = _parse(url)
    plugin, name = _plugin(parsed)
    try:
        return plugin.open_store(parsed, clock=clock)
    except ImportError as error:
        raise _driver_missing(plugin, name, error) from error


def open_scratch(url: str, *, clock: Clock | None = None) -> Store:
    """An empty store of its own beside what the URL names; `close` drops it. Raises as `open_store` does."""
    parsed = _parse(url)
    plugin, name = _plugin(parsed)
    try:
        return plugin.open_scratch(parsed, clock=clock)
    except ImportError as error:
        raise _driver_missing(plugin, name, error) from error


def list_plugins() -> list[PluginInfo]:
    """The plug-ins that are installed, by scheme, whether or not their drivers are."""
    return [_describe(entry) for _, entry in sorted(_entries().items())]


def _parse(url: str) -> URL:
    if "://" not in url:
        raise InvalidStoreUrl("a store URL starts with a scheme, such as sqlite:///wiggle.db (see `wiggle plugins`)")
    with suppress(ArgumentError, ValueError):
        return make_url(url)
    # Neither the text nor that error is repeated: an unescaped `:` or `/` makes a piece of a password the port.
    raise InvalidStoreUrl("the store URL cannot be read; it has the form scheme://user:password@host/name")


def _plugin(url: URL) -> tuple[StorePlugin, str]:
    scheme = url.drivername.partition("+")[0].lower()
    entries = _entries()
    if scheme not in entries:
        near = get_close_matches(scheme, entries, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UnknownScheme(scheme, f"no store for {scheme[:40]!r}{hint}; installed: {', '.join(sorted(entries))}")
    return _load(entries[scheme]), scheme


def _load(entry: EntryPoint) -> StorePlugin:
    try:
        plugin = entry.load()
    except Exception as error:  # a plug-in is foreign code, whose import may fail in any way
        message = f"the store {entry.name!r} cannot be loaded: {error!r}; reinstall the package that brings it"
        raise StoreNotInstalled(entry.name, message) from error
    missing = [name for name in _PLUGIN_NAMES if not hasattr(plugin, name)]
    if missing:
        raise StoreNotInstalled(entry.name, f"the store {entry.name!r} cannot be loaded: it has no {missing[0]}")
    return cast("StorePlugin", plugin)


def _driver_missing(plugin: StorePlugin, scheme: str, error: ImportError) -> StoreNotInstalled:
    if _is_installed(plugin.DRIVER):  # something else could not be imported: installing the driver would not help
        return StoreNotInstalled(scheme, f"the store {scheme!r} cannot be opened: {error!r}")
    extra = plugin.EXTRA or scheme
    message = f"the driver {plugin.DRIVER!r} for {scheme} is not installed: pip install 'wiggle-core[{extra}]'"
    return StoreNotInstalled(scheme, message)


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in metadata.entry_points(group=GROUP)}


def _describe(entry: EntryPoint) -> PluginInfo:
    package, version = (entry.dist.name, entry.dist.version) if entry.dist else ("", "")
    try:
        plugin = _load(entry)
    except StoreNotInstalled:
        return PluginInfo(entry.name, package, version, "", False, "")
    return PluginInfo(entry.name, package, version, plugin.DRIVER, _is_installed(plugin.DRIVER), plugin.LIVE_TESTED)


def _is_installed(driver: str) -> bool:
    try:
        return not driver or find_spec(driver) is not None
    except ImportError:  # the package around a dotted name is missing, or is no package
        return False
