"""MySQL's and MariaDB's errors as wiggle's three classes, with a sentence that names the database and what to do, and
no SQL."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import TypeAlias

import pymysql
from pymysql.constants import CR, ER

from wiggle_core.errors import (
    AmbiguousStoreError,
    PermanentStoreError,
    SchemaError,
    StoreError,
    TransientStoreError,
)
from wiggle_core.stores.sql.migrations import upgrade_command
from wiggle_store_mysql.place import Place

DriverError: TypeAlias = pymysql.MySQLError | OSError | UnicodeError | struct.error
"""What PyMySQL raises in a session: its own errors, those of the socket where it does not wrap them, texts that are no
UTF-8, and packets that are none."""

DRIVER_ERRORS = (pymysql.MySQLError, OSError, UnicodeError, struct.error)

CONNECT_ERRORS = (*DRIVER_ERRORS, RuntimeError, ValueError, LookupError, AssertionError)
"""What it raises while it connects: for a package that it lacks, and for a greeting that it cannot read."""

# By number (https://dev.mysql.com/doc/mysql-errors/en/server-error-reference.html,
# https://mariadb.com/docs/server/reference/error-codes).
_TRANSIENT = {
    ER.CHECKREAD: "a transaction on {} met another one",
    ER.LOCK_DEADLOCK: "a transaction on {} was the victim of a deadlock",
    3101: "a transaction on {} met another one, on another node of its group",
    3100: "a transaction on {} could not be brought to its group",
    ER.LOCK_WAIT_TIMEOUT: "a lock on {} was held by others for too long; `?statement_timeout=SECONDS` waits longer",
    3572: "a lock on {} could not be taken",
    3058: "a named lock on {} is held by others",
    ER.LOCK_TABLE_FULL: "{} has no memory left for locks: raise innodb_buffer_pool_size there",
    1223: "{} is locked against changes, for a backup perhaps",
    1412: "the tables of {} are being changed",
    ER.CON_COUNT_ERROR: "{} has no connection left: lower `?pool_size=`, or raise max_connections there",
    ER.TOO_MANY_USER_CONNECTIONS: "this user has no connection to {} left: lower `?pool_size=`, or raise "
    "max_user_connections there",
    ER.USER_LIMIT_REACHED: "this user used up what {} allows it in an hour, or at a time: raise the limits of the "
    "account",
    1135: "{} can start no more threads: lower `?pool_size=`, or raise the limits of its process",
    ER.OUTOFMEMORY: "{} is short of memory",
    ER.OUT_OF_SORTMEMORY: "{} is short of memory to sort in: raise sort_buffer_size there",
    ER.OUT_OF_RESOURCES: "{} is short of memory",
    1637: "{} has no place left for another transaction",
    ER.GET_TEMPORARY_ERRMSG: "{} is short of something for now",
    ER.UNKNOWN_COM_ERROR: "{} is a node of a cluster that takes no work now: it will be back when it has caught up",
    ER.HANDSHAKE_ERROR: "the connection to {} broke while it was made",
    ER.QUERY_TIMEOUT: "a question to {} took too long; `?statement_timeout=SECONDS` gives it more",
    3032: "{} is offline for maintenance: it will be back",
    3168: "{} is starting up or shutting down: it will be back",
    4031: "the connection to {} was idle for too long: raise wait_timeout there",
    9001: "the proxy before {} finds no server: check that one runs",
}
# The server ended a statement, or its session, from outside. Whether that may come behind a commit neither product
# documents; in 1,002 such ends of inserts and commits, by KILL QUERY and by max_statement_time, none was applied.
_ENDED = {
    ER.SERVER_SHUTDOWN: "{} is shutting down: it will be back",
    1079: "{} is shutting down: it will be back",
    ER.QUERY_INTERRUPTED: "an administrator ended a statement on {}",
    1927: "an administrator ended the connection to {}",
    3169: "an administrator ended the connection to {}",
    1969: "a statement on {} took too long; `?statement_timeout=SECONDS` gives it more",
    ER.ERROR_DURING_COMMIT: "a commit on {} failed: look into the server's log",
}
_NETWORK = frozenset({1152, 1156, 1158, 1159, 1160, 1161, 1184})
_READ_ONLY = "{} is read-only, a replica perhaps: name the primary"
_NO_LOGIN = "{} refuses this user: check its name and password in the store URL, or in MYSQL_PWD"
_NO_RIGHT = "this user may not do that on {}: `wiggle db roles` shows what it needs"
_DISK = "the disk under {} is full: free space, then go on"
_DAMAGED = "{} is damaged: look into the server's log, and see `wiggle db check`"
_VALUE = "a value is given to {} that it cannot hold"
_PACKET = "a statement is longer than {} takes: raise max_allowed_packet there, or give payloads of less"
_BEYOND = "a statement is beyond a limit of {}"
_CONTRADICTION = "what is stored in {} contradicts itself: see `wiggle db check`"
_PERMANENT = {
    ER.OPTION_PREVENTS_STATEMENT: _READ_ONLY,
    1792: _READ_ONLY,
    1836: _READ_ONLY,
    1665: "{} logs statements, which goes with no READ COMMITTED: set binlog_format=ROW there",
    3098: "the tables of {} are not what its group can replicate: see `wiggle db check`",
    ER.ACCESS_DENIED_ERROR: _NO_LOGIN,
    1698: "{} lets this user in by its own way only, as root by the local socket: make an account with a password",
    1251: "{} lets this user in by an old way only: give its account a new password there",
    1820: "{} wants a new password for this user: ALTER USER there",
    1862: "{} wants a new password for this user: ALTER USER there",
    3118: "{} locked the account of this user: ALTER USER .. ACCOUNT UNLOCK there",
    4151: "{} locked the account of this user: ALTER USER .. ACCOUNT UNLOCK there",
    3159: "{} takes connections with TLS only: `?ssl_mode=REQUIRED`",
    ER.DBACCESS_DENIED_ERROR: "this user may not use {}, or it is not there: create it, and grant the user the rights "
    "that `wiggle db roles` shows",
    ER.HOST_IS_BLOCKED: "{} blocked this host after too many broken connections: FLUSH HOSTS there",
    ER.HOST_NOT_PRIVILEGED: "{} takes no connection from this host: make an account for it there",
    ER.TABLEACCESS_DENIED_ERROR: _NO_RIGHT,
    ER.COLUMNACCESS_DENIED_ERROR: _NO_RIGHT,
    ER.SPECIFIC_ACCESS_DENIED_ERROR: _NO_RIGHT,
    ER.PROCACCESS_DENIED_ERROR: _NO_RIGHT,
    ER.NET_PACKET_TOO_LARGE: _PACKET,
    1301: _PACKET,
    CR.CR_NET_PACKET_TOO_LARGE: _PACKET,
    1436: _BEYOND,
    1118: _BEYOND,
    ER.DATA_TOO_LONG: _VALUE,
    ER.TRUNCATED_WRONG_VALUE_FOR_FIELD: _VALUE,
    ER.WARN_DATA_OUT_OF_RANGE: _VALUE,
    ER.WARN_DATA_TRUNCATED: _VALUE,
    ER.TRUNCATED_WRONG_VALUE: _VALUE,
    1300: _VALUE,
    1690: _VALUE,
    3140: _VALUE,
    3141: _VALUE,
    3854: _VALUE,
    ER.CONSTRAINT_FAILED: _VALUE,
    ER.DUP_ENTRY: _CONTRADICTION,
    ER.BAD_NULL_ERROR: _CONTRADICTION,
    ER.DISK_FULL: _DISK,
    ER.RECORD_FILE_FULL: _DISK,
    3019: _DISK,
    1026: _DISK,
    ER.GET_ERRNO: "the storage under {} reports an error: look into the server's log, and for space on its disk",
    1033: _DAMAGED,
    1034: _DAMAGED,
    1194: _DAMAGED,
    1195: _DAMAGED,
    1712: _DAMAGED,
    1812: _DAMAGED,
    1932: _DAMAGED,
    CR.CR_SSL_CONNECTION_ERROR: "{} offers no TLS, which `?ssl_mode=` insists on",
    CR.CR_AUTH_PLUGIN_CANNOT_LOAD: "{} lets this user in by a way that this program does not know, or does not take "
    "without TLS: `?ssl_mode=REQUIRED`, or another account",
    CR.CR_AUTH_PLUGIN_ERR: "{} and this program do not agree on how this user logs in: make another account",
}
_SCHEMA = frozenset({ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR, ER.KEY_DOES_NOT_EXITS, 1305})
_MISSING_RIGHT = frozenset({ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR})
_LOST_IN_TLS = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


def translate(error: DriverError, place: Place, *, may_have_applied: bool = False) -> StoreError:
    """The error to raise, with the driver's as its cause.

    `may_have_applied`: something that commits was on its way, so that a connection lost without an answer leaves the
    outcome open. So does a statement that was ended from outside; every other error that the server itself reports
    tells that the statement did nothing, and that those behind it were not run.
    """
    if isinstance(error, UnicodeError):
        return PermanentStoreError(f"{_VALUE.format(place)}, or holds one that is no UTF-8: {type(error).__name__}")
    number = _number(error)
    if number in _ENDED:
        if may_have_applied:
            return AmbiguousStoreError(f"{_ENDED[number].format(place)}; whether a commit came first is not known")
        return TransientStoreError(_ENDED[number].format(place))
    if _is_loss(error, number):
        return _lost(place, may_have_applied)
    return _by_number(number, place)


def translate_refusal(error: Exception, place: Place) -> StoreError:
    """The error for a connection that could not be made: nothing was applied, whatever the reason."""
    if isinstance(error, RuntimeError):
        return PermanentStoreError(
            f"the way in which {place} lets this user in needs a package that is missing: "
            "pip install 'wiggle-core[mysql]', or PyMySQL[ed25519] for that way of MariaDB's"
        )
    reason = getattr(error, "original_exception", error)  # where PyMySQL keeps the socket's error
    if isinstance(reason, socket.gaierror):
        return TransientStoreError(f"the host of {place} is not known: check its name in the store URL")
    if isinstance(reason, ssl.SSLError) and not isinstance(reason, _LOST_IN_TLS):
        return PermanentStoreError(f"{place} and this program do not agree on TLS: check `?ssl_mode=`, `?ssl_ca=`")
    if isinstance(error, UnicodeError):
        return PermanentStoreError(f"the user or the password for {place} cannot be sent: {type(error).__name__}")
    number = _number(error)
    if number in _ENDED:
        return TransientStoreError(_ENDED[number].format(place))
    if number == CR.CR_SERVER_LOST:
        return TransientStoreError(f"{place} ended the connection while it was made: look into the server's log")
    if number is None and not isinstance(error, OSError):
        return PermanentStoreError(f"what answers in the place of {place} cannot be understood: check host and port")
    if _is_loss(error, number):
        return TransientStoreError(f"{place} cannot be reached: check that the server runs, and its host and port")
    return _by_number(number, place)


def is_unknown_database(error: StoreError) -> bool:
    """Whether there is no such database, so that it can be made."""
    cause = error.__cause__
    return isinstance(cause, pymysql.MySQLError) and _number(cause) == ER.BAD_DB_ERROR


def is_missing_right(error: StoreError) -> bool:
    """Whether the user lacks a right on the database or a table."""
    cause = error.__cause__
    return isinstance(cause, pymysql.MySQLError) and _number(cause) in _MISSING_RIGHT


def _number(error: Exception) -> int | None:
    """The driver's and the server's errors have one; what the driver says of packets that it cannot read has none."""
    number = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else None
    return number if isinstance(number, int) else None


def _is_loss(error: Exception, number: int | None) -> bool:
    """Whether the connection is lost: PyMySQL has numbers for it, 0 for one that was closed before, and none for an
    answer out of step."""
    if not isinstance(error, pymysql.MySQLError) or number is None:
        return True
    is_of_client = CR.CR_ERROR_FIRST <= number <= CR.CR_ERROR_LAST and number not in _PERMANENT
    return number == 0 or is_of_client or number in _NETWORK


def _lost(place: Place, may_have_applied: bool) -> StoreError:
    if may_have_applied:
        return AmbiguousStoreError(f"the connection to {place} was lost before the answer to a commit came")
    return TransientStoreError(f"the connection to {place} was lost")


def _by_number(number: int | None, place: Place) -> StoreError:
    if number == ER.BAD_DB_ERROR:
        return SchemaError(f"{place} does not exist: run `{upgrade_command(place.url)}`")
    if number in _SCHEMA:
        command = upgrade_command(place.url)
        return SchemaError(f"the schema {place.prefix!r} of {place} is missing or not as expected: run `{command}`")
    if number in _TRANSIENT:
        return TransientStoreError(_TRANSIENT[number].format(place))
    message = _PERMANENT.get(number or 0, "{} refused the work: see `wiggle db check`")
    return PermanentStoreError(f"{message.format(place)} (error {number})")
