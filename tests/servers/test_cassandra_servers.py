"""A Cassandra node starts for real, takes settings, loses nothing to SIGKILL, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import make_url

from tests.servers import cassandra, cassandra_node, cassandra_packages
from tests.servers.cache import CACHE
from tests.servers.cassandra import own_cassandra
from tests.servers.cassandra_node import LocalCassandra
from tests.servers.finding import Unavailable, skip_or_fail
from tests.servers.folders import ServerFolder, sweep
from tests.servers.processes import ending_with_us
from wiggle_core.errors import TransientStoreError
from wiggle_store_cassandra.connections import Connections
from wiggle_store_cassandra.place import read_url

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def node() -> Iterator[LocalCassandra]:
    try:
        with own_cassandra(cluster_name="of this test") as own:
            yield own
    except Unavailable as reason:
        skip_or_fail("Cassandra", reason)


def connected(node: LocalCassandra) -> closing[Connections]:
    return closing(Connections(read_url(make_url(node.url).update_query_dict({"timeout": "60"}))))


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# A node of our own


def test_it_is_the_version_that_was_fetched(node: LocalCassandra) -> None:
    """And its settings are those of cassandra.yaml."""
    with connected(node) as connections:
        ((version, name),) = connections.rows("SELECT release_version, cluster_name FROM system.local")
    assert (version, name) == (cassandra_packages.VERSION, "of this test")


def test_it_does_not_run_as_root(node: LocalCassandra) -> None:
    assert Path(f"/proc/{node.pid}").stat().st_uid != 0


@pytest.mark.parametrize("end", [LocalCassandra.kill, LocalCassandra.stop])
def test_what_was_acknowledged_is_there_again(node: LocalCassandra, end: Callable[[LocalCassandra], None]) -> None:
    """After SIGKILL and after an orderly end, up to the last row; the process is another one, the address the same."""
    keyspace = f"kept_{end.__name__}"
    with connected(node) as connections:
        connections.define(
            f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )
        connections.define(f"CREATE TABLE {keyspace}.row (id int PRIMARY KEY)")
        for number in range(100):
            assert connections.applied([(f"INSERT INTO {keyspace}.row (id) VALUES (?) IF NOT EXISTS", (number,))])
        first = node.pid
        end(node)
        assert not is_alive(first)
        with pytest.raises(RuntimeError, match="stopped"):
            _ = node.pid
        with pytest.raises(TransientStoreError):
            connections.now()
    node.start_again()
    assert node.pid != first
    with connected(node) as connections:
        assert connections.rows(f"SELECT count(*) FROM {keyspace}.row") == [(100,)]


def test_a_setting_that_it_does_not_know_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is the node's, and the folder goes also then."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setattr(cassandra_node, "place", lambda _: Path(name))
        with pytest.raises(Unavailable, match="no_such_setting"), own_cassandra(no_such_setting=1):
            pass
        assert list(Path(name).iterdir()) == []


def test_a_folder_is_removed_when_its_owner_is_gone(tmp_path: Path) -> None:
    """By the next one, and not before."""
    tmp_path.chmod(0o755)
    mine = ServerFolder("thing", tmp_path)
    gone = tmp_path / "wiggle-gone"
    gone.mkdir()
    (gone / "lock").touch()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [mine.path]
    mine.remove()
    assert list(tmp_path.iterdir()) == []


def test_it_does_not_outlive_a_killed_test_run(tmp_path: Path) -> None:
    """Linux ends a process of ours with its owner."""
    if not ending_with_us():
        pytest.skip("setpriv is not here")
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.servers.folders import ServerFolder\n"
        "folder = ServerFolder('thing', Path(sys.argv[1]))\n"
        "process = folder.launch(['sh', '-c', 'echo begun; exec sleep 300'])\n"
        "while not folder.log.read_text():\n    time.sleep(0.01)\n"
        "print(process.pid, flush=True)\ninput()"
    )
    tmp_path.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert is_alive(pid)
        owner.kill()
        end = time.monotonic() + 60
        while is_alive(pid):
            assert time.monotonic() < end
            time.sleep(0.02)


# Where it comes from


def test_a_node_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """WIGGLE_TEST_CASSANDRA_URL comes first."""
    monkeypatch.setenv(cassandra.VARIABLE, "cassandra://named/x")
    with cassandra.running_cassandra() as url:
        assert url == "cassandra://named/x"
    assert cassandra.fetch() == cassandra.VARIABLE


def written(file: Path, script: str) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_a_java_that_it_runs_on_is_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java 11 or 17 of JAVA_HOME, else of the PATH, else one that is installed beside; a newer one is passed over."""
    older = written(tmp_path / "home/bin/java", "echo 'openjdk version \"17.0.1\" 2021' >&2")
    newer = written(tmp_path / "path/java", "echo 'openjdk version \"25\" 2025' >&2")
    monkeypatch.setenv("PATH", str(Path(newer).parent))
    monkeypatch.setattr(cassandra_packages, "JVMS", tmp_path / "jvm")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert cassandra_packages.java() == older
    monkeypatch.delenv("JAVA_HOME")
    with pytest.raises(Unavailable, match=r"set WIGGLE_TEST_CASSANDRA_URL, run Docker, .* openjdk-17-jre-headless"):
        cassandra_packages.java()
    beside = written(tmp_path / "jvm/java-11/bin/java", "echo 'openjdk version \"11.0.2\" 2019' >&2")
    assert cassandra_packages.java() == beside


def test_a_machine_without_maven_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path))
    monkeypatch.setattr(cassandra_packages, "maven", lambda: None)
    with pytest.raises(Unavailable, match="Debian's package maven"):
        cassandra_packages.cached_jars()


def test_a_download_that_fails_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What failed, and why; the next try begins anew."""
    failing = written(tmp_path / "bin/mvn", "echo no way to Maven Central; touch left; exit 1")
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setattr(cassandra_packages, "maven", lambda: failing)
    with pytest.raises(Unavailable, match="no way to Maven Central"):
        cassandra_packages.cached_jars()
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["lock"]
