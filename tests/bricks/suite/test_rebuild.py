"""A model that is computed brick by brick gives what the original gives.

That is the proof that canonical forms mean what the source meant, that no window was cut wrongly, and that every value
that is needed is exposed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from dlbricks.bricks.cutting.sequences import sequences
from dlbricks.bricks.graph.model_graph import ModelGraph, build_graph
from dlbricks.generator.network.synthetic.weights import synthesise
from dlbricks.models.runnable import load_full, load_skeleton
from dlbricks.models.skeleton import Skeleton, is_weight
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernel

from ..rebuild import execute, rebuilt

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
SMALL = tuple(
    path
    for folder in ("simple", "pytorch-converted", "pytorch-operator")
    for path in sorted((DATA / folder).rglob("*.onnx"))
)
LIGHT = ("squeezenet", "shufflenet", "inception_v1", "inception_v2", "densenet121")
LARGE = ("resnet50", "bvlc_alexnet", "zfnet512", "vgg19")

NOT_EXECUTABLE = {
    "test_PReLU_1d_multiparam": r"PRelu\(6\)",
    "test_PReLU_2d_multiparam": r"PRelu\(6\)",
    "test_PReLU_3d_multiparam": r"PRelu\(6\)",
    "test_gradient_of_add": "Gradient",
    "test_gradient_of_add_and_mul": "Gradient",
    "test_strnorm_model_monday_casesensintive_lower": "locale",
    "test_strnorm_model_monday_casesensintive_upper": "locale",
    "test_strnorm_model_monday_empty_output": "locale",
    "test_strnorm_model_monday_insensintive_upper_twodim": "locale",
}
"""Models that ONNX Runtime executes neither as they are nor rebuilt, and what it says: a slope that opset 6 broadcasts
in its own way, a training operator, and a locale that the machine may not have."""


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    for one, other in zip(found, expected, strict=True):
        if isinstance(other, list):
            assert_equal(one, other)
        elif other.dtype == object:
            assert one.tolist() == other.tolist()
        else:
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(other).max(initial=0))))


def stored(folder: Path, prefix: str) -> list[Any]:
    """The arrays that the corpus keeps beside a model."""
    count = len(list(folder.glob(f"{prefix}_*.pb")))
    return [
        numpy_helper.to_array(onnx.TensorProto.FromString((folder / f"{prefix}_{number}.pb").read_bytes()))
        for number in range(count)
    ]


@pytest.mark.sweep(50)
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.parent.name)
def test_small_models(path: Path) -> None:
    name = path.parent.name
    dims = {"n": 0} if name == "test_sequence_model8" else {}  # its stored input is empty
    graph = build_graph(load_skeleton(path, dims=dims))
    full, _ = load_full(path, dims=dims)
    feeds = dict(zip(graph.inputs, stored(path.parent / "test_data_set_0", "input"), strict=True))
    try:
        expected = execute(onnx.load(path), feeds)
    except (Fail, InvalidArgument, NoKernel):
        # Opsets that the runtime no longer takes: what its authors computed is the reference.
        expected = None if name in NOT_EXECUTABLE else stored(path.parent / "test_data_set_0", "output")
    for granularity in (1, 3):
        if expected is None:
            with pytest.raises((Fail, InvalidArgument, NoKernel), match=NOT_EXECUTABLE[name]):
                rebuilt(full, graph, sequences(graph, granularity), feeds)
        else:
            assert_equal(rebuilt(full, graph, sequences(graph, granularity), feeds), expected)


@cache
def synthetic(name: str) -> tuple[onnx.ModelProto, ModelGraph]:
    """A light model with weights that differ from each other (its own are constant), and its graph."""
    skeleton = load_skeleton(DATA / "light" / f"light_{name}.onnx")
    full = onnx.ModelProto()
    full.CopyFrom(skeleton.model)
    arrays = synthesise(full, seed=1)
    inputs = [value for value in full.graph.input if not is_weight(value)]
    del full.graph.input[:]
    full.graph.input.extend(inputs)
    full.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in arrays.items())
    return full, build_graph(skeleton)


def check_light(name: str, *options: tuple[int, bool]) -> None:
    full, graph = synthetic(name)
    generator = np.random.default_rng(0)
    feeds = {
        value: generator.standard_normal(kind.shape).astype(np.float32)
        for value, kind in graph.inputs.items()
        if kind is not None
    }
    expected = execute(full, feeds)
    for granularity, connected in options:
        assert_equal(rebuilt(full, graph, sequences(graph, granularity, connected=connected), feeds), expected)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", LIGHT)
def test_light_models(name: str) -> None:
    check_light(name, (1, False), (4, False), (5, True))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_light_models(name: str) -> None:
    check_light(name, (1, False), (4, True))
    synthetic.cache_clear()


@given(data=st.data(), granularity=st.integers(1, 6), connected=st.booleans())
def test_random_models(
    draw_model: Callable[[st.DataObject], onnx.ModelProto], data: st.DataObject, granularity: int, connected: bool
) -> None:
    model = draw_model(data)
    graph = build_graph(Skeleton(model))
    generator = np.random.default_rng(0)
    feeds = {
        value.name: generator.standard_normal([dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype("f")
        for value in model.graph.input
    }
    found = rebuilt(model, graph, sequences(graph, granularity, connected=connected), feeds)
    assert_equal(found, execute(model, feeds))
