"""A TCP proxy between a driver and its server, which counts what is asked and cuts the line when it is told to."""

from __future__ import annotations

import re
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

_MORE_RESULTS = 0x08


class Proxy:
    """Forwards connections to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.requests = 0
        """How often a client began to send after the server had."""
        self._asked_last = False
        self.cut_at: bytes | None = None
        """A regular expression. When a client sends it, the server gets it, and the line is cut once the server has
        answered all of it."""
        self.lost_at: bytes | None = None
        """Likewise, but the server does not get it: the line is cut before."""
        self.upon_loss: Callable[[], object] | None = None
        """What is done first in that case."""
        self.greeting: Callable[[bytes], bytes] | None = None
        """Changes what a server says that speaks first."""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def await_answer(self, seconds: float = 60.0) -> None:
        """Wait until the server spoke last: the end of an answer may come through behind what a driver waits for.
        Raises TimeoutError."""
        end = time.monotonic() + seconds
        while self._asked_last:
            if time.monotonic() > end:
                raise TimeoutError("the server did not answer")
            time.sleep(0.001)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with client, suppress(ConnectionRefusedError):  # by a server that is away, as the client then sees, too
            self._forward_to(socket.create_connection(("127.0.0.1", self._target)), client)

    def _forward_to(self, server: socket.socket, client: socket.socket) -> None:
        with server, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ)
            selector.register(server, selectors.EVENT_READ)
            was_client, has_begun, is_cut = False, False, False
            while True:
                for key, _ in selector.select():
                    from_client = key.fileobj is client
                    try:
                        data = (client if from_client else server).recv(65_536)
                    except ConnectionError:
                        return
                    if not data:
                        return
                    if is_cut and not from_client:
                        _drain(server, data)
                        return
                    if not (from_client or has_begun) and self.greeting is not None:
                        data = self.greeting(data)
                    has_begun = True
                    self.requests += from_client and not was_client
                    was_client = self._asked_last = from_client
                    if from_client and _is_in(self.lost_at, data):
                        if self.upon_loss is not None:
                            self.upon_loss()
                        return
                    is_cut = is_cut or (from_client and _is_in(self.cut_at, data))
                    (server if from_client else client).sendall(data)


def _is_in(pattern: bytes | None, data: bytes) -> bool:
    return pattern is not None and re.search(pattern, data) is not None


def _drain(server: socket.socket, answer: bytes, patience: float = 2.0, quiet: float = 0.2) -> None:
    """Throw away the rest of what the server answers: the first of several statements in one packet is answered before
    the last one is run. Where no end can be made out, the server may want to hear more first."""
    with suppress(OSError):  # it is quiet, or gone
        while True:
            server.settimeout(quiet if _is_whole(answer) else patience)
            more = server.recv(65_536)
            if not more:
                return
            answer += more


def _is_whole(answer: bytes) -> bool:
    """Whether this looks like the end of an answer: PostgreSQL is ready for the next query, or the last packet of MySQL
    or MariaDB tells of an error, or of the end of an answer behind which there is no other."""
    if re.search(rb"Z\0\0\0\x05[ITE]\Z", answer):
        return True
    last = b""
    while answer:
        size = int.from_bytes(answer[:3], "little")
        last, answer = answer[4 : 4 + size], answer[4 + size :]
        if len(last) < size:
            return False
    match last[:1]:
        case b"\xff":
            return True
        case b"\xfe" if len(last) == 5:
            return not last[3] & _MORE_RESULTS
        case b"\x00" if len(last) >= 7:  # as none of ours has a number of a row, nor many rows
            return not last[3] & _MORE_RESULTS
    return False
