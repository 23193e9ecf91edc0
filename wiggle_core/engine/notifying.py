"""`Messenger`: a thread that tells other processes on which queues tasks became READY, and hears it from them.

Nobody waits for it. What it says is a hint; where it is lost, as the line may be, workers find the tasks when they
look again. With each line that is opened everyone is woken, since nobody knows what was said before.
"""

from __future__ import annotations

import atexit
import logging
import os
import select
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from threading import Lock, Thread, current_thread
from time import sleep

from wiggle_core.errors import StoreError
from wiggle_core.stores.replay import log_error
from wiggle_core.stores.store import Line, Notify

_log = logging.getLogger("wiggle.engine")

TELL_PAUSE = 0.01
"""Seconds between two tellings. What becomes READY meanwhile is told together: a hundred times a second is enough."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before a lost line is opened again; they double while it cannot be."""
CLOSE_SECONDS = 5.0
"""How long `close` waits for the last hints to be told."""


class Messenger:
    """Hints to and from other processes. `wake` is called in the messenger's thread with the name of a queue, or with
    None when tasks may be READY on any."""

    def __init__(self, store: Notify, wake: Callable[[str | None], None]) -> None:
        self._store = store
        self._wake = wake
        self._posts: dict[int, _Post] = {}
        """By process: neither threads nor connections outlive a fork, and the parent's are not touched."""

    def tell(self, queues: Iterable[str]) -> None:
        """Name queues to the others, soon. Returns at once."""
        self._post().tell(queues)

    def listen(self) -> None:
        """Hear the others from now on."""
        self._post().listen()

    def close(self) -> None:
        """Tell what is left, and end the thread."""
        if os.getpid() in self._posts:
            self._posts[os.getpid()].close()

    def _post(self) -> _Post:
        process = os.getpid()
        return self._posts.get(process) or self._posts.setdefault(process, _Post(self._store, self._wake))


class _Post:
    """The thread of one process, and what it is to tell."""

    def __init__(self, store: Notify, wake: Callable[[str | None], None]) -> None:
        self._store = store
        self._wake = wake
        self._process = os.getpid()
        self._lock = Lock()
        self._queues: set[str] = set()
        self._hears = self._is_closed = False
        self._pause = FIRST_PAUSE
        self._thread: Thread | None = None
        self._bell = self._rope = -1

    def tell(self, queues: Iterable[str]) -> None:
        with self._lock:
            self._queues.update(queues)
            self._ring()

    def listen(self) -> None:
        with self._lock:
            if not self._hears:
                self._hears = True
                self._ring()

    def close(self) -> None:
        if os.getpid() != self._process:  # called at the end of a forked child, which has a copy and no thread
            return
        with self._lock:
            thread, self._is_closed = self._thread, True
            if thread is None or self._rope < 0:
                return
            self._ring()
        if thread is not current_thread():
            thread.join(CLOSE_SECONDS)

    def _ring(self) -> None:
        """Have the thread look, which begins with the first call."""
        if self._thread is None and not self._is_closed:
            try:
                self._begin()
            except (OSError, RuntimeError) as error:  # no file or thread is left, or the interpreter is ending
                # Not raised: whoever enqueued has stored the task.
                _log.warning("other processes are not told of tasks yet: %s", error)
        if self._rope >= 0:
            with suppress(BlockingIOError):  # it rings already
                os.write(self._rope, b"\0")

    def _begin(self) -> None:
        thread = Thread(target=self._run, name="wiggle-messenger", daemon=True)
        if self._rope < 0:
            self._bell, self._rope = os.pipe()
            os.set_blocking(self._bell, False)
            os.set_blocking(self._rope, False)
        thread.start()
        self._thread = thread
        # A program that ends without closing its engine has told nothing yet of the last tasks it enqueued.
        atexit.register(self.close)

    # In the thread

    def _run(self) -> None:
        while not self._is_closed or self._queues:
            try:
                self._serve()
            except StoreError as error:
                log_error(error)
            except Exception:
                _log.exception("the line to other processes failed, and is opened again")
            else:
                continue
            if self._is_closed:
                break
            self._await(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._end()

    def _serve(self) -> None:
        """Use one line until it is lost, or another is needed."""
        hears = self._hears
        with closing(self._store.open_line(hears=hears)) as line:
            self._pause = FIRST_PAUSE
            if hears:
                self._wake(None)
            while hears == self._hears:
                is_last = self._is_closed
                self._tell_all(line)
                if is_last:
                    return
                for queue in line.heard():
                    self._wake(queue)
                self._await(None, line)

    def _tell_all(self, line: Line) -> None:
        with self._lock:
            queues, self._queues = self._queues, set()
        if not queues:
            return
        try:
            line.tell(queues)
        except BaseException:
            with self._lock:
                self._queues |= queues
            raise
        sleep(TELL_PAUSE)

    def _await(self, seconds: float | None, line: Line | None = None) -> None:
        """Wait for the bell, for what comes by the line, and no longer than `seconds`."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if line is not None:
            poll.register(line.fileno(), select.POLLIN)
        poll.poll(None if seconds is None else seconds * 1_000)
        with suppress(BlockingIOError):
            os.read(self._bell, 4_096)

    def _end(self) -> None:
        atexit.unregister(self.close)
        with self._lock:
            os.close(self._bell)
            os.close(self._rope)
            self._bell = self._rope = -1
