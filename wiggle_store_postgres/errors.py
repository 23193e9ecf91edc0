"""PostgreSQL's errors as wiggle's three classes, with a sentence that names the database and what to do, and no SQL."""

from __future__ import annotations

from typing import TypeAlias

import psycopg

from wiggle_core.errors import (
    AmbiguousStoreError,
    PermanentStoreError,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from wiggle_core.stores.sql.migrations import upgrade_command
from wiggle_store_postgres.place import Place

DriverError: TypeAlias = psycopg.Error | UnicodeEncodeError
"""What psycopg raises; the last one for text that it cannot send."""

DRIVER_ERRORS = (psycopg.Error, UnicodeEncodeError)

# By SQLSTATE (https://www.postgresql.org/docs/current/errcodes-appendix.html).
_TRANSIENT = {
    "40001": "a transaction on {} met another one",
    "40P01": "a transaction on {} was the victim of a deadlock",
    "55P03": "a lock on {} could not be taken",
    "55006": "an object of {} is in use",
    "57014": "a statement on {} was cancelled, mostly for its time; `?statement_timeout=SECONDS` gives it more",
    "57P01": "an administrator ended the connection to {}",
    "57P03": "{} is starting up, shutting down or recovering: it will be back",
    "57P05": "the connection to {} was idle for too long",
    "25P03": "a transaction on {} was idle for too long",
    "25P04": "a transaction on {} took too long",
    "53000": "{} is short of resources",
    "53200": "{} is short of memory",
    "53300": "{} has no connection left: lower `?pool_size=`, or raise max_connections there",
}
_PERMANENT = {
    "25000": "{} begins transactions of its own kind: leave default_transaction_isolation at 'read committed'",
    "25006": "{} is read-only, a standby perhaps: name the primary, as `?target_session_attrs=read-write` does",
    "28000": "{} refuses this user: check the user's name, and pg_hba.conf there",
    "28P01": "{} refuses the password: check it in the store URL, ~/.pgpass or PGPASSWORD",
    "3D000": "{} does not exist: create it, or name another one in the store URL",
    "42501": "this user may not do that on {}: grant it USAGE on the schema and the rights on its tables",
    "53100": "the disk under {} is full: free space, then go on",
    "53400": "a limit that {} is set up with is reached",
    "58030": "the disk under {} reports an error: look into the server's log",
}
_PERMANENT_CLASSES = {
    "22": "a value is given to {} that it cannot hold",
    "23": "what is stored in {} contradicts itself: see `wiggle db check`",
    "54": "a statement is beyond a limit of {}",
    "XX": "{} is damaged: look into the server's log, and see `wiggle db check`",
}
_SCHEMA_STATES = frozenset({"3F000", "42P01", "42703", "42704", "42883"})
_AMBIGUOUS_STATES = frozenset({"08007", "40003", "57P02"})

# libpq tells no SQLSTATE of a connection that was refused, only the server's words.
_REFUSED = (
    ("password authentication failed", "28P01"),
    ("no password supplied", "28P01"),
    ("authentication failed", "28000"),
    ("pg_hba.conf", "28000"),
    ("permission denied for database", "42501"),
    ("is not permitted to log in", "28000"),
    ("too many", "53300"),
    ("remaining connection slots", "53300"),
    ("starting up", "57P03"),
    ("shutting down", "57P03"),
    ("recovery", "57P03"),
    ("not accepting connections", "57P03"),
    ("session is read-only", "25006"),
    ("session is not read-only", "25006"),
)


def translate(error: DriverError, place: Place, *, may_have_applied: bool = False) -> StoreError:
    """The error to raise, with the driver's as its cause.

    `may_have_applied`: a commit was on its way, so that a connection lost without an answer leaves the outcome open.
    An error that the server itself reports tells that the transaction was rolled back, except for the end of a session
    behind a pooler.
    """
    if not isinstance(error, psycopg.Error):
        return PermanentStoreError(f"a value is given to {place} that it cannot hold: {type(error).__name__}")
    state = error.sqlstate
    if state is None:
        return _without_state(error, place, may_have_applied)
    # Sent along with its statement, a COMMIT is carried out before the server looks whether the session is to end.
    ended_late = state == "57P01" and place.is_pooled and may_have_applied
    if state.startswith("08") or state in _AMBIGUOUS_STATES or ended_late:
        return _lost(place, may_have_applied)
    return _by_state(state, place)


def translate_refusal(error: psycopg.Error, place: Place) -> StoreError:
    """The error for a connection that could not be made: nothing was applied, whatever the reason."""
    if error.sqlstate is not None:
        return _by_state(error.sqlstate, place)
    text = str(error)
    for words, state in _REFUSED:
        if words in text:
            return _by_state(state, place)
    if 'FATAL:  role "' in text:
        return _by_state("28000", place)
    if 'FATAL:  database "' in text and "does not exist" in text:
        return _by_state("3D000", place)
    if "could not translate host name" in text or "resolve host" in text:
        return TransientStoreError(f"the host of {place} is not known: check its name in the store URL")
    if isinstance(error, psycopg.ProgrammingError) or text.startswith("connection is bad: invalid"):
        return PermanentStoreError(f"the options to connect to {place} cannot be used: check those of the store URL")
    if "certificate" in text or "does not support SSL" in text or "SSL error:" in text:
        return PermanentStoreError(f"{place} and this program do not agree on TLS: check `?sslmode=`, `?sslrootcert=`")
    return TransientStoreError(f"{place} cannot be reached: check that the server runs, and its host and port")


def _without_state(error: psycopg.Error, place: Place, may_have_applied: bool) -> StoreError:
    if isinstance(error, psycopg.DataError):
        return PermanentStoreError(f"a value is given to {place} that it cannot hold")
    if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return _lost(place, may_have_applied)
    return PermanentStoreError(f"the driver refused the work on {place}: {type(error).__name__}")


def _lost(place: Place, may_have_applied: bool) -> StoreError:
    if may_have_applied:
        return AmbiguousStoreError(f"the connection to {place} was lost before the answer to a commit came")
    return TransientStoreError(f"the connection to {place} was lost")


def _by_state(state: str, place: Place) -> StoreError:
    if state in _SCHEMA_STATES:
        command = upgrade_command(place.url)
        return SchemaError(f"the schema {place.schema!r} of {place} is missing or not as expected: run `{command}`")
    if state in _TRANSIENT:
        return TransientStoreError(_TRANSIENT[state].format(place))
    message = _PERMANENT.get(state) or _PERMANENT_CLASSES.get(state[:2], "{} refused the work: see `wiggle db check`")
    return PermanentStoreError(f"{message.format(place)} (SQLSTATE {state})")
