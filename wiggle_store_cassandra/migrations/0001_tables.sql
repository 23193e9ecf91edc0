-- CQL. One row per partition key of `shard` and `lane` holds nothing but statics until something is there.

-- Every live task, and the rows by which it is found: see order.py for kinds and places.
CREATE TABLE IF NOT EXISTS $shard (
    space text,
    number int,
    kind tinyint,
    place blob,
    epoch bigint STATIC,
    moved bigint STATIC,
    mark bigint STATIC,
    touched int STATIC,
    version uuid,
    body text,
    payload text,
    reserved_at bigint,
    PRIMARY KEY ((space, number), kind, place)
) WITH compaction = {'class': 'LeveledCompactionStrategy'} AND gc_grace_seconds = 86400;

-- Lanes, and the numbers by which their changes are told.
CREATE TABLE IF NOT EXISTS $lane (
    space text,
    epoch bigint STATIC,
    revision bigint STATIC,
    last_id bigint STATIC,
    forgotten bigint STATIC,
    id bigint,
    version uuid,
    body text,
    PRIMARY KEY ((space), id)
) WITH compaction = {'class': 'LeveledCompactionStrategy'} AND gc_grace_seconds = 86400;

-- Settled tasks. A row is written once and deleted once.
CREATE TABLE IF NOT EXISTS $history (
    space text,
    id text,
    version uuid,
    settled_at bigint,
    number int,
    hour bigint,
    body text,
    payload text,
    PRIMARY KEY ((space, id), version)
) WITH gc_grace_seconds = 86400;

-- The same by the hour in which they moved to history, for those who look through it.
CREATE TABLE IF NOT EXISTS $settled (
    space text,
    number int,
    hour bigint,
    settled_at bigint,
    version uuid,
    id text,
    body text,
    PRIMARY KEY ((space, number, hour), settled_at, version)
) WITH gc_grace_seconds = 86400;

CREATE TABLE IF NOT EXISTS $settled_hour (
    space text,
    hour bigint,
    number int,
    PRIMARY KEY ((space), hour, number)
) WITH gc_grace_seconds = 86400;

CREATE TABLE IF NOT EXISTS $document (
    space text,
    kind text,
    name text,
    revision bigint,
    body text,
    updated_at bigint,
    PRIMARY KEY ((space, kind), name)
) WITH compaction = {'class': 'LeveledCompactionStrategy'} AND gc_grace_seconds = 86400;

-- The installations that share the keyspace. The number of shards never changes.
CREATE TABLE IF NOT EXISTS $space (
    space text,
    shards int,
    made_at bigint,
    PRIMARY KEY (space)
);
