"""Numbered migrations with checksums: what an SQL store reads, compares and applies. How it locks is its own affair.

A migration is a file `NNNN_name.sql` in the store's package. It is never changed once published: the checksum of
each one applied is kept in the database, so that an altered or a newer schema is noticed and refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from wiggle_core.errors import SchemaError

TABLE = "wiggle_migration"
_FILE = re.compile(r"[0-9]{4}_[a-z0-9_]+\.sql")
_COMMENT = re.compile(r"^[ \t]*--.*\n?", re.MULTILINE)
_STATEMENT = re.compile(r"((?:\$\$.*?\$\$|.)+?)(?:;[ \t]*(?:\n|$)|$)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema. `name` is the file's without `.sql`; names sort in the order of application."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 in hexadecimal, the same for every kind of line end: checkouts differ in those."""
        return sha256("\n".join(self.sql.splitlines()).encode()).hexdigest()

    @property
    def statements(self) -> list[str]:
        """The statements without comments; each ends with a semicolon at the end of a line, other than one between
        `$$` and `$$`: that is the body of a function."""
        without_comments = _COMMENT.sub("", "\n".join(self.sql.splitlines()))
        parts = _STATEMENT.findall(without_comments)
        return [part.strip() for part in parts if part.strip()]


def load_migrations(package: str) -> tuple[Migration, ...]:
    """The migrations in the folder `migrations` of a store's package, in order."""
    folder = files(package) / "migrations"
    found = [entry for entry in folder.iterdir() if _FILE.fullmatch(entry.name)]
    return tuple(
        Migration(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))
        for entry in sorted(found, key=lambda entry: entry.name)
    )


def pending(known: Sequence[Migration], applied: Mapping[str, str], place: str) -> list[Migration]:
    """Those still to be applied; `applied` maps names to checksums. Raises SchemaError for a newer or altered schema.

    `place` names the database in the message; it has no password in it.
    """
    expected = {migration.name: migration.checksum for migration in known}
    newer = sorted(applied.keys() - expected.keys())
    if newer:
        raise SchemaError(
            f"the schema of {place} has {newer[-1]}, which this version of wiggle does not know: upgrade wiggle-core"
        )
    altered = sorted(name for name, checksum in applied.items() if checksum != expected[name])
    if altered:
        raise SchemaError(
            f"the schema of {place} was made by another {altered[0]} than this version's: install the wiggle-core "
            "that made it, or restore that migration as it was published"
        )
    return [migration for migration in known if migration.name not in applied]


def require_current(known: Sequence[Migration], applied: Mapping[str, str], place: str, url: str) -> None:
    """Raise SchemaError, naming the command that helps, unless exactly the known migrations are applied."""
    missing = pending(known, applied, place)
    if missing:
        state = "is older than this version of wiggle" if applied else "is missing"
        raise SchemaError(f"the schema of {place} {state}: run `{upgrade_command(url)}`")


def upgrade_command(url: str) -> str:
    """The command that creates or upgrades a store's schema."""
    return f"wiggle db upgrade --store {url}"
