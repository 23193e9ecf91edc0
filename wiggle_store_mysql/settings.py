"""What a server's settings decide for a store: whether it can work at all, and what becomes of acknowledged tasks when
the server crashes."""

from __future__ import annotations

from collections.abc import Iterator

from wiggle_store_mysql.connections import Session

_NAMES = (
    "binlog_format",
    "group_replication_group_name",
    "group_replication_single_primary_mode",
    "innodb_flush_log_at_trx_commit",
    "log_bin",
    "sync_binlog",
    "wsrep_on",
)
_ASKED = "SHOW GLOBAL VARIABLES WHERE Variable_name IN %s"
_ONE_NODE = "name one and the same node in all store URLs, since locks on rows do not reach the other nodes"


def read_settings(session: Session) -> dict[str, str]:
    """Those settings that the server has."""
    return {name.lower(): value for name, value in session.rows(_ASKED, (_NAMES,))}


def obstacles(settings: dict[str, str]) -> list[str]:
    """The settings with which no task can be stored, a sentence each."""
    if settings.get("log_bin") == "ON" and settings.get("binlog_format") == "STATEMENT":
        return ["binlog_format=STATEMENT: the server takes no change in READ COMMITTED; set it to ROW there"]
    return []


def advice(settings: dict[str, str]) -> Iterator[str]:
    """What an operator may have chosen and should know of, a sentence each."""
    flush = settings.get("innodb_flush_log_at_trx_commit")
    if flush in ("0", "2"):
        cause = "the server or its machine crashes" if flush == "0" else "the machine of the server crashes"
        yield (
            f"innodb_flush_log_at_trx_commit={flush}: when {cause}, tasks of the last second or so are lost, though "
            "they were acknowledged; 1 loses none"
        )
    sync = settings.get("sync_binlog")
    if settings.get("log_bin") == "ON" and sync not in (None, "1"):
        yield (
            f"sync_binlog={sync}: when the machine of the server crashes, tasks that were acknowledged may be missing "
            "in the binary log, and so on replicas and after recovery; 1 loses none"
        )
    if settings.get("wsrep_on") == "ON":
        yield f"wsrep_on=ON, a Galera cluster: {_ONE_NODE}"
    if settings.get("group_replication_group_name") and settings.get("group_replication_single_primary_mode") == "OFF":
        yield f"group_replication_single_primary_mode=OFF: {_ONE_NODE}"
