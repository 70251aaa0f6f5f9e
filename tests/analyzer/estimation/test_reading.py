"""What an estimate reads beside latencies: the caches of the machine that measured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from dlbricks.analyzer.estimation.reading import _caches_of
from dlbricks.bricks.graph.boundary import USUAL, Caches


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        ([None], USUAL),
        ([[1 << 20, 16 << 20]], Caches(1 << 20, 16 << 20)),
        ([[1, 2], [1 << 20, 8 << 20]], Caches(1 << 20, 8 << 20)),
        ([[1 << 20, 8 << 20], None], Caches(1 << 20, 8 << 20)),
        (["text"], USUAL),
        ([[1, 2, 3]], Caches(1, 2, 3)),
        ([[1, 2, 3, 4]], USUAL),
        ([[1, "2"]], USUAL),
    ],
)
def test_caches_are_those_of_the_latest_run_that_noted_any(noted, expected):
    runs = {
        str(number): SimpleNamespace(
            started=f"2026-11-{number + 10}T00:00:00Z",
            options={} if caches is None else {"caches": caches},
            system="here",
        )
        for number, caches in enumerate(noted)
    }
    bricks = [SimpleNamespace(run=run, variant="kept") for run in runs] + [SimpleNamespace(run="0", variant="")]

    system = SimpleNamespace(key="here", cache_bytes=(("L2", 1 << 20), ("L3", 480 << 20)))
    assert _caches_of(bricks, runs, system) == expected


@pytest.mark.parametrize(("noted", "last_mib"), [(True, 16), (False, 24)])
def test_before_variants_are_measured_the_system_tells_what_its_caches_hold(noted, last_mib):
    run = SimpleNamespace(started="2026-11-10T00:00:00Z", options={"caches": [1 << 20, 16 << 20]}, system="here")
    system = SimpleNamespace(key="here", cache_bytes=(("L2", 1 << 20), ("L3", 32 << 20)))

    found = _caches_of([SimpleNamespace(run="0", variant="")], {"0": run} if noted else {}, system)

    assert found.last == last_mib << 20
