"""The command line, `wiggle`: one module a command group, people's tables by default, `--json` for programs.

Exit codes, which scripts may rely on:

    0    done; the answer is yes
    1    the answer is no: no such task, nothing changed, findings
    2    wrong input or usage: a refused criteria, a bad line, an unknown option or scheme
    3    trouble with the store: unreachable, driver or schema missing, disk full
    70   a bug in wiggle; WIGGLE_DEBUG=1 shows the traceback
    130  interrupted
    141  the reader of the output went away

An error is one line on stderr, or with `--json` the object {"error": ...} on stdout. It never holds SQL text or a
password; WIGGLE_DEBUG=1 adds the traceback and the log, which may.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments` are those of the process when None."""
    try:
        from wiggle_core.cli.app import run  # noqa: PLC0415  # the packages it needs are an extra
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        sys.stderr.write(f"wiggle: the command line needs {missing}: pip install 'wiggle-core[cli]'\n")
        return 2
    return run(sys.argv[1:] if arguments is None else arguments)
