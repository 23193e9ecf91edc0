"""A fault campaign of a few seconds: on a right store it finds nothing, on a wrong one it says what and how to replay.

The two run side by side, for most of their time is waiting. `python -m tests.campaign` runs long ones; saboteurs that
need chosen moments to be met for sure are in tests/campaign/test_audit.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ["--minutes", "0.06", "--actors", "5", "--lease", "0.6", "--seed", "7"]


class Campaign:
    """A campaign that runs meanwhile."""

    def __init__(self, place: Path, *options: str) -> None:
        place.mkdir()
        self.place, self.url = place, f"sqlite:///{place}/tasks.db"
        command = [sys.executable, "-W", "error", "-m", "tests.campaign", "--store", self.url]
        self._process = subprocess.Popen(
            [*command, "--directory", str(place), *SMALL, *options],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """The exit code, and all that it printed."""
        out, _ = self._process.communicate(timeout=120)
        return self._process.returncode, out

    def stop(self) -> None:
        """SIGTERM would leave its actors behind; it ends them itself when it is interrupted."""
        if self._process.poll() is None:
            self._process.send_signal(2)
            self._process.communicate()


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Campaign, Campaign]]:
    place = tmp_path_factory.mktemp("campaigns")
    both = (
        Campaign(place / "right", "--kills", "3"),
        Campaign(place / "wrong", "--kills", "0", "--sabotage", "forgetful"),
    )
    yield both
    for each in both:
        each.stop()


def test_nothing_is_wrong_with_sqlite(campaigns: tuple[Campaign, Campaign]) -> None:
    """L1-L6: processes are killed, stopped, starved and misled about the time, and every task is accounted for."""
    campaign, _ = campaigns
    code, out = campaign.end()
    assert (code, out.splitlines()[-1]) == (0, "PASS"), out
    assert "killed 3 of 3 planned" in out
    [tasks] = re.findall(r"tasks +([\d,]+)$", out, re.MULTILINE)
    assert int(tasks.replace(",", "")) > 20
    assert {each.name.partition("-")[0] for each in campaign.place.iterdir()} == {"tasks.db"}, "ledgers were left"


def test_a_wrong_store_fails_and_the_seed_is_told(campaigns: tuple[Campaign, Campaign]) -> None:
    """L4: the audit finds what a saboteur does, keeps the ledgers, and prints the command that replays the plan."""
    _, campaign = campaigns
    code, out = campaign.end()
    assert code == 1, out
    [lost] = re.findall(r"lost \(L4\) +(\d+)$", out, re.MULTILINE)
    assert int(lost) > 0, out
    command = out.splitlines()[-1].strip()
    assert command.startswith(f"python -m tests.campaign --store {campaign.url} --minutes 0.06 --kills 0 --seed 7")
    assert command.endswith("--sabotage forgetful")
    assert list(campaign.place.glob("campaign-*/*.ledger"))


def test_a_store_of_one_process_is_refused() -> None:
    """Section 6: capabilities decide whether there is anything to kill."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaign", "--store", "memory://"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "capability processes is false" in done.stderr) == (2, True)
