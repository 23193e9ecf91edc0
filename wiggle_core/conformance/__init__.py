"""The conformance kit: the contract as checks that any store can adopt.

    from wiggle_core.conformance import *  # noqa: F403

    @pytest.fixture
    def store_factory(tmp_path):
        return lambda clock=None: open_store(make_url(f"sqlite:///{tmp_path}/tasks.db"), clock=clock)

Every call of the factory opens another handle on one database, empty when the test begins. The kit creates the schema
and closes the handles. A store that several processes can share says by a fixture `store_url` how they reach that
database. What is asked of a store depends on the store's `capabilities` only, never on its name.
`pytest -k leases` runs one module's checks, `pytest -k L2` those of a rule.
"""

from __future__ import annotations

import pytest

_MODULES = (
    *("attributes", "claiming", "criteria", "documents", "faults", "heads", "heads_moving", "history", "laned"),
    *("lanes", "lanes_audit", "lanes_changing", "lanes_faults", "lanes_filling", "lanes_openers", "leases", "machine"),
    *("plugin", "processes", "racing", "sweeping"),
)
# Plain asserts explain themselves only in modules that pytest knew of before they were imported.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))

from wiggle_core.conformance.attributes import *  # noqa: E402, F403
from wiggle_core.conformance.claiming import *  # noqa: E402, F403
from wiggle_core.conformance.contract import add_keywords  # noqa: E402
from wiggle_core.conformance.criteria import *  # noqa: E402, F403
from wiggle_core.conformance.documents import *  # noqa: E402, F403
from wiggle_core.conformance.faults import *  # noqa: E402, F403
from wiggle_core.conformance.heads import *  # noqa: E402, F403
from wiggle_core.conformance.heads import headed  # noqa: E402
from wiggle_core.conformance.heads_moving import *  # noqa: E402, F403
from wiggle_core.conformance.history import *  # noqa: E402, F403
from wiggle_core.conformance.laned import laned  # noqa: E402
from wiggle_core.conformance.lanes import *  # noqa: E402, F403
from wiggle_core.conformance.lanes_audit import *  # noqa: E402, F403
from wiggle_core.conformance.lanes_changing import *  # noqa: E402, F403
from wiggle_core.conformance.lanes_faults import *  # noqa: E402, F403
from wiggle_core.conformance.lanes_filling import *  # noqa: E402, F403
from wiggle_core.conformance.lanes_openers import *  # noqa: E402, F403
from wiggle_core.conformance.leases import *  # noqa: E402, F403
from wiggle_core.conformance.machine import *  # noqa: E402, F403
from wiggle_core.conformance.plugin import clock, open_handle, store  # noqa: E402
from wiggle_core.conformance.processes import *  # noqa: E402, F403
from wiggle_core.conformance.racing import *  # noqa: E402, F403
from wiggle_core.conformance.sweeping import *  # noqa: E402, F403

__all__ = ["clock", "headed", "laned", "open_handle", "store"]
__all__ += [name for name in dir() if name.startswith("test_")]

for _name in [name for name in __all__ if name.startswith("test_")]:
    add_keywords(globals()[_name])
