-- Tasks, their payloads, history and documents.
--
-- Measured at 1,000,000 READY tasks with payloads of 200 bytes (20,000 bytes in brackets), SQLite 3.40, FULL, batches
-- of 1,000 for insert, medians. "random ids": ids in no order, as users' own may be.
--
--   layout                               insert/s          random ids  claim 10        settle 100       walk, random  bytes/task
--   rowid, payload inline last           148,000 (15,900)  -           0.27 ms (0.85)  0.92 ms (13.6)   -              546
--   WITHOUT ROWID, payload inline last   164,000 (13,700)  -           0.26 ms (1.10)  0.85 ms (14.0)   -              508
--   WITHOUT ROWID, payload apart         149,000 (12,700)  14,200      0.26 ms (0.34)  0.70 ms (0.80)   2,535 ms       584
--   rowid, payload apart (chosen)        142,000 (16,300)  36,500      0.26 ms (0.26)  0.81 ms (0.81)     690 ms       556
--
-- An inline payload is written again by each change of the row and moved with it into history; a table ordered by
-- text ids is slow to fill and to walk when those come in no order.
--
-- `number` is the same in task or history and in payload. A payload stays where it is until its task is purged, so
-- the highest number in use is payload's.

CREATE TABLE task (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    step TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    state TEXT NOT NULL,
    attributes TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    workflow TEXT,
    version INTEGER,
    node TEXT,
    kind TEXT NOT NULL,
    correlation_id TEXT,
    -- NULL for a task that stands alone: its instance is itself.
    instance_id TEXT,
    -- NULL for the default policy.
    retry TEXT,
    owner TEXT,
    token TEXT,
    lease_until INTEGER,
    -- When `due` last returned it: it is kept from other sweepers for some seconds.
    reserved_at INTEGER,
    error TEXT
) STRICT;

CREATE UNIQUE INDEX task_id ON task (id);

-- Each live task is in one of these, so that no state costs the others anything (O3).
CREATE INDEX task_dispatch ON task (queue, priority, created_at, ready_at, id) WHERE state = 'READY';
CREATE INDEX task_scheduled ON task (ready_at, id) WHERE state = 'SCHEDULED';
CREATE INDEX task_leased ON task (lease_until, id) WHERE state = 'RUNNING';

CREATE TABLE payload (
    number INTEGER PRIMARY KEY,
    body TEXT NOT NULL
) STRICT;

CREATE TABLE history (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    queue TEXT NOT NULL,
    step TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    state TEXT NOT NULL,
    attributes TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    workflow TEXT,
    version INTEGER,
    node TEXT,
    kind TEXT NOT NULL,
    correlation_id TEXT,
    instance_id TEXT,
    retry TEXT,
    owner TEXT,
    token TEXT,
    lease_until INTEGER,
    finished_at INTEGER NOT NULL,
    result TEXT,
    error TEXT
) STRICT;

CREATE UNIQUE INDEX history_id ON history (id);
CREATE INDEX history_finished ON history (finished_at);

CREATE TABLE document (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    revision INTEGER NOT NULL,
    body TEXT NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (kind, key)
) STRICT, WITHOUT ROWID;
