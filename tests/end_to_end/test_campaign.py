"""A fault campaign of a few seconds: on a right store it finds nothing, on a wrong one it says what and how to replay.

They run side by side, for most of their time is waiting. `python -m tests.campaign` runs long ones; saboteurs that
need chosen moments to be met for sure are in tests/campaign/test_audit.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from tests.campaign.plan import Blow, Product
from tests.servers import mariadb, mysql, postgres
from tests.servers.finding import Unavailable, skip_or_fail

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-W", "error", "-m", "tests.campaign"]


class Campaign:
    """A campaign that runs meanwhile."""

    def __init__(self, place: Path, store: Sequence[str], *options: str) -> None:
        place.mkdir()
        self.place, self.store = place, store
        self._process = subprocess.Popen(
            [*COMMAND, *store, "--directory", str(place), "--actors", "6", "--lease", "0.6", "--seed", "7", *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """The exit code, and all that it printed."""
        out, _ = self._process.communicate(timeout=600)
        return self._process.returncode, out

    def stop(self) -> None:
        """End it and its actors, which it ends itself."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.communicate()


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Campaign]]:
    place = tmp_path_factory.mktemp("campaigns")
    right, wrong = (["--store", f"sqlite:///{place}/{name}/tasks.db"] for name in ("right", "wrong"))
    all_of_them = {
        "right": Campaign(place / "right", right, "--minutes", "0.06", "--kills", "3"),
        "wrong": Campaign(place / "wrong", wrong, "--minutes", "0.06", "--kills", "0", "--sabotage", "forgetful"),
        # Every other kill is one of the server's, and each kind of them comes once.
        "postgres": Campaign(place / "postgres", ["--start-postgres"], "--minutes", "0.12", "--kills", "8"),
        # The first four of a round of ten: most kill the server, which takes seconds to recover beside the others.
        "mysql": Campaign(place / "mysql", ["--start-mysql"], "--minutes", "0.4", "--kills", "8"),
        "mariadb": Campaign(place / "mariadb", ["--start-mariadb"], "--minutes", "0.4", "--kills", "8"),
    }
    yield all_of_them
    for each in all_of_them.values():
        each.stop()


def require_nothing_wrong(campaign: Campaign, kills: int, least: int = 20) -> str:
    """What it printed."""
    code, out = campaign.end()
    assert (code, out.splitlines()[-1]) == (0, "PASS"), out
    assert f"killed {kills} of {kills} planned" in out
    [tasks] = re.findall(r"tasks +([\d,]+)$", out, re.MULTILINE)
    assert int(tasks.replace(",", "")) > least
    left = {each.name.partition("-")[0] for each in campaign.place.iterdir()}
    assert left <= {"tasks.db"}, "ledgers were left"
    return out


def test_nothing_is_wrong_with_sqlite(campaigns: dict[str, Campaign]) -> None:
    """L1-L6: processes are killed, stopped, starved and misled about the time, and every task is accounted for."""
    require_nothing_wrong(campaigns["right"], kills=3)


def test_nothing_is_wrong_with_postgres(campaigns: dict[str, Campaign]) -> None:
    """L1-L6: meanwhile a session is ended, a backend and the postmaster are killed, the server is stopped at once."""
    try:
        postgres.binaries()
    except Unavailable as reason:
        skip_or_fail("PostgreSQL of our own", reason)
    out = require_nothing_wrong(campaigns["postgres"], kills=8)
    for blow in Product.POSTGRES.blows:
        assert f"1 {blow}" in out


@pytest.mark.parametrize("module", [mysql, mariadb], ids=["mysql", "mariadb"])
def test_nothing_is_wrong_with_mysql_and_mariadb(campaigns: dict[str, Campaign], module: ModuleType) -> None:
    """L1-L6: meanwhile the server is killed, and recovers from what its log has."""
    name = module.__name__.rpartition(".")[2]
    try:
        module.programs()
    except Unavailable as reason:
        skip_or_fail(f"{name} of our own", reason)
    out = require_nothing_wrong(campaigns[name], kills=8, least=5)
    assert f" {Blow.SERVER}" in out


def test_a_wrong_store_fails_and_the_seed_is_told(campaigns: dict[str, Campaign]) -> None:
    """L4: the audit finds what a saboteur does, keeps the ledgers, and prints the command that replays the plan."""
    campaign = campaigns["wrong"]
    code, out = campaign.end()
    assert code == 1, out
    [lost] = re.findall(r"lost \(L4\) +(\d+)$", out, re.MULTILINE)
    assert int(lost) > 0, out
    command = out.splitlines()[-1].strip()
    assert command.startswith(f"python -m tests.campaign {' '.join(campaign.store)} --minutes 0.06 --kills 0 --seed 7")
    assert command.endswith("--sabotage forgetful")
    assert list(campaign.place.glob("campaign-*/*.ledger"))


def test_a_store_of_one_process_is_refused() -> None:
    """Section 6: capabilities decide whether there is anything to kill."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign", "--store", "memory://"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "capability processes is false" in done.stderr) == (2, True)
