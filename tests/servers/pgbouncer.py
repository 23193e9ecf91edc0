"""pgbouncer in transaction mode before a PostgreSQL server, from Debian's package."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from sqlalchemy import URL, make_url

from tests.servers.finding import Unavailable
from tests.servers.processes import as_unprivileged, free_port, program

_CONFIGURATION = """
[databases]
* = host={url.host} port={url.port} user={url.username} {password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 20
max_client_conn = 200
"""


@contextmanager
def running_pgbouncer(postgres_url: str) -> Iterator[str]:
    """The URL of the same database, by way of the pooler. Raises Unavailable."""
    pgbouncer = program("pgbouncer")
    if pgbouncer is None:
        raise Unavailable("install Debian's package pgbouncer")
    folder, port, url = Path(mkdtemp(prefix="wiggle-pgbouncer-")), free_port(), make_url(postgres_url)
    folder.chmod(0o755)
    file = folder / "pgbouncer.ini"
    password = f"password={url.password}" if url.password else ""
    file.write_text(_CONFIGURATION.format(url=url, port=port, password=password))
    pooler = subprocess.Popen([*as_unprivileged(), pgbouncer, "-q", str(file)], stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield _by_way_of(url, port)
    finally:
        pooler.terminate()
        pooler.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _by_way_of(url: URL, port: int) -> str:
    through = url.set(host="127.0.0.1", port=port).update_query_dict({"pgbouncer": "1"})
    return through.render_as_string(hide_password=False)


def _wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise Unavailable("pgbouncer did not start")
