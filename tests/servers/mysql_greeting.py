"""The packet with which a server of MySQL or MariaDB begins, as a proxy may change it (Proxy.greeting)."""

from __future__ import annotations

from collections.abc import Callable

_TLS = 0x0800
_AFTER_VERSION = 4 + 8 + 1
"""Bytes between the version's end and the first flags: the connection's number, salt, filler."""


def without_tls(greeting: bytes) -> bytes:
    """The server offers no TLS, so that a proxy can read along."""
    flags = greeting.index(b"\0", 5) + 1 + _AFTER_VERSION
    changed = int.from_bytes(greeting[flags : flags + 2], "little") & ~_TLS
    return greeting[:flags] + changed.to_bytes(2, "little") + greeting[flags + 2 :]


def of_version(version: str) -> Callable[[bytes], bytes]:
    """The server says that it is of this version (MariaDB writes `5.5.5-` before its own), and offers no TLS."""

    def change(greeting: bytes) -> bytes:
        protocol, rest = greeting[4:5], greeting[greeting.index(b"\0", 5) :]
        body = protocol + version.encode() + rest
        return without_tls(len(body).to_bytes(3, "little") + greeting[3:4] + body)

    return change
