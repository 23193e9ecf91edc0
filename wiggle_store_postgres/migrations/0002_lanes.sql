-- Lanes (design N1-N3): their registry, the number by which a change of them is noticed, and their rows.
--
-- `ready_no` of a task is new each time it becomes READY, and never that of another time, whatever became of the task
-- and of its id in between: so a lane row that has died cannot live again (PG13). Tasks from before this migration
-- have 0; the sequence begins above.

ALTER TABLE task ADD COLUMN ready_no bigint NOT NULL DEFAULT 0;

CREATE SEQUENCE ready AS bigint START 1 CACHE 1;

CREATE TABLE lane (
    id bigint GENERATED ALWAYS AS IDENTITY,
    epoch bigint NOT NULL,
    -- That of its last change; `lane_epoch` has the last one of all.
    revision bigint NOT NULL,
    opened_at bigint NOT NULL,
    used_at bigint NOT NULL,
    work_at bigint NOT NULL,
    hits bigint NOT NULL DEFAULT 0,
    is_pinned boolean NOT NULL,
    state text COLLATE "C" NOT NULL,
    queue text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    -- JSON text, as in criteria.
    predicate text COLLATE "C" NOT NULL,
    reason text COLLATE "C" NOT NULL,
    CONSTRAINT lane_id PRIMARY KEY (id)
) WITH (fillfactor = 70);

CREATE UNIQUE INDEX lane_entered ON lane (queue, fingerprint) WHERE state IN ('FILLING', 'OPEN');
CREATE INDEX lane_changed ON lane (revision);
CREATE INDEX lane_unfinished ON lane (id) WHERE state IN ('FILLING', 'CLOSING');

-- One row. Below `forgotten` there were changes of lanes that are gone; every epoch up to `drained` is held by nobody.
CREATE TABLE lane_epoch (
    epoch bigint NOT NULL,
    revision bigint NOT NULL,
    forgotten bigint NOT NULL,
    drained bigint NOT NULL
) WITH (fillfactor = 10);

INSERT INTO lane_epoch VALUES (0, 0, 0, -1);

-- What a claim by a lane reads, in claim order. Rows come and go with their tasks and are never changed.
CREATE TABLE lane_task (
    lane bigint NOT NULL,
    created_at bigint NOT NULL,
    ready_at bigint NOT NULL,
    ready_no bigint NOT NULL,
    priority integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    CONSTRAINT lane_task_key PRIMARY KEY (lane, priority, created_at, ready_at, id, ready_no)
) WITH (
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_analyze_threshold = 1000
);

-- Whoever makes tasks READY calls this in the same statement, and goes by the answer: the `ready_no` of those tasks,
-- or NULL if they were placed by an epoch that is over. Given NULL, since none becomes READY, it has nothing to do. The
-- lock is tried and never waited for, and it is held until
-- the transaction ends. Only then is the epoch read, by a statement of its own with a snapshot of its own: one that
-- was taken before the lock would show the past. Above READ COMMITTED there is no such snapshot.
CREATE FUNCTION hold_epoch(placed bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    number bigint;
BEGIN
    IF placed IS NULL THEN
        RETURN 0;
    END IF;
    IF pg_catalog.current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'wiggle needs READ COMMITTED' USING ERRCODE = 'invalid_transaction_state';
    END IF;
    IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(pg_catalog.hashtextextended('wiggle lanes $schema', placed)) THEN
        RETURN NULL;
    END IF;
    SELECT pg_catalog.nextval('$schema.ready') INTO number FROM $schema.lane_epoch WHERE epoch = placed;
    RETURN number;
END
$$;
