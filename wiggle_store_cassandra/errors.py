"""What the driver raises, as the store raises it: transient, ambiguous or permanent, in words that say what to do.

A change counts as not applied only where that is certain (CA3). Not only a missing answer leaves it open: what replicas
have agreed on is committed as an ordinary write, so that too few replicas, too many hints, a timeout or a failure may
be reported of a change that is there for good (`StorageProxy.commitPaxos` of Cassandra 4.1 and 5.0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import wiggle_store_cassandra.event_loop  # noqa: F401 # isort: skip # before the driver

from cassandra import (
    AuthenticationFailed,
    CDCWriteFailure,
    ConsistencyLevel,
    CoordinationFailure,
    DependencyException,
    DriverException,
    FunctionFailure,
    OperationTimedOut,
    ReadFailure,
    RequestValidationException,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    UnsupportedOperation,
)
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException, ProtocolError, ProtocolVersionUnsupported
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import ErrorMessage

from wiggle_core.errors import (
    AmbiguousStoreError,
    PermanentStoreError,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from wiggle_core.stores.sql.migrations import upgrade_command
from wiggle_store_cassandra.place import PASSWORD_VARIABLE, Place


class UnknownDatacenter(DriverException):  # type: ignore[misc] # the driver has no types
    """No node is in the data centre that the URL names. `known` are those that have nodes."""

    def __init__(self, known: Sequence[str]) -> None:
        super().__init__(f"data centres: {', '.join(known)}")
        self.known = known


DRIVER_ERRORS: tuple[type[Exception], ...] = (
    DriverException,
    DependencyException,
    NoHostAvailable,
    NoConnectionsAvailable,
    ErrorMessage,
    ConnectionException,
    ConnectionBusy,
    ProtocolError,
    OSError,
    UnicodeError,
)
"""What the driver raises: it has no common ancestor of its errors, and passes those of sockets and names on."""

# Errors that the driver has no exception for, by code
# (https://github.com/apache/cassandra/blob/cassandra-5.0/doc/native_protocol_v5.spec, section 8).
_BAD_CREDENTIALS = 0x0100
_SYNTAX = 0x2000
_NOT_BEGUN = {
    0x1002: "a node of {} is joining: it will be there soon",
    0x1003: "a table of {} is being emptied",
    0x2500: "{} has forgotten a statement",
}
_MAYBE_APPLIED = {
    0x0000: "{} reports an error of its own: look into the log of its nodes",
    0x1001: "{} is overloaded: lower the number of workers, or add nodes",
    0x1700: "replicas of {} did not agree in time",
}

# Why a replica failed, by number (RequestFailureReason).
_TOMBSTONES = 0x0001
_TOO_LARGE = 0x0004

_SERIAL = (ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL)

_SCHEMA = re.compile(
    r"(keyspace|table|type|columnfamily) \S+ (does not exist|doesn't exist)|unconfigured table"
    r"|undefined (column )?name|unknown identifier|keyspace '\S+' does not exist",
    re.IGNORECASE,
)
_LARGE = re.compile(r"exceeds allowed maximum|batch too large|oversized mutation|bytes is too large", re.IGNORECASE)
_UNREADY_LOGIN = re.compile(r"unable to perform|cannot achieve consistency|timed out", re.IGNORECASE)

_NO_LOGIN = (
    "{} refuses this user: check its name and password in the store URL, or in " + PASSWORD_VARIABLE + ". "
    "A cluster that has just been started makes its first user only after some seconds"
)
_NO_TLS = (
    "{} and this program do not agree on TLS: check `?ssl=true`, `?ssl_ca=`, `?ssl_cert=`, and with "
    "`?ssl_verify_identity=true` that the address of each node stands in its certificate"
)
_UNREACHED = "{} cannot be reached: check that its nodes run, and the hosts and the port"
_BUSY = "{} has no connection left that is not full: lower the number of workers of this process, or add nodes"
_TIMED_OUT = "{} did not answer in time; `?timeout=SECONDS` waits longer"
_OPEN = "whether the change was applied is not known"


def failure(place: Place, error: Exception, *, is_change: bool) -> StoreError:
    """The error to raise, with the driver's as its cause. `is_change`: something was sent that may not be done twice,
    so that without an answer its outcome is open."""
    if isinstance(error, NoHostAvailable):
        return _not_sent(place, error)
    if isinstance(error, UnresolvableContactPoints):
        return TransientStoreError(f"no host of {place} is known: check their names in the store URL")
    if isinstance(error, UnknownDatacenter):
        known = ", ".join(error.known) or "none"
        return PermanentStoreError(f"no node of {place} is in the data centre {place.local_dc!r}; there are: {known}")
    if isinstance(error, (AuthenticationFailed, ProtocolVersionUnsupported, DependencyException)):
        return _refused(place, error)
    if isinstance(error, RequestValidationException):
        return _invalid(place, error)
    if isinstance(error, UnsupportedOperation):
        return _too_old(place)
    if isinstance(error, ErrorMessage):
        return _by_code(place, error, is_change)
    if isinstance(error, (UnicodeError, FunctionFailure)):
        return PermanentStoreError(f"a value is given to {place} that it cannot hold: {type(error).__name__}")
    if isinstance(error, Unavailable):
        return _unavailable(place, error, is_change)
    if isinstance(error, CDCWriteFailure):
        return _open(f"{place} takes no writes while its folder of change data is full", is_change)
    if isinstance(error, CoordinationFailure):
        return _failed(place, error, is_change)
    if isinstance(error, (ConnectionBusy, NoConnectionsAvailable)):
        return TransientStoreError(_BUSY.format(place))
    # Timeouts of the server and of ours, and connections that were lost.
    is_loss = isinstance(error, (ConnectionException, ProtocolError, OSError))
    return _open(f"the connection to {place} was lost" if is_loss else _TIMED_OUT.format(place), is_change)


def _open(message: str, is_change: bool) -> StoreError:
    if is_change:
        return AmbiguousStoreError(f"{message}; {_OPEN}")
    return TransientStoreError(message)


# Nothing was sent


def _not_sent(place: Place, error: Any) -> StoreError:  # Any: of the driver
    """No node took the request, whatever it was. The driver tells why, by node; where it made no session it only tells
    the nodes."""
    reasons = list(error.errors.values()) if isinstance(error.errors, dict) else []
    told = [_refused(place, reason) for reason in reasons]
    # What one node says of a password, or of TLS, the others would say as well.
    return next((each for each in told if isinstance(each, PermanentStoreError)), None) or (
        told[0] if told else TransientStoreError(_UNREACHED.format(place))
    )


def _refused(place: Place, reason: Exception) -> StoreError:
    """Why a node could not be asked."""
    if isinstance(reason, AuthenticationFailed):
        if _UNREADY_LOGIN.search(str(reason)):
            return TransientStoreError(f"{place} cannot look users up at the moment: check that its nodes run")
        if place.username is None:
            return PermanentStoreError(f"{place} asks for a user: user:password@host in the store URL")
        return PermanentStoreError(_NO_LOGIN.format(place))
    if isinstance(reason, ProtocolVersionUnsupported):
        return _too_old(place)
    if isinstance(reason, DependencyException):
        return PermanentStoreError("cassandra-driver finds no event loop: install its wheel of 3.30 or newer")
    if isinstance(reason, RequestValidationException):
        return _invalid(place, reason)
    # The driver makes another error out of one of TLS, and keeps its text only.
    if isinstance(reason, OSError) and "[SSL" in str(reason):
        return PermanentStoreError(_NO_TLS.format(place))
    if isinstance(reason, (ConnectionBusy, NoConnectionsAvailable)):
        return TransientStoreError(_BUSY.format(place))
    if isinstance(reason, ProtocolError):
        return PermanentStoreError(f"what answers in the place of {place} cannot be understood: check hosts and port")
    if isinstance(reason, OperationTimedOut):
        hint = "it may take TLS alone, `?ssl=true`" if place.tls is None else "it may have no TLS"
        return TransientStoreError(f"{_UNREACHED.format(place)}. It did not answer in time: {hint}")
    if isinstance(reason, ErrorMessage):
        return _by_code(place, reason, is_change=False)
    return TransientStoreError(_UNREACHED.format(place))


def _too_old(place: Place) -> StoreError:
    return PermanentStoreError(f"{place} is too old: Cassandra 4.1 or newer is needed")


# The server answered


def _invalid(place: Place, error: Exception) -> StoreError:
    """It did not begin to do what was asked."""
    text = str(error)
    if isinstance(error, Unauthorized):
        return PermanentStoreError(f"this user may not do that on {place}: `wiggle db roles` shows what it needs")
    if _SCHEMA.search(text):
        command = upgrade_command(place.url)
        return SchemaError(f"the tables of {place} are missing or not as expected: run `{command}`")
    if _LARGE.search(text):
        return PermanentStoreError(
            f"a change is larger than {place} takes: raise native_transport_max_message_size, commitlog_segment_size "
            "and batch_size_fail_threshold there, or give payloads of less"
        )
    if "guardrail" in text.lower():
        return PermanentStoreError(f"a guardrail of {place} forbids the work: see guardrails in its cassandra.yaml")
    return PermanentStoreError(f"{place} refused the work: see `wiggle db check` ({type(error).__name__})")


def _by_code(place: Place, error: Any, is_change: bool) -> StoreError:  # Any: of the driver
    code: int = error.code
    if code == _BAD_CREDENTIALS:
        return _refused(place, AuthenticationFailed(error.message))
    if code == _SYNTAX:
        return PermanentStoreError(f"{place} does not understand what is asked: Cassandra 4.1 or newer is needed")
    if code in _NOT_BEGUN:
        return TransientStoreError(_NOT_BEGUN[code].format(place))
    other = f"{{}} reports the error {code:#06x}: look into the log of its nodes"
    return _open(_MAYBE_APPLIED.get(code, other).format(place), is_change)


def _unavailable(place: Place, error: Any, is_change: bool) -> StoreError:  # Any: of the driver
    """Too few replicas to agree on anything, or to commit what was agreed on: the consistency level tells which."""
    counts = f"{error.alive_replicas} of {error.required_replicas} nodes that must be"
    message = f"{place} has too few nodes up: {counts}. Check them, and the replication of the keyspace"
    return _open(message, is_change and error.consistency not in _SERIAL)


def _failed(place: Place, error: Any, is_change: bool) -> StoreError:  # Any: of the driver
    reasons = set((error.error_code_map or {}).values())
    if isinstance(error, ReadFailure) and reasons & {_TOMBSTONES, _TOO_LARGE}:
        return PermanentStoreError(
            f"nodes of {place} gave up reading, over {'deleted rows' if _TOMBSTONES in reasons else 'too much data'}: "
            "see tombstone_failure_threshold and local_read_size_fail_threshold there, and let compaction catch up"
        )
    return _open(f"nodes of {place} failed: look into their logs, and for space on their disks", is_change)
