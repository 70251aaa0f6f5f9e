"""An outline says of its graph what estimates ask for, and is read only where all of it makes sense."""

from __future__ import annotations

import copy
import json

import pytest
from dlbricks.bricks.cutting.wiring import sequences
from dlbricks.bricks.graph.footprint import footprint
from dlbricks.bricks.graph.graph import build_graph
from dlbricks.bricks.graph.outline import Outline, outline_of
from dlbricks.bricks.suite.signature import signature_in
from dlbricks.models import find_models


@pytest.fixture(scope="module", params=["squeezenet", "shufflenet", "bert_base", "inception_v1"])
def graph(request):
    (source,) = find_models([request.param])
    return build_graph(source.skeleton())


@pytest.fixture
def record(graph):
    return json.loads(json.dumps(outline_of(graph, sequences(graph, 1))))


def test_an_outline_says_what_its_graph_says(graph, record):
    found = Outline(record)
    for name in ("live", "inputs", "outputs", "weight_bytes", "bound", "salt", "key"):
        assert getattr(found, name) == getattr(graph, name), name
    assert found.types == graph.types
    assert found.alone == tuple(sequences(graph, 1))
    assert footprint(found) == footprint(graph)
    for one, other in zip(found.layers, graph.layers, strict=True):
        for name in ("index", "name", "op_type", "domain", "outputs", "output_types", "cost", "state", "reason"):
            assert getattr(one, name) == getattr(other, name), name
        assert [(o.value, o.type, o.role) for o in one.operands] == [(o.value, o.type, o.role) for o in other.operands]
        for value in other.outputs:
            assert found.producer(value) == graph.producer(value)
            assert found.consumers(value) == graph.consumers(value)


def test_it_holds_no_values_and_of_attributes_kernels_and_strides(graph, record):
    found = Outline(record)
    assert all(operand.data is None for layer in found.layers for operand in layer.operands)
    for one, other in zip(found.layers, graph.layers, strict=True):
        kept = {attribute.name: list(attribute.ints) for attribute in one.node.attribute}
        spatial = [attribute for attribute in other.node.attribute if attribute.name in {"kernel_shape", "strides"}]
        assert kept == {attribute.name: list(attribute.ints) for attribute in spatial}


def test_its_sequences_have_the_signatures_of_those_of_its_graph(graph, record):
    parts = sequences(graph, 3)
    assert [signature_in(Outline(record), part) for part in parts] == [signature_in(graph, part) for part in parts]


def mutilated(value, path=()):
    """Every place in a record, with other values for it."""
    yield path, None
    if isinstance(value, dict):
        for name in value:
            yield from mutilated(value[name], (*path, name))
    elif isinstance(value, list) and value:
        yield path, value[1:]
        yield from mutilated(value[-1], (*path, -1))
    elif isinstance(value, int):
        for other in (-1, 10**30, "x", 0.5, True):
            yield path, other
    elif isinstance(value, str):
        yield path, 3


def test_a_damaged_record_is_an_error_that_is_known_or_a_graph(record):
    cases = [(path, other) for path, other in mutilated(record) if path]
    assert len(cases) > 50
    refused = 0
    for path, other in cases:
        damaged = copy.deepcopy(record)
        place = damaged
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = other
        try:
            found = Outline(damaged)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError):
            refused += 1
        else:  # what is left makes sense by itself
            footprint(found)
            assert len(found.layers) <= len(record["names"])
    assert refused > len(cases) * 0.8


def test_what_is_missing_is_an_error(record):
    for name in record:
        with pytest.raises(KeyError):
            Outline({key: value for key, value in record.items() if key != name})
