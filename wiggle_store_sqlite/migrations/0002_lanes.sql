-- Lanes: which there are, what is in them, and the numbers by which none of it is lost.

-- Grows each time a task enters READY; a task that leaves history goes on with the number that it had.
ALTER TABLE task ADD COLUMN ready_no INTEGER NOT NULL DEFAULT 1;
ALTER TABLE history ADD COLUMN ready_no INTEGER NOT NULL DEFAULT 1;

-- One row. `forgotten` is the revision of the last closed lane that was deleted. `last_number` is the highest number of
-- the tasks that were purged: no number is given twice, so that number and ready_no together are those of one time at
-- which one task was READY, whatever its id.
CREATE TABLE counter (
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    forgotten INTEGER NOT NULL,
    last_number INTEGER NOT NULL
) STRICT;

INSERT INTO counter (epoch, revision, forgotten, last_number) VALUES (0, 0, 0, 0);

CREATE TABLE lane (
    -- Never given twice.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    state TEXT NOT NULL,
    queue TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    is_pinned INTEGER NOT NULL,
    opened_at INTEGER NOT NULL,
    used_at INTEGER NOT NULL,
    -- When somebody last told that it is being filled or cleared.
    work_at INTEGER NOT NULL,
    hits INTEGER NOT NULL,
    reason TEXT NOT NULL,
    -- JSON, the same for the same normal form.
    predicate TEXT NOT NULL
) STRICT;

CREATE UNIQUE INDEX lane_entered ON lane (queue, predicate) WHERE state IN ('FILLING', 'OPEN');
CREATE INDEX lane_unfinished ON lane (work_at) WHERE state IN ('FILLING', 'CLOSING');
CREATE INDEX lane_revision ON lane (revision);

-- In claim order. The task is found by its number.
CREATE TABLE lane_task (
    lane INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    id TEXT NOT NULL,
    ready_no INTEGER NOT NULL,
    number INTEGER NOT NULL,
    PRIMARY KEY (lane, priority, created_at, ready_at, id, ready_no, number)
) STRICT, WITHOUT ROWID;
