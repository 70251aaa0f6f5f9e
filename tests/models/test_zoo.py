"""The built-in zoo: structures agree with what was published, at every batch."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from dlbricks.errors import ModelError
from dlbricks.generator.network.synthetic.weights import synthesise
from dlbricks.models.skeleton import is_weight
from dlbricks.models.zoo import names, structure
from dlbricks.models.zoo.writer import GraphWriter

# Layers: Benanza (Li et al. 2020), Table I; its VGG-19 is another export (47), and its ResNet-50 another variant
# (175 layers). Parameters: counted from the published layer tables, in millions.
LIGHT = {
    "alexnet": (24, 60.97),
    "densenet121": (910, 8.15),
    "inception_v1": (144, 7.00),
    "inception_v2": (509, 11.23),
    "resnet50": (176, 25.61),
    "shufflenet": (203, 1.42),
    "squeezenet": (66, 1.24),
    "vgg19": (46, 143.67),
    "zfnet512": (22, 87.25),
}
# Parameters of bert-base-uncased, gpt2 and vit-base-patch16-224 as their publishers' checkpoints have them.
BUILT_IN = {"bert_base": 109_482_240, "gpt2": 124_439_808, "vit_b16": 86_567_656}
OFFLINE = [entry.name for entry in names() if entry.extra is None]


def parameters(model: onnx.ModelProto) -> int:
    return sum(
        math.prod(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in model.graph.input
        if is_weight(value)
    )


def execute(name: str, batch: int, images: np.ndarray) -> np.ndarray:
    model = structure(name, batch=batch).model
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = synthesise(model, seed=1)
    feeds[next(value.name for value in session.get_inputs() if value.name not in feeds)] = images
    return session.run(None, feeds)[0]


@pytest.mark.parametrize("name", LIGHT)
def test_light_models_have_the_published_layers(name: str) -> None:
    layers, millions = LIGHT[name]
    model = structure(name).model
    assert len(model.graph.node) == layers
    assert parameters(model) / 1e6 == pytest.approx(millions, abs=0.01)


@pytest.mark.parametrize("name", BUILT_IN)
def test_transformers_have_the_published_parameters(name: str) -> None:
    assert parameters(structure(name).model) == BUILT_IN[name]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", OFFLINE)
def test_structures_are_valid_skeletons(name: str, batch: int) -> None:
    skeleton = structure(name, batch=batch)
    onnx.checker.check_model(skeleton.model, full_check=True)
    graph = skeleton.model.graph
    assert not {node.op_type for node in graph.node} & {"Constant", "ConstantOfShape"}
    assert skeleton.bound["batch"] == batch
    assert skeleton.weight_bytes == 4 * parameters(skeleton.model) + sum(
        onnx.numpy_helper.to_array(tensor).nbytes for tensor in graph.initializer
    )
    for value in (*graph.input, *graph.output):
        dims = value.type.tensor_type.shape.dim
        assert all(dim.HasField("dim_value") for dim in dims)
        if not is_weight(value):
            assert dims[0].dim_value == batch
    used = {value for node in graph.node for value in node.input}
    assert used >= {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1"])
def test_a_batch_computes_what_its_images_compute_alone(name: str) -> None:
    images = np.random.default_rng(0).standard_normal((2, 3, 224, 224), dtype=np.float32)
    together = execute(name, 2, images)
    alone = np.concatenate([execute(name, 1, image[None]) for image in images])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-6)


def test_gpt2_ties_its_head_to_its_embedding() -> None:
    graph = structure("gpt2", dims={"sequence_length": 8}).model.graph
    users = [node.op_type for node in graph.node if "wte.weight" in node.input]
    assert users == ["Gather", "Transpose"]


def test_gpt2_does_not_look_ahead() -> None:
    model = structure("gpt2", dims={"sequence_length": 6}).model
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = synthesise(model, seed=0)
    prompts = np.array([[5, 6, 7, 8, 9, 10], [5, 6, 7, 1, 2, 3]], np.int64)
    first, second = (session.run(None, {**feeds, "input_ids": prompt[None]})[0][0] for prompt in prompts)
    np.testing.assert_allclose(first[:3], second[:3], atol=1e-5)
    assert np.abs(first[3:] - second[3:]).max() > 0.01


def test_bert_ignores_padding() -> None:
    model = structure("bert_base", dims={"sequence_length": 6}).model
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = synthesise(model, seed=0)
    feeds["token_type_ids"] = np.zeros((1, 6), np.int64)
    feeds["attention_mask"] = np.array([[1, 1, 1, 1, 0, 0]])
    first, second = (
        session.run(None, {**feeds, "input_ids": np.array([[5, 6, 7, 8, *padding]])})[0][0, :4]
        for padding in ((1, 2), (3, 4))
    )
    np.testing.assert_allclose(first, second, atol=1e-4)


def test_dimensions_are_bound_and_recorded() -> None:
    skeleton = structure("bert_base", batch=2, dims={"sequence_length": 16, "image_size": 99})
    assert skeleton.bound == {"batch": 2, "sequence_length": 16}
    assert [dim.dim_value for dim in skeleton.model.graph.input[0].type.tensor_type.shape.dim] == [2, 16]
    assert structure("squeezenet", dims={"batch": 5}).bound == {"batch": 5}


@pytest.mark.parametrize(
    ("name", "batch", "dims", "named"),
    [
        ("squeezenet", 0, {}, "batch=0"),
        ("bert_base", 1, {"sequence_length": 513}, "sequence_length=513"),
        ("vit_b16", 1, {"image_size": 8}, "image_size=8"),
    ],
)
def test_impossible_dimensions_are_refused(name: str, batch: int, dims: dict[str, int], named: str) -> None:
    with pytest.raises(ModelError, match=f"'{name}' cannot have {named}; use "):
        structure(name, batch=batch, dims=dims)


def test_entries_are_unique_and_described() -> None:
    entries = names()
    assert max(Counter(entry.name for entry in entries).values()) == 1
    assert all(entry.task and entry.family in {"cnn", "transformer", "hybrid", "mlp"} for entry in entries)
    assert {entry.name for entry in entries if entry.origin == "light"} == set(LIGHT)
    assert {entry.name for entry in entries if entry.origin == "built-in"} == set(BUILT_IN)


def test_the_writer_shares_equal_constants_and_ties_equal_weights() -> None:
    graph = GraphWriter("tied")
    x = graph.input("x", (1, 4))
    first = graph.node("Mul", graph.node("Add", x, graph.weight("w", 4)), graph.constant(2.0))
    second = graph.node("Mul", graph.node("Add", first, graph.weight("w", 4)), graph.constant(2.0))
    skeleton = graph.finish({"y": (second, (1, 4))})
    onnx.checker.check_model(skeleton.model, full_check=True)
    assert len(skeleton.model.graph.initializer) == 1
    assert [value.name for value in skeleton.model.graph.input] == ["x", "w"]
    assert skeleton.weight_bytes == 4 * 4 + 4


def test_the_documented_table_is_the_zoo() -> None:
    lines = (Path(__file__).resolve().parents[2] / "docs/reference/zoo.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")][1:]
    table = {row[0]: row[1:] for row in rows}
    for entry in names():
        dims = ", ".join(f"{key}={value}" for key, value in entry.dims)
        described = [entry.task, entry.family, entry.origin, dims]
        assert table[entry.name][:4] == described
        assert table[entry.name][7] == entry.denormals
    assert list(table) == [entry.name for entry in names()]
    for name in OFFLINE:
        model = structure(name).model
        assert table[name][4:6] == [str(len(model.graph.node)), f"{parameters(model) / 1e6:.2f}"]
