"""Cassandra from Maven: downloaded once into the cache, since no distribution has a package. Nothing is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.servers.cache import fetched, require_access
from tests.servers.finding import Unavailable

VERSION = "5.0.5"

JAVA = (11, 17)
"""The versions of Java that Cassandra 5.0 runs on."""

JVMS = Path("/usr/lib/jvm")
"""Where Debian installs all of them."""

_OTHERWISE = "set WIGGLE_TEST_CASSANDRA_URL, run Docker, or install"
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>wiggle</groupId><artifactId>fetch</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>org.apache.cassandra</groupId><artifactId>cassandra-all</artifactId><version>{VERSION}</version>
  </dependency></dependencies>
</project>
"""


def cached_jars() -> Path:
    """The folder of Cassandra's jars, fetched first if the cache does not have them (66 MB). Raises Unavailable."""
    jars = fetched(f"cassandra-{VERSION}", _fetch)
    require_access(jars)
    return jars


def java() -> str:
    """A Java that Cassandra runs on: that of JAVA_HOME, of the PATH, or one beside it. Raises Unavailable."""
    homes = [os.environ["JAVA_HOME"]] if os.environ.get("JAVA_HOME") else []
    beside = sorted(JVMS.glob("*/bin/java"))
    for each in (*(f"{home}/bin/java" for home in homes), shutil.which("java"), *map(str, beside)):
        if each and _version(each) in JAVA:
            return each
    raise Unavailable(f"{_OTHERWISE} Java 17, as Debian's package openjdk-17-jre-headless")


def maven() -> str | None:
    """The program, on the PATH."""
    return shutil.which("mvn")


def _version(program: str) -> int | None:
    try:
        asked = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(r'version "(\d+)', asked.stderr)
    return int(found[1]) if found else None


def _fetch(folder: Path, jars: Path) -> None:
    """Download them. Maven's own repository is in the folder, too: nothing stays in the home of whoever runs this."""
    program = maven()
    if program is None:
        raise Unavailable(f"{_OTHERWISE} Maven, which fetches Cassandra: Debian's package maven")
    (folder / "pom.xml").write_text(_POM)
    goal = ("dependency:copy-dependencies", f"-DoutputDirectory={jars}", f"-Dmaven.repo.local={folder / 'repository'}")
    ran = subprocess.run([program, "-q", "-B", *goal], cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Unavailable(f"Cassandra from Maven: {program} failed: {(ran.stdout + ran.stderr).strip()[:500]}")
    jars.chmod(0o755)
    for each in jars.iterdir():
        each.chmod(0o644)
