"""A disk so small that it can be filled to the last byte: a tmpfs mounted over the directory of the store's file."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

MEBIBYTES = 96
_CHUNK = bytes(1 << 16)


class SmallDisk:
    """Takes ballast and gives it back."""

    def __init__(self, directory: Path) -> None:
        self._ballast = directory / "ballast"

    def fill(self) -> None:
        """Leave no room: the next write of anybody meets ENOSPC."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (len(_CHUNK), 4096, 512):
                _write_until_full(file.write, _CHUNK[:size])

    def relieve(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)


def _write_until_full(write: Callable[[bytes], object], chunk: bytes) -> None:
    while True:
        try:
            write(chunk)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return


@contextmanager
def small_disk(directory: Path, mebibytes: int = MEBIBYTES) -> Iterator[SmallDisk]:
    """Mounts one over an empty directory for a while. Raises RuntimeError where that is not allowed."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise RuntimeError(f"{directory} is not empty, and would be hidden by the small disk")
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"no small disk can be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
