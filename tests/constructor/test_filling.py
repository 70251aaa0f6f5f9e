"""Predictions fill the places of a model whose bricks are missing: warm ones and those with cold memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from dlbricks.bricks.layer import LayerSequence
from dlbricks.constructor.choice import Choice
from dlbricks.constructor.evidence import Evidence
from dlbricks.constructor.filling import filled
from dlbricks.constructor.measurements import BrickMeasurements
from dlbricks.constructor.predictor import Predicted

WARM, COLD = LayerSequence((0,), "a", (), (), ()), LayerSequence((1,), "a", (), (), ())
PREDICTED = Predicted(bricks=1, share=1.0, half=0.1, familiar=True)


@pytest.fixture
def complete(lab):
    """Return a function that fills a model of one brick at a warm and at a cold place."""
    model = SimpleNamespace(own=SimpleNamespace(key="model"), level="hot")
    choice = Choice(lab.system.key, lab.stack.key, lab.system, lab.stack, lab.conditions, 0)
    variants = {("a", COLD.layers): "kept"}

    def fill(stored: dict[str, object], latencies_ns: dict[tuple[str, str], float]) -> BrickMeasurements:
        bricks = BrickMeasurements(variants=variants, **stored)
        evidence = Evidence(SimpleNamespace(), choice, {("model", "hot"): bricks})
        return filled(model, evidence, latencies_ns, PREDICTED).bricks_in("model", "hot")

    return fill


def test_each_place_has_the_prediction_for_it(complete):
    bricks = complete({}, {("a", ""): 1e3, ("a", "kept"): 3e3})

    assert (bricks.latency_ns(WARM), bricks.latency_ns(COLD)) == (1e3, 3e3)
    assert not bricks.measured("a")


def test_what_is_measured_stays_and_a_cold_place_is_not_taken_for_it(complete, lab):
    measured = lab.measurement("a", 2.0)

    bricks = complete({"latest": {"a": measured}}, {("a", "kept"): 3e6})

    assert (bricks.latency_ns(WARM), bricks.latency_ns(COLD)) == (2e6, 3e6)
    assert not bricks.measured("a")  # not everywhere
