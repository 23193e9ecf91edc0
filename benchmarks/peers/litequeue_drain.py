"""Drains a LiteQueue by the bare loop of its README: pop, read the data, done."""

from __future__ import annotations

import json
import sys
import time

from litequeue import LiteQueue  # type: ignore[import-untyped]  # no py.typed


def drain(path: str, count: int) -> dict[str, object]:
    """Enqueue, then time the loop."""
    queue = LiteQueue(path)
    with queue.transaction():
        for number in range(count):
            queue.put(json.dumps({"number": number, "to": "someone@example.org"}))
    started = time.perf_counter()
    seen = 0
    while (message := queue.pop()) is not None:
        json.loads(message.data)
        queue.done(message.message_id)
        seen += 1
    seconds = time.perf_counter() - started
    [level] = queue.conn.execute("pragma synchronous").fetchone()
    queue.close()
    return {"seconds": seconds, "tasks": seen, "synchronous": level, "concurrency": 1}


if __name__ == "__main__":
    print(json.dumps(drain(sys.argv[1], int(sys.argv[2]))))
