"""One node of Cassandra in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.servers.cassandra_packages import cached_jars, java
from tests.servers.finding import Unavailable
from tests.servers.folders import ServerFolder, place
from tests.servers.processes import free_port, give

_START_SECONDS = 240.0

# What bin/cassandra would say: Java 17 keeps these from programs that do not ask for them.
_OPENED = (
    *("java.base/java.io", "java.base/java.lang", "java.base/java.lang.module", "java.base/java.nio"),
    *("java.base/java.util", "java.base/jdk.internal.loader", "java.base/jdk.internal.math"),
    *("java.base/jdk.internal.module", "java.base/jdk.internal.ref", "java.base/jdk.internal.reflect"),
    *("java.base/jdk.internal.util.jar", "java.base/sun.nio.ch", "jdk.management/com.sun.management.internal"),
)
_EXPORTED = (
    *("java.base/java.lang.ref", "java.base/java.util.concurrent", "java.base/jdk.internal.misc"),
    *("java.base/jdk.internal.ref", "java.base/sun.nio.ch", "java.management.rmi/com.sun.jmx.remote.internal.rmi"),
    *("java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.sql/java.sql"),
)
# A test run is over before the second compiler has paid for itself: a start takes a quarter less of a processor's time,
# and with the plain collector a third less of memory. Whoever measures wants both.
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_THOROUGH = ("-XX:+UseG1GC",)
_PROPERTIES = {
    "jdk.attach.allowAttachSelf": "true",
    "cassandra.skip_wait_for_gossip_to_settle": "0",
    "cassandra.ring_delay_ms": "100",
    "cassandra.superuser_setup_delay_ms": "0",
}
_LOGBACK = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %date{HH:mm:ss} %logger{20} - %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""

# One node, with little memory, that answers under its address only. What was acknowledged is in the commit log even
# when the process is killed the moment after: `periodic`, Cassandra's default, would lose up to 100 ms of it.
_SETTINGS: Mapping[str, object] = {
    "cluster_name": "wiggle",
    "num_tokens": 1,
    "partitioner": "org.apache.cassandra.dht.Murmur3Partitioner",
    "endpoint_snitch": "SimpleSnitch",
    "listen_address": "127.0.0.1",
    "rpc_address": "127.0.0.1",
    "commitlog_sync": "batch",
    "commitlog_total_space": "256MiB",
    "memtable_heap_space": "96MiB",
    "memtable_offheap_space": "96MiB",
    "file_cache_size": "32MiB",
    "networking_cache_size": "32MiB",
    "auto_snapshot": False,
}
_FOLDERS = {
    "commitlog_directory": "commitlog",
    "saved_caches_directory": "saved_caches",
    "hints_directory": "hints",
    "cdc_raw_directory": "cdc_raw",
}


class LocalCassandra:
    """One node, which does not outlive us: Linux kills it with the process that we are.

    `durable` puts its data on a disk and takes Java's settings for servers, for whoever measures. Settings are those
    of cassandra.yaml.
    """

    def __init__(self, settings: Mapping[str, object], durable: bool = False, heap: str = "512m") -> None:
        self.port = free_port()
        self._storage_port = free_port()
        self._settings = dict(settings)
        self._options = ("-Xms256m", f"-Xmx{heap}", *(_THOROUGH if durable else _QUICK))
        self._java, self._jars = java(), cached_jars()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = ServerFolder("cassandra", place(durable))
        self.folder = self._folder.path
        self.log = self._folder.log

    @property
    def url(self) -> str:
        """The keyspace that it names is not there yet."""
        return f"cassandra://127.0.0.1:{self.port}/wiggle"

    @property
    def pid(self) -> int:
        """The node's process. Raises RuntimeError when it is stopped."""
        if self._process is None:
            raise RuntimeError("the server is stopped")
        return self._process.pid

    def start(self) -> None:
        """Start it: anew, or after `stop` or `kill` with its data. Raises Unavailable."""
        if self._process is not None:
            raise RuntimeError("the server runs")
        self._process = self._folder.launch(self._command(self._configure()))
        end = time.monotonic() + _START_SECONDS
        while not _listens(self.port):
            if self._process.poll() is not None:
                self._process = None
                raise Unavailable(f"Cassandra ended as it started: {self._folder.last_words()}")
            if time.monotonic() > end:
                self.kill()
                raise Unavailable(f"Cassandra did not start: {self._folder.last_words()}")
            time.sleep(0.05)

    def start_again(self, **settings: object) -> None:
        """Start it after `stop` or `kill`, with its data; with other settings if need be. Raises Unavailable."""
        self._settings |= settings
        self.start()

    def stop(self, seconds: float = 60) -> None:
        """End the node in order, as SIGTERM does."""
        os.kill(self.pid, signal.SIGTERM)
        self._await_end(seconds)

    def kill(self) -> None:
        """End the node by SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self._await_end(30)

    def remove(self) -> None:
        """End the node if it runs, and remove its folder."""
        if self._process is not None:
            self.kill()
        self._folder.remove()

    def _await_end(self, seconds: float) -> None:
        if self._process is not None:
            self._process.wait(seconds)
        self._process = None

    def _configure(self) -> Path:
        """Write the files that it reads; the folder they are in."""
        conf, data = self.folder / "conf", self.folder / "data"
        settings = {
            **_SETTINGS,
            **{name: str(data / folder) for name, folder in _FOLDERS.items()},
            "data_file_directories": [str(data / "data")],
            "native_transport_port": self.port,
            "storage_port": self._storage_port,
            "seed_provider": [
                {
                    "class_name": "org.apache.cassandra.locator.SimpleSeedProvider",
                    "parameters": [{"seeds": f"127.0.0.1:{self._storage_port}"}],
                }
            ],
            **self._settings,
        }
        conf.mkdir(exist_ok=True)
        (conf / "cassandra.yaml").write_text(json.dumps(settings))  # which is YAML, too
        (conf / "logback.xml").write_text(_LOGBACK)
        for each in (conf, *conf.iterdir()):
            give(each)
        return conf

    def _command(self, conf: Path) -> list[str]:
        properties = {
            **_PROPERTIES,
            "cassandra.config": f"file://{conf}/cassandra.yaml",
            "logback.configurationFile": str(conf / "logback.xml"),
            "cassandra.storagedir": str(self.folder / "data"),
            "java.io.tmpdir": str(self.folder),
        }
        return [
            self._java,
            *self._options,
            "-XX:+ExitOnOutOfMemoryError",
            *(option for each in _OPENED for option in ("--add-opens", f"{each}=ALL-UNNAMED")),
            *(option for each in _EXPORTED for option in ("--add-exports", f"{each}=ALL-UNNAMED")),
            *(f"-D{name}={value}" for name, value in properties.items()),
            *("-cp", f"{conf}:{self._jars}/*", "org.apache.cassandra.service.CassandraDaemon"),
        ]


def _listens(port: int) -> bool:
    """Whether it takes clients, which it does when it is ready for them."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            return True
    except OSError:
        return False
