-- Lanes (design N1-N3): their registry, the numbers by which a change of them is noticed, and their rows.

CREATE TABLE IF NOT EXISTS $lane (
    id BIGINT NOT NULL AUTO_INCREMENT,
    epoch BIGINT NOT NULL,
    -- That of its last change; `lane_number` has the last one of all.
    revision BIGINT NOT NULL,
    opened_at BIGINT NOT NULL,
    used_at BIGINT NOT NULL,
    work_at BIGINT NOT NULL,
    hits BIGINT NOT NULL DEFAULT 0,
    is_pinned BOOLEAN NOT NULL,
    state VARCHAR(10) NOT NULL,
    queue VARCHAR(255) NOT NULL,
    -- JSON text, as in criteria, and what stands for it in the index.
    digest CHAR(64) NOT NULL,
    predicate LONGTEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (id),
    KEY lane_entered (queue, digest),
    KEY lane_changed (revision),
    KEY lane_state (state)
) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation;

-- One row. Whoever changes lanes locks it. Below `forgotten` there were changes of lanes that are gone.
CREATE TABLE IF NOT EXISTS $lane_number (
    id TINYINT NOT NULL,
    epoch BIGINT NOT NULL,
    revision BIGINT NOT NULL,
    forgotten BIGINT NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation;

INSERT IGNORE INTO $lane_number (id, epoch, revision, forgotten) VALUES (1, 0, 0, 0);

-- The present epoch, and those before it that somebody may still hold. Its rows are there to be locked.
CREATE TABLE IF NOT EXISTS $lane_epoch (
    epoch BIGINT NOT NULL,
    PRIMARY KEY (epoch)
) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation;

INSERT IGNORE INTO $lane_epoch (epoch) VALUES (0);

-- What a claim by a lane reads, in claim order. Rows come and go with their tasks and are never changed.
CREATE TABLE IF NOT EXISTS $lane_task (
    lane BIGINT NOT NULL,
    priority INT NOT NULL,
    created_at BIGINT NOT NULL,
    ready_at BIGINT NOT NULL,
    id VARCHAR(64) NOT NULL,
    ready_no BIGINT NOT NULL,
    PRIMARY KEY (lane, priority, created_at, ready_at, id, ready_no)
) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation;
