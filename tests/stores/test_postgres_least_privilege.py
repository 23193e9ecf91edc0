"""The PostgreSQL store keeps the contract as a role that has what `wiggle db roles` prints, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from sqlalchemy import make_url

import wiggle_core.conformance as kit
from tests.stores.postgres_schemas import connect_plainly, fresh_role, open_url
from tests.stores.postgres_tables import used_schemas
from tests.stores.used_places import UsedPlaces
from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_core.errors import PermanentStoreError
from wiggle_core.stores.store import Grants

# A right is needed by a statement, so these have all that need one; the rest of the kit runs the same statements again.
_CHOSEN = (
    "claiming",
    "documents",
    "heads",
    "history",
    "lanes_changing",
    "lanes_filling",
    "lanes_openers",
    "leases",
    "sweeping",
)
for _each in [name for name in globals() if name.startswith("test_")]:
    if getattr(kit, _each).__module__.rpartition(".")[2] not in _CHOSEN:
        del globals()[_each]


@pytest.fixture(scope="module")
def role(postgres_url: str) -> Iterator[str]:
    """The name of a role with a login, and no rights. With a quote in it, as a name may have."""
    name = f'least"{uuid4().hex[:8]}'
    with fresh_role(postgres_url, name), connect_plainly(postgres_url) as owner:
        owner.execute(f'REVOKE {owner.info.user} FROM "{name.replace(chr(34), chr(34) * 2)}"'.encode())
        yield name


@pytest.fixture(scope="module")
def places(postgres_url: str, role: str) -> Iterator[UsedPlaces]:
    """Schemas made by their owner, in which the role has its rights."""

    def grant(url: str) -> None:
        with closing(open_url(url)) as store, connect_plainly(url) as owner:
            owner.execute(store.role_sql(role).encode())

    with closing(used_schemas(postgres_url, grant)) as made:
        yield made


@pytest.fixture
def store_url(places: UsedPlaces, role: str) -> Iterator[str]:
    """A schema as the role sees it."""
    with places.lent() as url:
        yield make_url(url).set(username=role, password="secret").render_as_string(hide_password=False)


@pytest.fixture
def store_factory(store_url: str) -> StoreFactory:
    return lambda clock=None: open_url(store_url, clock)


def test_the_role_owns_nothing(store_url: str, role: str) -> None:
    """A role with these grants can neither change nor drop a table, nor make one."""
    store = open_url(store_url)
    assert isinstance(store, Grants)
    for statement in ("DROP TABLE $schema.task", "CREATE TABLE $schema.x ()", "TRUNCATE $schema.history"):
        with pytest.raises(PermanentStoreError, match="may not do that"), store._connections.changing() as session:
            session.run(statement)
    store.close()
