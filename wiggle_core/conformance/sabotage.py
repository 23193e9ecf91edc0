"""Tries the kit on wrong stores: each saboteur has to fail a check that names the rule it breaks.

One pytest session tries all of them, each by the checks of its rule; beside them the right stores have to pass every
check that caught somebody, so that no check is red for a reason of its own.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from unittest import mock

import pytest
from hypothesis import Phase, settings

from wiggle_core.conformance.contract import read_check
from wiggle_core.conformance.epoch_saboteurs import EPOCHS, TWO_STEPS
from wiggle_core.conformance.head_saboteurs import HEADS
from wiggle_core.conformance.lane_saboteurs import LANES
from wiggle_core.conformance.misreading import MISREADERS
from wiggle_core.conformance.saboteurs import LIFE, Saboteur, in_memory
from wiggle_core.stores.memory import MemoryStore

CONTROL = Saboteur("the reference store", "", in_memory(MemoryStore))
CONTROLS = (CONTROL, TWO_STEPS)
SABOTEURS = (*LIFE, *LANES, *HEADS, *EPOCHS, *MISREADERS)

_MODULE = "wiggle_core.conformance.sabotaged"
_OPTIONS = ("-p", "no:cacheprovider", "--assert=plain", "-c", os.devnull, "--rootdir", os.curdir, "-q", "--tb=no")
# Their other processes would open a right store by its URL.
_BY_URL = "wiggle_core.conformance.processes"
_SLOW = ("wiggle_core.conformance.heads_moving", "wiggle_core.conformance.lanes_audit")


@dataclass(slots=True)
class Verdict:
    """How the checks of its rule judged one store."""

    saboteur: Saboteur
    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    why: str = ""
    """The first line of what the first failed check said."""

    @property
    def is_right(self) -> bool:
        """Whether a wrong store was caught, or a right one was not."""
        return bool(self.failed) is (self.saboteur not in CONTROLS)

    def to_row(self) -> tuple[str, str, str]:
        """For people: who it is, the rule, and the checks that failed."""
        if self.saboteur in CONTROLS:
            told = ", ".join(self.failed) or f"passes all {len(self.passed)} checks"
        else:
            told = ", ".join(self.failed) or f"NOT CAUGHT by {len(self.passed)} checks"
        return self.saboteur.name, self.saboteur.rule, told

    def to_object(self) -> dict[str, object]:
        """For programs."""
        named = {"saboteur": self.saboteur.name, "rule": self.saboteur.rule, "is_right": self.is_right}
        return named | {"failed": self.failed, "passed": self.passed, "why": self.why}


def load_saboteurs(module: str | None) -> tuple[Saboteur, ...]:
    """The saboteurs of the kit, and those in `SABOTEURS` of a module of one's own."""
    return SABOTEURS if module is None else (*SABOTEURS, *import_module(module).SABOTEURS)


def try_all(saboteurs: Sequence[Saboteur], stop_at_first: bool = False) -> list[Verdict]:
    """The verdict on each, those on the right stores at the end. Raises RuntimeError when pytest itself failed.

    With `stop_at_first` nobody is tried further once he is caught.
    """
    trial, shown = _Trial(saboteurs, stop_at_first), io.StringIO()
    # A wrong store needs no smallest example of what is wrong with it.
    settings.register_profile("sabotage", settings(), phases=[Phase.generate])
    settings.load_profile("sabotage")
    with redirect_stdout(shown), mock.patch.dict(os.environ, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}):
        os.environ.pop("PYTEST_ADDOPTS", None)
        code = pytest.main([*_OPTIONS, "--pyargs", _MODULE], plugins=[trial])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"the kit could not be tried: pytest exited with {code}\n{shown.getvalue()[-2_000:]}")
    return list(trial.verdicts.values())


class _Trial:
    """A pytest plug-in: who is tried by which check, and what became of it."""

    def __init__(self, saboteurs: Sequence[Saboteur], stop_at_first: bool) -> None:
        self.verdicts = {each.name: Verdict(each) for each in (*saboteurs, *CONTROLS)}
        self._stop_at_first = stop_at_first

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "store_factory" in metafunc.fixturenames:
            tried = self._tried_by(metafunc)
            names = [each.name for each in tried]
            metafunc.parametrize("store_factory", tried, ids=names, indirect=True, scope="function")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What takes seconds is left to those whom nothing else has caught."""
        items.sort(key=lambda item: isinstance(item, pytest.Function) and item.function.__module__ in _SLOW)

    def _tried_by(self, metafunc: pytest.Metafunc) -> list[Saboteur]:
        rules = read_check(metafunc.function).rules
        if metafunc.function.__module__ == _BY_URL:
            return []
        tried = [each.saboteur for each in self.verdicts.values() if each.saboteur.rule in rules]
        return [*tried, *CONTROLS] if tried else []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """True says that the item was dealt with: here, that nobody wants to know any more."""
        verdict = self._verdict(item)
        return True if verdict is None or (self._stop_at_first and verdict.failed) else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        verdict, name = self._verdict(item), getattr(item, "originalname", item.name)
        if verdict is not None and report.failed and name not in verdict.failed:
            verdict.failed.append(name)
            verdict.why = verdict.why or _first_line(report)
        if verdict is not None and report.passed and report.when == "call" and name not in verdict.passed:
            verdict.passed.append(name)
        return report

    def _verdict(self, item: pytest.Item) -> Verdict | None:
        callspec = getattr(item, "callspec", None)
        saboteur = callspec.params.get("store_factory") if callspec is not None else None
        return self.verdicts[saboteur.name] if isinstance(saboteur, Saboteur) else None


def _first_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).partition("\n")[0][:200]
