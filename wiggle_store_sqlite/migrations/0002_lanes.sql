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

-- In claim order; a claim finds the task by its number. Measured with 300,000 tasks of 200 bytes in batches of 1,000,
-- each in one lane, SQLite 3.40, FULL, beside other work on the machine: seconds for the lane rows, alone and with all
-- commits; then a claim's read of 10 tasks in a lane, median. What goes to 1,000 lanes touches as many pages, in every
-- layout.
--
--   layout                                     5 lanes               1,000 lanes            size of the file
--   WITHOUT ROWID, task by number (chosen)     2.5   6.1   7 us      11.6  27.7   16 us     126 MiB
--   WITHOUT ROWID, task by its id              2.9   7.9   9 us      10.4  26.3   24 us     126 MiB
--   rowid and a unique index, by number        2.7   7.0   7 us      10.0  26.4   17 us     147 MiB

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
