"""Wrong MySQL and MariaDB stores are caught: a check of the kit that names the rule fails for each, by its own
assertion, and passes for the store that they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from sqlalchemy import make_url

import wiggle_core.conformance as kit
from tests.stores.mysql_prefixes import fresh_place
from tests.stores.mysql_saboteurs import RIGHT, SABOTEURS, Saboteur
from tests.stores.used_places import UsedPlaces
from wiggle_core.conformance import *  # noqa: F403
from wiggle_core.conformance.contract import read_check
from wiggle_core.conformance.plugin import StoreFactory
from wiggle_store_mysql.place import read_url

CHECKS = {saboteur.check for saboteur in SABOTEURS}

for _each in [name for name in globals() if name.startswith("test_")]:
    if _each not in CHECKS:
        del globals()[_each]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each check is tried by the saboteurs that it has to catch, and by the right store."""
    name = metafunc.function.__name__
    if name in CHECKS:
        must_fail = pytest.mark.xfail(strict=True, raises=(AssertionError, pytest.fail.Exception))
        caught = [pytest.param(each, marks=must_fail, id=each.name) for each in SABOTEURS if each.check == name]
        stores = [*caught, pytest.param(RIGHT, id=RIGHT.name)]
        metafunc.parametrize("store_factory", stores, indirect=True)


@pytest.fixture
def store_factory(
    request: pytest.FixtureRequest, mysql_like_url: str, mysql_like_places: UsedPlaces
) -> Iterator[StoreFactory]:
    saboteur: Saboteur = request.param
    fresh = partial(fresh_place, mysql_like_url)
    with fresh() if saboteur.migrates else mysql_like_places.for_check(request, fresh) as url:
        place = read_url(make_url(url))
        yield lambda clock=None: saboteur.make(place, clock)


@pytest.mark.parametrize("saboteur", SABOTEURS, ids=lambda saboteur: saboteur.name)
def test_the_check_names_the_rule(saboteur: Saboteur) -> None:
    """Issue 4: who breaks a rule is caught by a check whose docstring names it."""
    assert saboteur.rule in read_check(getattr(kit, saboteur.check)).rules
