"""Starting this package's modules as processes of their own: contenders in a race, and victims of SIGKILL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def start(module: str, *arguments: object, stdin: int | None = None) -> subprocess.Popen[str]:
    """Start `python -m benchmarks.MODULE ARGUMENTS`, its output piped; its input is ours, or as `stdin` says."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        command,
        env=os.environ | {"PYTHONPATH": path},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ask(module: str, *arguments: object) -> dict[str, Any]:  # Any: each child answers with figures of its own
    """Run a child to its end; the JSON object that it printed last. Raises RuntimeError when it failed."""
    child = start(module, *arguments)
    output, errors = child.communicate()
    if child.returncode != 0:
        raise RuntimeError(f"benchmarks.{module} ended with {child.returncode}:\n{errors[-2000:]}")
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])  # Any: as above
    return answer
