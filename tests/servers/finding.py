"""Where a test server comes from: named by the environment, else from Docker, else started here.

A server that this machine cannot run makes its tests skip, by name and reason; with CI=true it makes them fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import NoReturn

import pytest


class Unavailable(Exception):
    """A server that cannot be had here, and why."""


def skip_or_fail(server: str, reason: Unavailable) -> NoReturn:
    """End the test for want of its server."""
    message = f"no {server} server: {reason}"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def docker_answers() -> bool:
    """Whether there is a Docker engine, not just its client."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    try:
        asked = subprocess.run([docker, "info"], capture_output=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
