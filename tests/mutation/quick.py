"""A pytest plug-in for mutation runs: Hypothesis neither shrinks what it finds nor remembers it, and draws the same
examples for every mutant. Shrinking would take most of the time, for a verdict that is known already."""

from __future__ import annotations

from hypothesis import Phase, settings

settings.register_profile("mutation", phases=[Phase.explicit, Phase.generate], database=None, derandomize=True)
settings.load_profile("mutation")
