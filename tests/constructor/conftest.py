"""The models and the database of ``lab``, and a model of any length."""

from __future__ import annotations

from functools import cache

import onnx
import pytest
from dlbricks import estimate
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.db import Block, Conditions, Measurement, Stack, Stop, Subject
from dlbricks.db.samples.statistics import summarise
from dlbricks.db.values import Identity, Visit
from dlbricks.models.skeleton import Skeleton
from lab import chain, changed, fork, graph_of_fixture, keys_of_fixture, lab

__all__ = ["chain", "fork", "graph_of_fixture", "keys_of_fixture", "lab"]

# Two products whose shapes meet at length 8, and a Relu that is twice the same brick at every length.
ATTENTION = """
<ir_version: 8, opset_import: ["" : 17]>
attention (float[2, {0}, 8] x) => (float[2, {0}, 8] y) {{
    a = Relu(x)
    t = Transpose<perm=[0, 2, 1]>(a)
    s = MatMul(a, t)
    v = MatMul(s, a)
    y = Relu(v)
}}
"""


@cache
def attention(length: int) -> ModelGraph:
    """That model at a length."""
    return graph(ATTENTION.format(length))


def graph(text: str) -> ModelGraph:
    """A model as text."""
    return build_graph(Skeleton(onnx.parser.parse_model(text)))


def taken(name: str, times_ns, *, begun_s: float = 0.0, first: int = 0, **changes: object) -> tuple:
    """A measurement as the times of its visits, and its blocks: two sessions of each process, 100 s apart."""
    blocks = [
        Block(
            (number + first) // 2,
            (number + first) % 2,
            tuple((round(ns * 1000), 1000) for ns in session),
            0,
            tuple(Visit(int((begun_s + 100 * number + place) * 1e6), 1, 1) for place in range(len(session))),
        )
        for number, session in enumerate(times_ns)
    ]
    identity = Identity(Subject.BRICK, name, "s", "t", Conditions(1))
    measurement = Measurement(name, "run", identity, 1, summarise(blocks, 1), Stop.VISITS)
    return changed(measurement, **changes), blocks


def one(lab, source, **options):
    """The estimate of one model."""
    (answer,) = estimate([source], store=lab.store, **options)
    return answer


@pytest.fixture
def other(lab) -> Stack:
    """Another stack, stored."""
    stack = Stack("openvino", "cpu", (("openvino", "2026.1"),))
    lab.store.put_stack(stack)
    return stack
