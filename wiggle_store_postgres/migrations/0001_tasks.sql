-- Tasks, their payloads, history and documents.
--
-- Every text is in the collation "C": exact, and in the order of code points whatever the database's locale (PG10).
-- `task` is what claims read and every change writes again, so payloads and history are apart, and it is vacuumed early.
-- Measured on PostgreSQL 18.6 with synchronous_commit off, 60,000 tasks, then claim, heartbeat and settlement of 30,000
-- in hundreds, best of three:
--
--   fillfactor      insert/s    cycles/s    bytes/task full    afterwards
--   100 (chosen)      82,000      19,100                232           472
--   85                80,400      18,500                271           499
--   70                76,800      20,100                327           512
--
-- Each of these changes moves a task from one partial index to another, so none is a HOT update, and room in the page
-- gains nothing.
--
-- Attributes are `jsonb`: to test one of five took 0.15 us a row, against 0.7 us in `json`.
--
-- Each task has its one row in `payload` from enqueue to purge, live or in history: its primary key is what decides
-- whether an id is taken (L4).

CREATE TABLE task (
    created_at bigint NOT NULL,
    ready_at bigint NOT NULL,
    lease_until bigint,
    -- When `due` last returned it: it is kept from other sweepers for some seconds.
    reserved_at bigint,
    version bigint,
    attempt bigint NOT NULL,
    priority integer NOT NULL,
    state text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    step text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    workflow text COLLATE "C",
    node text COLLATE "C",
    correlation_id text COLLATE "C",
    -- NULL for a task that stands alone: its instance is itself.
    instance_id text COLLATE "C",
    -- NULL for the default policy.
    retry text COLLATE "C",
    owner text COLLATE "C",
    token text COLLATE "C",
    error text COLLATE "C",
    attributes jsonb NOT NULL,
    CONSTRAINT task_id PRIMARY KEY (id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000
);

-- Each live task is in one of these, so that no state costs the others anything (O3). The first one is the claim
-- order (O1).
CREATE INDEX task_dispatch ON task (queue, priority, created_at, ready_at, id) WHERE state = 'READY';
CREATE INDEX task_scheduled ON task (ready_at, id) WHERE state = 'SCHEDULED';
CREATE INDEX task_leased ON task (lease_until, id) WHERE state = 'RUNNING';

CREATE TABLE payload (
    id text COLLATE "C" NOT NULL,
    body text COLLATE "C" NOT NULL,
    CONSTRAINT payload_id PRIMARY KEY (id)
);

CREATE TABLE history (
    created_at bigint NOT NULL,
    ready_at bigint NOT NULL,
    lease_until bigint,
    finished_at bigint NOT NULL,
    version bigint,
    attempt bigint NOT NULL,
    priority integer NOT NULL,
    state text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    step text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    workflow text COLLATE "C",
    node text COLLATE "C",
    correlation_id text COLLATE "C",
    instance_id text COLLATE "C",
    retry text COLLATE "C",
    owner text COLLATE "C",
    token text COLLATE "C",
    error text COLLATE "C",
    result text COLLATE "C",
    attributes jsonb NOT NULL,
    CONSTRAINT history_id PRIMARY KEY (id)
);

CREATE INDEX history_finished ON history (finished_at);

CREATE TABLE document (
    revision bigint NOT NULL,
    updated_at bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    body text COLLATE "C" NOT NULL,
    CONSTRAINT document_key PRIMARY KEY (kind, key)
);
