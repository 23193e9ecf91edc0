"""A fuzzing campaign, guided by coverage: `python -m tests.fuzzing TARGET [SECONDS]`, or `all`, one after the other.

Needs atheris: `pip install '.[fuzz]'`. Input that fails is kept in `.fuzzing/`, as is the corpus, with which the next
campaign begins.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

PLACE = Path(".fuzzing")
SECONDS = 60
LONGEST = 4096
INSTRUMENTED = ["wiggle_core.criteria", "wiggle_core.tasks", "wiggle_core.cli.task_line"]


def main(arguments: list[str]) -> int:
    """Fuzz one target in this process, or each in a process of its own; 1 when something failed."""
    chosen, seconds = arguments[0] if arguments else "all", int(arguments[1]) if len(arguments) > 1 else SECONDS
    if chosen == "all":
        from tests.fuzzing.seeds import SEEDS  # noqa: PLC0415  # a process that fuzzes must instrument it first

        campaigns = [[sys.executable, "-m", "tests.fuzzing", target, str(seconds)] for target in SEEDS]
        return max(bool(subprocess.run(each, check=False).returncode) for each in campaigns)
    fuzz(chosen, seconds)
    return 0


def fuzz(chosen: str, seconds: int) -> None:
    """Run libFuzzer on one target; it ends the process."""
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=INSTRUMENTED):
        targets = import_module("tests.fuzzing.targets").TARGETS
    corpus = prepared(chosen)
    limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", "-timeout=10", "-rss_limit_mb=2048"]
    places = [f"-artifact_prefix={PLACE}/{chosen}-", f"-dict={PLACE}/words", "-print_final_stats=1", str(corpus)]
    atheris.Setup([f"fuzz {chosen}", *limits, *places], lambda data: [targets[chosen](data), None][1])
    atheris.Fuzz()


def prepared(chosen: str) -> Path:
    """The corpus of a target, with its seeds, and the dictionary beside it."""
    from tests.fuzzing.seeds import SEEDS, WORDS  # noqa: PLC0415  # as above

    corpus = PLACE / f"corpus-{chosen}"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[chosen]):
        (corpus / f"seed-{number}").write_bytes(seed)
    spelled = ("".join(f"\\x{byte:02x}" for byte in word.encode()) for word in WORDS)
    (PLACE / "words").write_text("".join(f'"{word}"\n' for word in spelled), encoding="ascii")
    return corpus


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
