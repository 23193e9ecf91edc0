"""Input that was valid until something happened to it: it is refused properly, or read and written as the same (C6).

Longer campaigns, guided by coverage: `python -m tests.fuzzing`.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzzing.seeds import SEEDS, WORDS
from tests.fuzzing.targets import TARGETS


@st.composite
def broken(draw: st.DrawFn, target: str) -> bytes:
    """A valid input with up to five places deleted, doubled, replaced by words or by arbitrary bytes."""
    data = draw(st.sampled_from(SEEDS[target]))
    inserted = st.sampled_from(WORDS).map(str.encode) | st.binary(max_size=3) | st.sampled_from(SEEDS[target])
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(data)))
        end = start + draw(st.integers(0, 12))
        part = draw(st.just(b"") | inserted | st.just(data[start:end] * 2))
        data = data[:start] + part + data[end:]
    return data


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_broken_input_is_refused_or_read(target: str, data: st.DataObject) -> None:
    """C6: never another exception, whatever became of the input."""
    TARGETS[target](data.draw(broken(target)))


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=40))
def test_noise_is_refused_or_read(target: str, data: bytes) -> None:
    """C6: bytes that never meant anything."""
    TARGETS[target](data)


@pytest.mark.parametrize("target", TARGETS)
def test_the_seeds_are_taken(target: str) -> None:
    """The campaign begins with input that is read; a target that refused it all would find nothing."""
    assert all(map(TARGETS[target], SEEDS[target]))


FOUND: list[tuple[str, bytes]] = [
    ("task", b'{"id":"t","queue":"q","step":"s","created_at":"2026-03-05T12:00:00Z",'
             b'"ready_at":"2026-03-05T12:00:00Z","\\ud800":1}'),
    ("line", b'{"queue":"q","step":"s","payload\\ud800":{}}'),
    ("line", b'{"queue":"q","step":"s","retry":{"\\ud800":1}}'),
]  # fmt: skip
"""What campaigns found: refusals that repeated a lone surrogate, so that no log could be written with them."""


@pytest.mark.parametrize(("target", "data"), FOUND)
def test_what_was_found_stays_fixed(target: str, data: bytes) -> None:
    """C6: each input that once failed is refused properly."""
    assert not TARGETS[target](data)
