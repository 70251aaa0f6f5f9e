"""The options of a run as one value."""

from __future__ import annotations

import pytest
from dlbricks.generator.settings import Settings


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        (Settings(), 0),
        (Settings(cache="cold"), 1),
        (Settings(options={"execution": "sequential"}), 0),
        (Settings(options={"execution": "parallel"}), 1),
    ],
)
def test_copies_that_would_change_the_latency_are_not_made(settings, copies):
    assert settings.unroll == copies
