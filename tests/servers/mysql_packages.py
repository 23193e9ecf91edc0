"""MySQL's server from Debian sid, for machines whose own packages have none: downloaded and unpacked once into a cache,
with the libraries that it needs. Nothing is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from tests.servers.cache import fetched, require_access
from tests.servers.finding import Unavailable

SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_MIRROR = "http://deb.debian.org/debian"
_PACKAGE = "mysql-server-core"
_SOURCE = "Types: deb\nURIs: {}\nSuites: sid\nComponents: main\nSigned-By: {}\n"


def cached_server() -> list[str]:
    """The command that runs it, fetched first if the cache does not have it. Raises Unavailable."""
    command = _command(fetched("mysql-server", _fetch))
    require_access(command[0])
    return command


def mirror() -> str:
    """The mirror of Debian that this machine uses."""
    for source in SOURCES:
        text = source.read_text() if source.exists() else ""
        for uri in re.findall(r"^(?:URIs:|deb(?: \[[^]]*\])?) +(\S+)", text, re.MULTILINE):
            if re.search(r"/debian/?$", uri):  # neither debian-security nor another distribution
                return str(uri)
    return _MIRROR


def _require_debian() -> None:
    otherwise = "set WIGGLE_TEST_MYSQL_URL, run Docker, or put mysqld 8.0 or newer on the PATH"
    missing = [each for each in ("apt-get", "dpkg") if shutil.which(each) is None]
    if missing:
        raise Unavailable(f"{otherwise} (to fetch Debian's, {' and '.join(missing)} would be needed)")
    asked = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=False)
    if asked.stdout.strip() != "amd64":
        raise Unavailable(f"{otherwise} (Debian's is fetched for amd64 only)")
    if not _KEYRING.exists():
        raise Unavailable(f"{otherwise}, or install debian-archive-keyring so that Debian's can be fetched")


def _fetch(folder: Path, root: Path) -> None:
    """Download into the folder, and unpack at the root."""
    _require_debian()
    for each in ("lists/partial", "archives/partial", "sources", root.name):
        (folder / each).mkdir(mode=0o755, parents=True)
    (folder / "status").touch()
    (folder / "sources" / "sid.sources").write_text(_SOURCE.format(mirror(), _KEYRING))
    _apt(folder, "update")
    _apt(folder, "install", "--yes", "--no-install-recommends", "--download-only", _PACKAGE)
    for package in sorted((folder / "archives").glob("*.deb")):
        _run("dpkg", "-x", str(package), str(root))


def _apt(folder: Path, *arguments: str) -> None:
    """apt with lists of its own, on a machine where no package is installed: so all that are needed are downloaded."""
    settings = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": folder / "sources",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder,
        "Acquire::Languages": "none",
        "APT::Update::Error-Mode": "any",  # a mirror that is away is no warning here
        "Debug::NoLocking": "1",  # the lock that apt would take is that of the machine's own packages
    }
    _run(
        "apt-get", "-qq", *(part for name, value in settings.items() for part in ("-o", f"{name}={value}")), *arguments
    )


def _run(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        what = " ".join(each for each in command if "=" not in each and each != "-o")
        raise Unavailable(f"MySQL from Debian sid: {what} failed: {(ran.stderr or ran.stdout).strip()[-500:]}")


def _command(root: Path) -> list[str]:
    """It runs with sid's own loader and libraries: it asks for a newer libc than the machine may have."""
    loader = next((root / "usr" / "lib").glob("*/ld-linux-*.so.*"), None)
    if loader is None:
        raise Unavailable(f"{root} has no whole MySQL: remove it, and it is fetched again")
    libraries = (loader.parent, root / "usr/lib/mysql/plugin")
    return [
        str(loader),
        "--library-path",
        ":".join(map(str, libraries)),
        str(root / "usr/sbin/mysqld"),
        "--no-defaults",
        f"--basedir={root / 'usr'}",
        f"--lc-messages-dir={root / 'usr/share/mysql'}",
        f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
    ]
