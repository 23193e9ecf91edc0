"""`wiggle plugins`: which stores are installed, and whether their drivers are."""

from __future__ import annotations

from dataclasses import asdict

from wiggle_core.cli.options import JsonOption
from wiggle_core.cli.output import print_json, print_table
from wiggle_core.stores.registry import list_plugins


def plugins(as_json: JsonOption = False) -> None:
    """List the installed stores: the URL scheme of each, what brings it, and what it was tested on."""
    found = list_plugins()
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows = [
        (
            each.scheme,
            f"{each.package} {each.version}",
            each.driver or "-",
            _installed(each.installed),
            each.live_tested,
        )
        for each in found
    ]
    print_table(("scheme", "package", "driver", "installed", "tested live on"), rows)


def _installed(is_installed: bool) -> str:
    return "yes" if is_installed else "no"
