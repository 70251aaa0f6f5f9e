"""Bounds are minima of noisy latencies: how much too low they are, and whether their interval says so."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from dlbricks.bricks.cutting.sequences import KeyedWindow
from dlbricks.constructor.composition import Cover, contract, further_covers, selection_bias
from hypothesis import given, settings
from hypothesis import strategies as st

LATENCIES = st.sampled_from([0.0, 5e-324, 1e-300, 1.0, 1.0 + 2**-52, 0.1]) | st.floats(0, 1e9)


@st.composite
def dags(draw):
    """A DAG of up to eight layers, its windows of up to four, and up to three latencies of each."""
    size = draw(st.integers(1, 8))
    chain = draw(st.booleans())
    every = itertools.pairwise(range(size)) if chain else itertools.combinations(range(size), 2)
    edges = [pair for pair in every if chain or draw(st.booleans())]
    spans = [(a, b) for a in range(size) for b in range(a + 1, min(a + 4, size) + 1)]
    windows = [KeyedWindow(a, b, f"{a} {b}") for a, b in spans if b == a + 1 or draw(st.booleans())]
    latencies = {window.key: sorted(draw(st.lists(LATENCIES, min_size=1, max_size=3))) for window in windows}
    return size, chain, edges, windows, latencies


@settings(deadline=None)
@given(dags(), st.integers(0, 2**32 - 1))
def test_luck_is_nothing_where_nothing_competes(dag, seed):
    size, chain, edges, windows, latencies = dag
    lowest = {key: some[0] for key, some in latencies.items()}
    covers = further_covers(edges, range(size), windows, lowest)
    rng = np.random.default_rng(seed)
    half = {key: rng.normal(size=(len(some), 4)) * 0.1 for key, some in latencies.items()}
    errors = {key: np.hstack([one, -one]) for key, one in half.items()}

    found = selection_bias(covers, windows, size, latencies, errors)
    still = selection_bias(covers, windows, size, latencies, {key: 0 * one for key, one in errors.items()})
    singles = [cover for cover in covers if len(cover.keys) == size][:1]
    alone = selection_bias(
        singles, (), size, {key: some[:1] for key, some in latencies.items()}, {k: e[:1] for k, e in errors.items()}
    )
    scale = 1 + sum(max(some) for some in latencies.values())

    for least, most in (found.sequential, found.critical_path):
        assert most >= max(0, least)
    assert max(map(abs, (*still.sequential, *still.critical_path))) <= 1e-9 * scale
    assert max(map(abs, alone.sequential)) <= 1e-9 * scale
    if chain:
        assert max(map(abs, alone.critical_path)) <= 1e-9 * scale


@pytest.mark.parametrize(("gap", "at_least"), [(0.0, 0.3), (1.0, 0.8), (3.0, 0.5)], ids=["equal", "near", "apart"])
def test_the_minimum_is_too_low_by_what_luck_says(gap, at_least):
    """Twenty layers of two rivals each, ``gap`` errors apart: what is missing lies between least and most."""
    rng, size = np.random.default_rng(3), 20
    cover = Cover(contract(itertools.pairwise(range(size)), [(n,) for n in range(size)]), tuple(map(str, range(size))))
    missing, least, most = [], [], []
    for _ in range(60):
        latencies = {key: sorted(rng.normal((100.0, 100.0 + gap), 1.0)) for key in cover.keys}
        half = {key: rng.normal(size=(2, 32)) for key in cover.keys}
        errors = {key: np.hstack([one, -one]) for key, one in half.items()}
        found = selection_bias([cover], (), size, latencies, errors)
        missing.append(100.0 * size - sum(some[0] for some in latencies.values()))
        least.append(found.sequential[0])
        most.append(found.sequential[1])

    assert np.mean(missing) > 0
    assert at_least * np.mean(missing) <= np.mean(least)
    assert np.mean(missing) <= np.mean(most) + 1.0
    assert np.mean(least) <= np.mean(missing) + 2.0
