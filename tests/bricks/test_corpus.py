"""Invariants over every model of the onnx wheel's test data: light, simple, pytorch-converted, pytorch-operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx as nx
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import make_sequence, sequences, split
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.bricks.layer import Cost, LayerState, Role
from dlbricks.bricks.suite.brick import build_brick, load_brick
from dlbricks.models import find_models
from dlbricks.models.skeleton import Skeleton

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
FILES = tuple(
    path
    for folder in ("light", "simple", "pytorch-converted", "pytorch-operator")
    for path in sorted((DATA / folder).rglob("*.onnx"))
)
GRANULARITIES = (1, 2, 3, 4)

WITHOUT_LIVE_LAYERS = {f"test_sequence_model{number}": "a sequence" for number in range(1, 9)}
"""Models that cannot be decomposed, with the reason: values that are sequences of tensors are no values of a brick."""

WITHOUT_COST = {"StringNormalizer", "Gradient"}
"""Operators of the corpus whose work is not known: text, and a training operator that no runtime here executes."""

TABLE_I = {
    "light_bvlc_alexnet": (24, 0, 656e6),
    "light_densenet121": (910, 242, 2.87e9),
    "light_inception_v1": (144, 1, 1.44e9),
    "light_inception_v2": (509, 138, 2.03e9),
    "light_shufflenet": (203, 0, 127e6),
    "light_squeezenet": (66, 0, 352e6),
    "light_vgg19": (46, 0, 19.55e9),  # Benanza counts 47: another export; which operator more it holds is not known
    "light_zfnet512": (22, 0, 1.48e9),
    "light_resnet50": (176, 0, 4.09e9),  # another variant than the paper's (175 layers, 3.87 G): strides in the 3x3
}
"""Layers and MACs of Benanza's Table I, and how many of the layers are folded."""


def name_of(path: Path) -> str:
    return path.stem if path.parent.name == "light" else path.parent.name


@cache
def graph_of(path: Path) -> ModelGraph:
    [source] = find_models([path])
    return build_graph(source.skeleton())


def test_the_corpus_is_there() -> None:
    assert len(FILES) >= 140
    assert len({name_of(path) for path in FILES}) == len(FILES)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_layer_has_one_place(path: Path) -> None:
    graph = graph_of(path)
    assert [layer.index for layer in graph.layers] == list(range(len(graph.layers)))
    assert nx.is_directed_acyclic_graph(graph.graph)
    for layer in graph.layers:
        live = layer.state is LayerState.LIVE
        assert (layer.index in graph.live) == bool(layer.key) == (not layer.reason) == live
        if live:
            assert layer.cost is not None or layer.op_type in WITHOUT_COST
            assert all(operand.type is not None for operand in layer.operands if operand.role is not Role.ABSENT)
            assert any(layer.outputs)
            assert [kind is not None for kind in layer.output_types] == [bool(value) for value in layer.outputs]
    for connected in (False, True):
        for granularity in GRANULARITIES:
            windows = split(graph, granularity, connected=connected)
            assert tuple(index for window in windows for index in window) == graph.live
            assert max(map(len, windows), default=0) <= granularity


def test_models_that_cannot_be_decomposed_are_known() -> None:
    found = {}
    for path in FILES:
        graph = graph_of(path)
        if not graph.live:
            found[name_of(path)] = {layer.reason for layer in graph.layers}
    assert found.keys() == WITHOUT_LIVE_LAYERS.keys()
    for name, reasons in found.items():
        assert all(WITHOUT_LIVE_LAYERS[name] in reason for reason in reasons), reasons


@pytest.mark.slow
def test_every_brick_gives_back_its_key_and_its_bytes() -> None:
    seen: set[str] = set()
    for path in FILES:
        graph = graph_of(path)
        for granularity in GRANULARITIES:
            for connected in (False, True):
                for sequence in sequences(graph, granularity, connected=connected):
                    if sequence.key in seen:
                        continue
                    seen.add(sequence.key)
                    brick = build_brick(graph, sequence)
                    assert load_brick(brick.model, expected=sequence.key) == brick
                    again = build_graph(Skeleton(onnx.ModelProto.FromString(brick.model)))
                    assert build_brick(again, make_sequence(again, again.live)).model == brick.model
    assert len(seen) > 2000


@pytest.mark.parametrize("name", TABLE_I)
def test_layers_and_macs_agree_with_benanza(name: str) -> None:
    graph = graph_of(DATA / "light" / f"{name}.onnx")
    layers, folded, macs = TABLE_I[name]
    assert (len(graph.layers), len(graph.layers) - len(graph.live)) == (layers, folded)
    assert all(graph.layers[index].canonical is not None for index in graph.live)
    costs = [graph.layers[index].cost for index in graph.live]
    total = sum((cost for cost in costs if cost is not None), Cost()).macs
    assert total == pytest.approx(macs, rel=0.025)


PRINT_KEYS = """
import hashlib, json, sys
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.bricks.graph.model_graph import build_graph
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.models.source import find_models

keys = {}
for path in sys.argv[1:]:
    [source] = find_models([path])
    graph = build_graph(source.skeleton())
    found = [sequence for g in (1, 3) for sequence in sequences(graph, g)]
    files = hashlib.sha256(b"".join(build_brick(graph, sequence).model for sequence in found)).hexdigest()
    keys[path] = [graph.key, *(sequence.key for sequence in found), files]
print(json.dumps(keys))
"""


@pytest.mark.slow
def test_keys_and_files_are_equal_across_processes_and_hash_seeds(tmp_path: Path) -> None:
    answers = []
    for seed in ("0", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", PRINT_KEYS, *map(str, FILES)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1]
    for path in FILES:
        graph = graph_of(path)
        here = [graph.key, *(sequence.key for granularity in (1, 3) for sequence in sequences(graph, granularity))]
        assert answers[0][str(path)][:-1] == here
