from __future__ import annotations

import pytest
from dlbricks.constructor.composition.cover import Window, cheapest_cover
from dlbricks.errors import InvalidSequence
from hypothesis import given
from hypothesis import strategies as st


def covers(windows: list[Window], size: int, at: int = 0):
    """Every choice of windows that holds each layer once, by brute force."""
    if at == size:
        yield ()
    for position, window in enumerate(windows):
        if window.begin == at:
            for rest in covers(windows, size, window.end):
                yield (position, *rest)


@st.composite
def candidates(draw):
    size = draw(st.integers(0, 7))
    spans = [(begin, end) for begin in range(size) for end in range(begin + 1, min(begin + 3, size) + 1)]
    windows = [
        Window(begin, end, draw(st.none() | st.integers(0, 9).map(float)))
        for begin, end in spans
        if draw(st.booleans())
    ]
    return windows, size


@given(candidates())
def test_the_cheapest_of_all_covers(given_):
    windows, size = given_

    def price(cover):
        chosen = [windows[position] for position in cover]
        return (
            sum(window.end - window.begin for window in chosen if window.latency is None),
            sum(window.latency for window in chosen if window.latency is not None),
            len(chosen),
        )

    every = list(covers(windows, size))
    if not every:
        with pytest.raises(InvalidSequence):
            cheapest_cover(windows, size)
        return
    found = tuple(cheapest_cover(windows, size))
    assert found in every
    assert price(found) == min(map(price, every))


def test_what_is_not_measured_is_never_cheap():
    windows = [Window(0, 2, None), Window(0, 1, 50.0), Window(1, 2, 60.0)]
    assert cheapest_cover(windows, 2) == [1, 2]
    assert cheapest_cover(windows[:1], 2) == [0]
