"""What ONNX Runtime refuses is told with its cause and what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from computing import settings
from dlbricks.errors import BackendError, UnsupportedBrick
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.backends.onnxruntime.refusals import clear_refusal, with_places
from dlbricks.generator.network.network import file_network

OPSET = (
    "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset versions. Opset 27 is "
    "under development and support for this is limited. Current official support for domain {} is till opset 26."
)
PLAIN = "(float[4] x) => (float[4] y) { [last] y = Relu(x) }"
HALVES = "(bfloat16[4] x) => (bfloat16[4] y) { [first] a = Relu(x) b = Sigmoid(a) y = Abs(b) }"


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 22]> g {text}')


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (OPSET.format("ai.onnx"), "its opset 27 is too new: the newest that version 1.2 takes is 26; export"),
        (OPSET.format("ai.onnx.ml"), "its opset 27 of domain ai.onnx.ml is too new"),
        (
            "Unsupported model IR version: 14, max supported IR version: 13",
            "its IR version 14 is too new: the newest that version 1.2 takes is 13; save the model with ir_version 13",
        ),
        (
            "Could not find an implementation for Relu(14) node with name 'last'",
            "version 1.2 has no kernel for Relu of float (layer last)",
        ),
        ("Could not find an implementation for Gone(1) node with name ''", "version 1.2 has no kernel for Gone; try"),
        ("Type Error: anything else", "Type Error: anything else"),
    ],
)
def test_each_cause_has_its_remedy(said: str, told: str):
    assert clear_refusal(lambda: model(PLAIN), "1.2", said).startswith(told)


BAD_RESHAPE = "(float[4] x, int64[1] s) => (float[m] y) {{ a = Reshape(x, s) y = {} }}"


@pytest.mark.parametrize(
    ("last", "told"),
    [("Relu(a)", "Reshape node. Name: that makes 'a' "), ("Reshape(a, s)", "Name: one of 2 without a name ")],
)
def test_a_node_without_a_name_that_fails_is_told_by_what_it_makes(tmp_path: Path, last: str, told: str):
    path = tmp_path / "model.onnx"
    onnx.save(model(BAD_RESHAPE.format(last)), path)
    network = file_network(path, overrides={})
    network = replace(network, feeds=network.feeds | {"s": np.array([7])})

    executable = OrtBackend().prepare(network, settings())

    with pytest.raises(BackendError) as caught:
        executable.run()
    executable.close()

    assert told in str(caught.value)


def test_a_node_without_a_name_that_is_refused_is_told_by_what_it_makes():
    said = "Node () Op (Relu) [ShapeInferenceError] Mismatch"
    unnamed = model(PLAIN.replace("[last] ", ""))

    assert with_places(lambda: unnamed, said) == "Node (that makes 'y') Op (Relu) [ShapeInferenceError] Mismatch"
    assert with_places(lambda: model(PLAIN), said) == said, "the runtime made it"


def test_a_model_that_is_too_old_is_told_the_oldest_opset(tmp_path: Path):
    path = tmp_path / "old.onnx"
    text = "(float[4] x) => (float[4] y) { [first] y = Add <axis = 0, broadcast = 1> (x, x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 3, opset_import: ["" : 6]> g {text}'), path)

    with pytest.raises(UnsupportedBrick) as caught:
        OrtBackend().prepare(file_network(path, overrides={}), settings())

    assert "no kernel for Add of opset 6 (layer first): the oldest opset that it takes is 7" in str(caught.value)


def test_a_type_without_kernels_is_named_with_the_layers_concerned(tmp_path: Path):
    path = tmp_path / "halves.onnx"
    onnx.save(model(HALVES), path)

    with pytest.raises(UnsupportedBrick) as caught:
        OrtBackend().prepare(file_network(path, overrides={}), settings())

    assert "no kernel for Relu in bfloat16 (layer first); 3 layers of it read or make bfloat16" in str(caught.value)
    assert "convert the model to float16 or float32" in str(caught.value)
