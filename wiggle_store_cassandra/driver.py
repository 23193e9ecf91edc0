"""The driver's cluster and session, set up so that nothing is ever sent twice (CA3) and no clock of ours counts (CA4).

The driver has no types, and what a checker infers from its code is wrong where attributes begin as None: what is `Any`
here stands for its classes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from wiggle_store_cassandra.event_loop import connection_class  # isort: skip # before the driver

from cassandra import ConsistencyLevel, ProtocolVersion
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.metadata import KeyspaceMetadata
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    NoSpeculativeExecutionPolicy,
    TokenAwarePolicy,
)
from cassandra.query import tuple_factory

from wiggle_store_cassandra.errors import DRIVER_ERRORS, UnknownDatacenter
from wiggle_store_cassandra.place import Place

_HEARTBEAT = 10
"""Seconds after which an idle connection is tried, and again until one that is silent is given up."""

_RECONNECT = 0.25, 5.0
"""Seconds between tries to reach a node that is down: at first, and at most."""

_REPLICATION = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"


def connect(place: Place) -> tuple[Cluster, Session]:
    """A session that is bound to no keyspace, and the cluster to shut down at its end. Raises DRIVER_ERRORS."""
    cluster = _cluster(place)
    # Where to begin; an explicit version would forbid an older one.
    cluster.protocol_version = ProtocolVersion.V5
    try:
        session = cluster.connect()
        session.use_client_timestamp = False  # plain writes count by the server's time (CA4)
        learn_replicas(place, cluster, session)
    except DRIVER_ERRORS as error:
        known = _datacenters(cluster)
        with suppress(Exception):
            cluster.shutdown()
        if isinstance(error, NoHostAvailable) and place.local_dc and known and place.local_dc not in known:
            raise UnknownDatacenter(known) from error
        raise
    return cluster, session


def learn_replicas(place: Place, cluster: Any, session: Any) -> None:
    """Have statements sent to nodes that hold what they are about, if the keyspace is there: again after it was made.

    The driver would read the schema of every keyspace for this, at the start and after each change of a table.
    """
    row = session.execute(_REPLICATION, (place.keyspace,)).one()
    if row is not None:
        options = dict(row[0])
        known = KeyspaceMetadata(place.keyspace, True, options.pop("class"), options)
        cluster.metadata.keyspaces[place.keyspace] = known


def local_datacenter(place: Place, cluster: Any) -> tuple[str, int]:
    """The data centre that is worked with, and how many nodes it has: what a new keyspace is replicated over."""
    host = cluster.get_control_connection_host()
    name = place.local_dc or (host.datacenter if host else None) or ""
    return name, sum(each.datacenter == name for each in cluster.metadata.all_hosts())


def _cluster(place: Place) -> Any:
    login = PlainTextAuthProvider(place.username, place.password) if place.username is not None else None
    create: Any = Cluster
    return create(
        contact_points=list(place.hosts),
        port=place.port,
        auth_provider=login,
        ssl_context=place.tls.context() if place.tls else None,
        connection_class=connection_class(),
        execution_profiles={EXEC_PROFILE_DEFAULT: _profile(place)},
        reconnection_policy=ExponentialReconnectionPolicy(*_RECONNECT),
        connect_timeout=place.connect_timeout,
        control_connection_timeout=place.connect_timeout,
        idle_heartbeat_interval=_HEARTBEAT,
        idle_heartbeat_timeout=_HEARTBEAT,
        schema_metadata_enabled=False,
        schema_event_refresh_window=-1,
        monitor_reporting_enabled=False,
        application_name="wiggle",
    )


def _profile(place: Place) -> ExecutionProfile:
    """Only the local data centre is asked: LOCAL_QUORUM and LOCAL_SERIAL say nothing about another one."""
    near = DCAwareRoundRobinPolicy(place.local_dc or "")
    return ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(near, shuffle_replicas=True),
        retry_policy=FallthroughRetryPolicy(),
        speculative_execution_policy=NoSpeculativeExecutionPolicy(),
        consistency_level=ConsistencyLevel.LOCAL_QUORUM,
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
        request_timeout=place.timeout,
        row_factory=tuple_factory,
    )


def _datacenters(cluster: Any) -> list[str]:
    return sorted({each.datacenter for each in cluster.metadata.all_hosts() if each.datacenter})
