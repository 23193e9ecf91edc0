"""The README's examples run as they stand: Python blocks one by one, `console` blocks on a small demo's database. A
server that a block names is the tests' own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.conftest import postgres_url
from tests.stores.postgres_schemas import fresh_database
from wiggle_core.settings import PREFIX, Settings

__all__ = ["postgres_url"]

README = Path(__file__).parents[2] / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FLIGHTS = "2000"
_POSTGRES = "postgresql://localhost/app"


def blocks(language: str) -> list[str]:
    return [body for found, body in _BLOCK.findall(README.read_text(encoding="utf-8")) if found == language]


EMBEDDED = [code for code in blocks("python") if _POSTGRES not in code]
ON_POSTGRES = [code for code in blocks("python") if _POSTGRES in code]


@pytest.mark.parametrize("code", EMBEDDED, ids=lambda code: code.splitlines()[0][:40])
def test_python_block_runs(code: str, tmp_path: Path) -> None:
    """Section 1: the README's code is executed; a block is a whole program, and warnings are errors."""
    run(code, tmp_path)


@pytest.mark.parametrize("code", ON_POSTGRES, ids=lambda code: code.splitlines()[0][:40])
def test_python_block_runs_on_postgres(code: str, postgres_url: str, tmp_path: Path) -> None:
    """Section 6: as the others, in a database of its own."""
    with fresh_database(postgres_url, "readme", "ENCODING 'UTF8'") as url:
        run(code.replace(_POSTGRES, url), tmp_path)


def run(code: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_twenty_lines_charge_the_order(tmp_path: Path) -> None:
    """Section 1: the first example does what it says."""
    script = tmp_path / "block.py"
    script.write_text(blocks("python")[0], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == "charging 1250 for eu-17\n"


def test_console_blocks_run_on_the_demos_database(tmp_path: Path) -> None:
    """Section 9: the walk through the demo's database works, command by command."""
    wiggle = Path(sys.executable).with_name("wiggle")
    subprocess.run([wiggle, "demo", "--rows", _FLIGHTS], cwd=tmp_path, capture_output=True, timeout=300, check=True)
    environment = os.environ | {"PATH": f"{wiggle.parent}{os.pathsep}{os.environ['PATH']}"}
    commands = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 8
    done = subprocess.run(
        ["bash", "-euxc", "\n".join(commands)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "mine-1" in done.stdout


def test_every_setting_is_in_the_table() -> None:
    """N4, section 8: each with its default, and no other."""
    rows = re.findall(r"^\| `(WIGGLE_\w+)` \| `(\w+)` \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(rows) == {PREFIX + name.upper(): str(value) for name, value in Settings()}
