"""A third party's store, in an environment of its own: installed, tested by the kit, listed, used by URL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wiggle_core.conformance as kit

if TYPE_CHECKING:
    from tests.conftest import CleanEnvironment

ROWS = 2000


def _told(environment: CleanEnvironment, cwd: Path, *arguments: str) -> Any:  # Any: JSON of any shape
    done = environment.run(["wiggle", *arguments, "--json"], cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_environment_is_not_this_checkout(clean_environment: CleanEnvironment, tmp_path: Path) -> None:
    """Style: what is proven here holds for what pip installed, package data included."""
    code = "import wiggle_core, wiggle_store_journal as j; print(wiggle_core.__file__); print(j.__file__)"
    done = clean_environment.run(["python", "-c", code], tmp_path)
    places = done.stdout.splitlines()
    assert len(places) == 2, done.stderr
    assert all(place.startswith(str(clean_environment.folder)) for place in places)


def test_its_own_tests_are_green(clean_environment: CleanEnvironment) -> None:
    """Section 6: the example passes the whole kit and its own tests; only what it does not claim to do is skipped."""
    done = clean_environment.run(["pytest", "-p", "no:cacheprovider", "-rs"], clean_environment.example)
    assert done.returncode == 0, done.stdout[-4000:]
    [passed] = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > len(kit.__all__)
    skipped = re.findall(r"^SKIPPED .*", done.stdout, re.MULTILINE)
    assert all("journal: capability" in each for each in skipped), skipped


def test_it_is_listed(clean_environment: CleanEnvironment, tmp_path: Path) -> None:
    """Section 9: `wiggle plugins` lists it beside our own, by its entry point alone."""
    listed = {each["scheme"]: each for each in _told(clean_environment, tmp_path, "plugins")}
    assert {"memory", "sqlite", "journal"} <= listed.keys()
    journal = listed["journal"]
    assert (journal["package"], journal["driver"], journal["installed"]) == ("wiggle-store-journal", "fcntl", True)
    assert journal["live_tested"]


def test_the_demo_runs_on_it(clean_environment: CleanEnvironment, tmp_path: Path) -> None:
    """Section 9: by URL it serves the demo's processes; every flight is taken once or is still there."""
    url = f"journal:///{tmp_path}/demo.journal"
    workers = _told(clean_environment, tmp_path, "demo", "--rows", str(ROWS), "--store", url)["workers"]
    assert sum(1 for worker in workers if worker["took"]) > 2
    slices = _told(clean_environment, tmp_path, "backlog", "--store", url)["slices"]
    assert sum(worker["took"] for worker in workers) + sum(each["ready"] for each in slices) == ROWS
    assert _told(clean_environment, tmp_path, "db", "check", "--store", url)["findings"] == []
