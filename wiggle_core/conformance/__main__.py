"""The kit's own commands.

    python -m wiggle_core.conformance differential --store URL    the differential test at length, on a scratch store
    python -m wiggle_core.conformance lanes --store URL           lanes that open and close in upheaval, audited
    python -m wiggle_core.conformance saboteurs                   which check catches which wrong store

Exit codes: 0 all is well; 1 a disagreement, a finding, a class of values that the run never met, or a saboteur that was
not caught; 2 bad usage or no such store.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial

from wiggle_core.conformance.differential import PREDICATES_A_ROUND, Findings, compare
from wiggle_core.conformance.lanes_actors import Tally
from wiggle_core.conformance.lanes_audit import PROCESSES, Upheaval, leave_nothing, run_in_processes, run_in_threads
from wiggle_core.errors import WiggleError
from wiggle_core.stores.registry import open_scratch, open_store

SHOWN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    options = _parser().parse_args(arguments)
    return int(options.run(options))


def _differ(options: argparse.Namespace) -> int:
    try:
        store = open_scratch(options.store)
    except WiggleError as error:
        print(error, file=sys.stderr)
        return 2
    began = time.perf_counter()
    try:
        if options.lanes and store.lanes is None:
            print(f"the store {store.capabilities.name} has no lanes", file=sys.stderr)
            return 2
        findings = compare(store, options.pairs, options.seed, options.tasks, _show_progress, by_lanes=options.lanes)
    finally:
        store.close()
    return _report(findings, time.perf_counter() - began)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m wiggle_core.conformance")
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser(
        "differential", help="compare a store's answers to hostile predicates with the reference evaluator's"
    )
    command.set_defaults(run=_differ)
    command.add_argument("--store", required=True, metavar="URL", help="a scratch store is made beside it and dropped")
    command.add_argument("--pairs", type=_positive, default=1_000_000, help="how many (predicate, task) pairs")
    command.add_argument("--seed", type=int, default=1, help="the same seed gives the same tasks and predicates")
    command.add_argument("--tasks", type=_positive, default=128, help="how many tasks a predicate is tried on")
    command.add_argument("--lanes", action="store_true", help="try claims by lanes, too")
    command = commands.add_parser("lanes", help="audit lanes that open and close while everything else goes on")
    command.set_defaults(run=_audit_lanes)
    command.add_argument("--store", required=True, metavar="URL", help="an empty store; it is empty again in the end")
    command.add_argument("--seconds", type=_positive, default=60, help="how long everybody acts")
    command.add_argument("--seed", type=int, default=1, help="the same seed gives the same tasks, not the same races")
    command.add_argument("--threads", action="store_true", help="in this process only")
    command = commands.add_parser("saboteurs", help="try the kit on deliberately wrong stores: each has to be caught")
    command.set_defaults(run=_try_saboteurs)
    command.add_argument("--first", action="store_true", help="try nobody further once a check has caught him")
    command.add_argument("--module", metavar="NAME", help="a module whose `SABOTEURS` are tried too")
    command.add_argument("--only", metavar="TEXT", default="", help="those whose name has this text in it")
    command.add_argument("--json", action="store_true", help="print a list of objects instead of a table")
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
    print(f"predicates     {findings.predicates:,}, each by find and count")
    print(f"claims         {findings.claims:,}, of which {findings.by_lanes:,} by a lane, too")
    print(f"seconds        {seconds:.1f}")
    print(f"never met      {', '.join(missed) or 'nothing: every class of values and leaves was met, true and false'}")
    print(f"disagreements  {len(findings.disagreements)}")
    for each in findings.disagreements[:SHOWN]:
        print(json.dumps(each.to_object()))
    return 1 if findings.disagreements or missed else 0


def _audit_lanes(options: argparse.Namespace) -> int:
    upheaval = Upheaval(options.seconds, options.seed)
    try:
        with closing(open_store(options.store)) as store:
            store.migrate()
            if store.lanes is None or store.slices() or store.lanes.read(0).lanes:
                print("a store with lanes is needed, and an empty one", file=sys.stderr)
                return 2
            processes = PROCESSES if store.capabilities.processes and not options.threads else 0
            run = partial(run_in_processes, options.store) if processes else partial(run_in_threads, lambda: store)
            tally = run(upheaval)
            leave_nothing(store)
    except WiggleError as error:
        print(error, file=sys.stderr)
        return 2
    return _report_audit(tally, f"{options.seconds} s in {1 + processes} processes")


def _report_audit(tally: Tally, acted: str) -> int:
    print(f"{'acted':<17}{acted}")
    for name, count in sorted(tally.counts.items()):
        print(f"{name:<17}{count:,}")
    print(f"{'findings':<17}{len(tally.findings)}")
    for each in tally.findings[:SHOWN]:
        print(each)
    return 1 if tally.findings else 0


def _try_saboteurs(options: argparse.Namespace) -> int:
    # Not before it is asked for: it brings a pytest session of its own.
    from wiggle_core.conformance.sabotage import load_saboteurs, try_all  # noqa: PLC0415

    chosen = [each for each in load_saboteurs(options.module) if options.only in each.name]
    verdicts = try_all(chosen, options.first)
    if options.json:
        print(json.dumps([each.to_object() for each in verdicts], indent=1))
    else:
        print_rows([each.to_row() for each in verdicts])
    return 0 if all(each.is_right for each in verdicts) else 1


def print_rows(rows: Sequence[tuple[str, ...]]) -> None:
    """Columns as wide as what stands in them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
