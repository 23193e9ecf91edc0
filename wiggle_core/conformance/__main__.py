"""`python -m wiggle_core.conformance differential`: the differential test at length, on a scratch store.

Exit codes: 0 agreed; 1 a disagreement, or a class of values that the run never met; 2 bad usage or no such store.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from wiggle_core.conformance.differential import PREDICATES_A_ROUND, Findings, compare
from wiggle_core.errors import WiggleError
from wiggle_core.stores.registry import open_scratch

SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    options = _parser().parse_args(arguments)
    try:
        store = open_scratch(options.store)
    except WiggleError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.perf_counter()
    try:
        findings = compare(store, options.pairs, options.seed, options.tasks, _show_progress)
    finally:
        store.close()
    return _report(findings, time.perf_counter() - began)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m wiggle_core.conformance")
    command = parser.add_subparsers(required=True).add_parser(
        "differential", help="compare a store's answers to hostile predicates with the reference evaluator's"
    )
    command.add_argument("--store", required=True, metavar="URL", help="a scratch store is made beside it and dropped")
    command.add_argument("--pairs", type=_positive, default=1_000_000, help="how many (predicate, task) pairs")
    command.add_argument("--seed", type=int, default=1, help="the same seed gives the same tasks and predicates")
    command.add_argument("--tasks", type=_positive, default=128, help="how many tasks a predicate is tried on")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("a number of at least 1 is expected")
    return number


def _show_progress(findings: Findings) -> None:
    if sys.stderr.isatty():
        print(f"\r{findings.pairs:>12,} pairs, {len(findings.disagreements)} disagreements", end="", file=sys.stderr)


def _report(findings: Findings, seconds: float) -> int:
    missed = findings.reach.missed() if findings.predicates >= PREDICATES_A_ROUND else []
    print(f"pairs          {findings.pairs:,} ({findings.matched:,} matched)")
    print(f"predicates     {findings.predicates:,}, each by find and count; {findings.claims:,} by claim too")
    print(f"seconds        {seconds:.1f}")
    print(f"never met      {', '.join(missed) or 'nothing: every class of values and leaves was met, true and false'}")
    print(f"disagreements  {len(findings.disagreements)}")
    for each in findings.disagreements[:SHOWN]:
        print(json.dumps(each.to_object()))
    return 1 if findings.disagreements or missed else 0


if __name__ == "__main__":
    sys.exit(main())
