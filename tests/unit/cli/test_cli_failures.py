"""How commands end: exit codes, one line of error, nothing secret (section 9)."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wiggle_core import cli
from wiggle_core.cli import app, main
from wiggle_core.cli.failures import ExitCode
from wiggle_core.stores.memory import MemoryStore

from .conftest import Wiggle

WRONG: list[tuple[tuple[str, ...], int, str]] = [
    (("nope",), 2, "No such command 'nope'; see `wiggle --help`"),
    (("criteria", "check", "--bad"), 2, "No such option: --bad; see `wiggle criteria check --help`"),
    (("criteria", "match"), 2, "Missing option '--tasks'"),
    (("task", "show"), 2, "Missing argument 'ID'"),
    (("task", "show", "\udcff"), 2, "which no store can hold"),
    (("task", "cancel", "x", "\udcff"), 2, "which no store can hold"),
    (("task", "cancel"), 2, "Missing argument 'ID...'"),
    (("plugins", "extra"), 2, "unexpected extra argument"),
    (("backlog", "--store", "nowhere://x"), 2, "no store for 'nowhere'; installed: cassandra, mariadb, memory, "),
    (("backlog", "--store", "sqlit:///x"), 2, "did you mean 'sqlite'?"),
    (("backlog", "--store", "wiggle.db"), 2, "a store URL starts with a scheme"),
    (("backlog", "--store", "memory://host/x"), 2, "a memory store has no address"),
    (("backlog",), 3, "wiggle db upgrade --store sqlite:///wiggle.db"),
    (("db", "check"), 3, "wiggle db upgrade --store sqlite:///wiggle.db"),
    (("enqueue",), 3, "wiggle db upgrade"),
    (("task", "show", "x"), 3, "wiggle db upgrade"),
    (("criteria", "explain", "--text", "TRUE"), 3, "wiggle db upgrade"),
    (("lanes",), 3, "wiggle db upgrade --store sqlite:///wiggle.db"),
    (("lanes", "open", "--text", "step = 'a'"), 3, "wiggle db upgrade"),
    (("lanes", "close", "1"), 3, "wiggle db upgrade"),
    (("db", "upgrade", "--store", "sqlite:///no/such/folder/x.db"), 3, "(reference "),
    (("criteria", "match", "--tasks", "none", "--criteria", "none"), 2, "none: No such file or directory"),
    (("criteria", "match", "--tasks", ".", "--criteria", "none"), 2, ".: Is a directory"),
    (("attributes", "extract", "--declare", "n:long:n", "--contexts", "a\0b"), 2, "embedded null byte"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    WRONG,
    ids=lambda each: " ".join(each)[:60] if isinstance(each, tuple) else str(each)[:20],
)
def test_wrong_input_is_one_line(wiggle: Wiggle, arguments: tuple[str, ...], code: int, message: str) -> None:
    """Section 9: a stable code and one line that says what was wrong; with --json the same as an object."""
    ended = wiggle(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith("wiggle: ")
    assert ended.err.count("\n") == 1
    assert message in ended.err
    as_json = wiggle(*arguments, "--json")
    assert (as_json.code, as_json.err) == (code, "")
    assert message in as_json.json["error"] or "reference" in message


def test_a_group_asks_for_a_command(wiggle: Wiggle) -> None:
    """A group alone is wrong usage; the line says where to look."""
    ended = wiggle("criteria")
    assert (ended.code, ended.err) == (2, "wiggle: Missing command; see `wiggle criteria --help`\n")


def test_every_command_has_json(wiggle: Wiggle) -> None:
    """Section 9: --json everywhere."""
    commands: list[tuple[str, ...]] = [("plugins",), ("enqueue",), ("backlog",), ("worker",)]
    commands += [("db", each) for each in ("upgrade", "check", "sql", "roles")]
    commands += [("criteria", each) for each in ("check", "match", "explain")]
    commands += [("lanes",), *(("lanes", each) for each in ("list", "open", "close"))]
    commands += [("attributes", "extract"), *(("task", each) for each in ("show", "cancel", "retry"))]
    for command in commands:
        ended = wiggle(*command, "--help")
        assert (ended.code, "--json " in ended.out) == (0, True), command


def test_the_help_documents_the_exit_codes(wiggle: Wiggle) -> None:
    """Section 9: exit codes are written down, each of them, in the package's docstring and in the help."""
    written = {int(code) for code in re.findall(r"^    (\d+) ", cli.__doc__ or "", re.MULTILINE)}
    assert written == {code.value for code in ExitCode}
    shown = wiggle("--help").out
    for code in ExitCode:
        assert re.search(rf"^ {code.value} +[a-z]", shown, re.MULTILINE), code
    assert wiggle().out == shown


def test_the_version(wiggle: Wiggle) -> None:
    assert re.fullmatch(r"wiggle \d+\.\d+\.\d+\n", wiggle("--version").out)


def raise_in_a_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(store: MemoryStore) -> list[str]:
        raise error

    monkeypatch.setattr(MemoryStore, "migrate", fail)


def test_a_bug_shows_no_detail(wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of our own is one line with its type; its text may be SQL or hold a password."""
    raise_in_a_command(monkeypatch, RuntimeError("SELECT secret FROM hunter2"))
    ended = wiggle("db", "upgrade", "--store", "memory://")
    assert ended.code == 70
    assert ended.err == "wiggle: unexpected RuntimeError, a bug in wiggle: WIGGLE_DEBUG=1 shows the traceback\n"


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """WIGGLE_DEBUG=1 is the way to the cause."""
    monkeypatch.setenv("WIGGLE_DEBUG", "1")
    monkeypatch.setattr(app, "configure_log", lambda: None)
    raise_in_a_command(monkeypatch, RuntimeError("the cause"))
    assert main(["db", "upgrade", "--store", "memory://"]) == 70
    assert "RuntimeError: the cause" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "wiggle: interrupted\n"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (OSError(28, "No space left on device"), 3, "wiggle: output: No space left on device\n"),
        (RecursionError(), 70, "wiggle: unexpected RecursionError"),
        (SystemExit(5), 5, ""),
    ],
)
def test_other_ends(
    wiggle: Wiggle, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    """Section 9: interrupts, a reader that went away, a full disk."""
    raise_in_a_command(monkeypatch, error)
    monkeypatch.setattr(app, "_drop_output", lambda: None)
    ended = wiggle("db", "upgrade", "--store", "memory://")
    assert (ended.code, ended.err[: len(line)], bool(ended.err)) == (code, line, bool(line))


@pytest.mark.parametrize("name", ["typer", "rich"])
def test_a_missing_package_says_what_to_install(name: str) -> None:
    """Without the extra, one line with the `pip install` command."""
    code = f"import sys; sys.modules[{name!r}] = None; from wiggle_core.cli import main; sys.exit(main(['plugins']))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"wiggle: the command line needs {name}: pip install 'wiggle-core[cli]'\n"


def test_foreign_text_cannot_reach_the_terminal(wiggle: Wiggle) -> None:
    """Control characters of an input are shown escaped, never sent to the terminal."""
    ended = wiggle("nope\x1b[31m\r")
    assert ended.code == 2
    assert "\x1b" not in ended.err
    assert "\r" not in ended.err


def test_a_password_is_never_shown(wiggle: Wiggle, tmp_path: Path) -> None:
    """Nothing of a URL's password is printed, whatever is wrong with the rest."""
    for url in (
        "memory://user:hunter2@host/x",
        "nowhere://user:hunter2@host",
        "user:hunter2@host",
        "x://u:hunter2@h:p",
    ):
        for arguments in (("db", "upgrade"), ("backlog", "--json")):
            ended = wiggle(*arguments, "--store", url)
            assert ended.code == 2
            assert "hunter2" not in ended.out + ended.err


def test_output_is_utf8_wherever_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of another encoding does not make a command fail."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["criteria", "explain", "--text", "step = 'é\U0001f600'", "--store", "memory://"]) == 0
    assert "step = 'é\U0001f600'" in raw.getvalue().decode()
