-- Tasks, their payloads, history and documents.
--
-- `$name` stands for a table of ours with its database and prefix; `$collation` for the exact collation of the product,
-- binary and without padding: utf8mb4_0900_bin on MySQL, utf8mb4_nopad_bin on MariaDB (MY4). Its order is that of code
-- points.
--
-- Statements of DDL commit by themselves, so each of them must do no harm when a migration that broke off runs again.
--
-- Each task has its one row in `payload` from enqueue to purge, live or in history: its primary key is what decides
-- whether an id is taken (L4).

CREATE TABLE IF NOT EXISTS $task (
    id VARCHAR(64) NOT NULL,
    queue VARCHAR(255) NOT NULL,
    state VARCHAR(10) NOT NULL,
    priority INT NOT NULL,
    created_at BIGINT NOT NULL,
    ready_at BIGINT NOT NULL,
    -- New each time the task becomes READY: rows of lanes are told apart by it.
    ready_no BIGINT NOT NULL DEFAULT 0,
    -- When a sweeper has to look at it: the time it is SCHEDULED for, or the end of its lease. NULL while READY.
    due_at BIGINT,
    -- When `due` last returned it: it is kept from other sweepers for some seconds.
    reserved_at BIGINT,
    attempt BIGINT NOT NULL,
    version BIGINT,
    step VARCHAR(255) NOT NULL,
    kind VARCHAR(255) NOT NULL,
    workflow VARCHAR(255),
    node VARCHAR(255),
    correlation_id VARCHAR(255),
    -- NULL for a task that stands alone: its instance is itself.
    instance_id VARCHAR(64),
    -- NULL for the default policy.
    retry TEXT,
    owner TEXT,
    token VARCHAR(64),
    lease_until BIGINT,
    error LONGTEXT,
    attributes JSON NOT NULL,
    PRIMARY KEY (id),
    -- The claim order (O1) of each queue and state. It ends in the primary key, so that no sort is ever needed (MY1).
    KEY task_dispatch (queue, state, priority, created_at, ready_at, id),
    KEY task_due (due_at, id)
) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation;

CREATE TABLE IF NOT EXISTS $payload (
    id VARCHAR(64) NOT NULL,
    body LONGTEXT NOT NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation;

CREATE TABLE IF NOT EXISTS $history (
    id VARCHAR(64) NOT NULL,
    queue VARCHAR(255) NOT NULL,
    state VARCHAR(10) NOT NULL,
    priority INT NOT NULL,
    created_at BIGINT NOT NULL,
    ready_at BIGINT NOT NULL,
    ready_no BIGINT NOT NULL DEFAULT 0,
    finished_at BIGINT NOT NULL,
    attempt BIGINT NOT NULL,
    version BIGINT,
    step VARCHAR(255) NOT NULL,
    kind VARCHAR(255) NOT NULL,
    workflow VARCHAR(255),
    node VARCHAR(255),
    correlation_id VARCHAR(255),
    instance_id VARCHAR(64),
    retry TEXT,
    owner TEXT,
    token VARCHAR(64),
    lease_until BIGINT,
    result LONGTEXT,
    error LONGTEXT,
    attributes JSON NOT NULL,
    PRIMARY KEY (id),
    KEY history_finished (finished_at)
) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation;

CREATE TABLE IF NOT EXISTS $document (
    kind VARCHAR(255) NOT NULL,
    name VARCHAR(255) NOT NULL,
    revision BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    body LONGTEXT NOT NULL,
    PRIMARY KEY (kind, name)
) ENGINE = InnoDB, ROW_FORMAT = DYNAMIC, DEFAULT CHARACTER SET utf8mb4, COLLATE $collation;
