"""`wiggle new-store`: the package of a store that is not written yet, with the conformance kit adopted and failing."""

from __future__ import annotations

import re
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from wiggle_core.cli.failures import InputError
from wiggle_core.cli.options import JsonOption
from wiggle_core.cli.output import print_json, print_line
from wiggle_core.stores.registry import list_plugins

_NAME = re.compile(r"[a-z][a-z0-9]{0,30}")
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "init.py": "src/$module/__init__.py",
    "store.py": "src/$module/store.py",
    "errors.py": "src/$module/errors.py",
    "test_contract.py": "tests/test_contract.py",
}
"""The template of each file, and where it goes."""


def new_store(
    name: Annotated[str, typer.Argument(help="The URL scheme: lower-case letters and digits.", metavar="NAME")],
    directory: Annotated[
        Path | None,
        typer.Option("--directory", metavar="DIR", help="Where; else wiggle-store-NAME here. Must not exist."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a store for another database: a package that installs, and fails the conformance kit until filled in."""
    _check_name(name)
    target = directory or Path(f"wiggle-store-{name}")
    written = write_package(name, target)
    if as_json:
        print_json({"directory": str(target), "files": written})
        return
    for each in written:
        print_line(target / each)
    print_line(f"next: pip install -e '{target}[test]' && pytest {target}")


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"{name[:40]!r} is no URL scheme: a lower-case letter, then up to 30 of these and digits")
    taken = {each.scheme: each.package for each in list_plugins()}
    if name in taken:
        raise InputError(f"the scheme {name!r} is taken by {taken[name]}: choose another name")


def write_package(name: str, target: Path) -> list[str]:
    """Write the files of a new store; their names. Raises InputError where there is something already."""
    holes = {
        "scheme": name,
        "module": f"wiggle_store_{name}",
        "distribution": f"wiggle-store-{name}",
        "class_name": f"{name.capitalize()}Store",
        "core_version": metadata.version("wiggle-core"),
    }
    texts = {Template(place).substitute(holes): _template(each).substitute(holes) for each, place in _FILES.items()}
    texts[f"src/{holes['module']}/py.typed"] = ""
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise InputError(f"{str(target)!r} exists: name another one with --directory, or remove it") from None
    for place, text in texts.items():
        path = target / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return sorted(texts)


def _template(name: str) -> Template:
    return Template((files("wiggle_core.cli") / "templates" / f"{name}.template").read_text(encoding="utf-8"))
