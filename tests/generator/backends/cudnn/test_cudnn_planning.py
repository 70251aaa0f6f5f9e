"""What cuDNN plans for bricks on an H100, without a GPU: with a stand-in for the driver. Skipped without its wheel."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import onnx
import pytest
from dlbricks.errors import UnsupportedBrick
from dlbricks.generator.backends.base import released
from dlbricks.generator.backends.cudnn import backend
from dlbricks.generator.backends.cudnn.lowering import translate
from dlbricks.generator.backends.cudnn.operations import merged
from dlbricks.generator.backends.cudnn.plans import KNOWN, find_gpu
from dlbricks.generator.backends.library import LoadedBrick
from stub_driver import build, library_folder

_PLANNER = """
import json, sys
import cudnn, onnx
from dlbricks.generator.backends.cudnn.lowering import translate
from dlbricks.generator.backends.cudnn.operations import merged
from dlbricks.generator.backends.cudnn.plans import DESELECTED, MODES, Target, find_gpu, planned
place = {"device_property": cudnn.create_device_properties(find_gpu("h100").description)}
for path, dtype in json.load(sys.stdin):
    last = "Conv" in path
    graph = merged(translate(onnx.load(path)), channels_last=last)
    try:
        built = planned(graph, MODES, Target(dtype, last, place, exact=dtype == "float32"))
    except Exception as error:
        print(json.dumps([0, 0, str(error)]))
        continue
    left_out = 0
    for at in range(built.get_execution_plan_count()):
        try:
            built.build_plan_at_index(at)
        except Exception as error:
            left_out += DESELECTED in str(error)
    print(json.dumps([built.get_execution_plan_count(), left_out, ""]))
"""

_PRODUCT = "(float[1,64,28,28] x, float[64,64,3,3] w0) => (float[1,64,28,28] y) { y = Conv<pads=[1,1,1,1]>(x, w0) }"
_FUSED = (
    "(float[1,64,28,28] x, float[64,64,1,1] w0, float[64] w1, float[64] w2, float[64] w3, float[64] w4)"
    " => (float[1,64,28,28] y) { a = Conv(x, w0) b = BatchNormalization(a, w1, w2, w3, w4) y = Relu(b) }"
)
_POINTWISE = (
    "(float[16,64,112,112] x) => (float[16,64,112,112] y) { y = Relu(x) }",
    "(float[16,64,112,112] x, float[16,64,112,112] z) => (float[16,64,112,112] y) { y = Add(x, z) }",
    (
        "(float[1,64,28,28] x, float[64] w0, float[64] w1, float[64] w2, float[64] w3) => (float[1,64,28,28] y)"
        "{ y = BatchNormalization(x, w0, w1, w2, w3) }"
    ),
)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Ask for plans, of convolutions with the channels last: count, count of left out ones, reason without any."""
    libraries = library_folder()
    if libraries is None or shutil.which("gcc") is None:
        pytest.skip("cuDNN, or gcc, is not installed")
    folder = tmp_path_factory.mktemp("driver")
    paths = [build(folder).parent, *libraries.parents[1].glob("cu*/lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, paths))}

    def plan(models: list[tuple[onnx.ModelProto, str]]) -> list[tuple[int, int, str]]:
        asked = []
        for number, (model, dtype) in enumerate(models):
            path = folder / f"{model.graph.node[0].op_type}-{number}.onnx"
            onnx.save(model, path)
            asked.append((str(path), dtype))
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PLANNER], input=json.dumps(asked), env=environment, capture_output=True,
            text=True, timeout=300, check=False,
        )  # fmt: skip
        if "cublasLt" in done.stderr:
            pytest.skip("cuDNN, or the cuBLAS that it plans with, is not installed")
        assert done.returncode == 0, done.stderr[-2000:]
        return [tuple(json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]

    return plan


def test_convolutions_and_their_fusions_are_planned(ask, skeleton_of):
    models = [(skeleton_of(text), dtype) for text in (_PRODUCT, _FUSED) for dtype in ("float16", "float32")]

    found = ask(models)

    assert [reason for *_, reason in found] == [""] * 4
    assert all(count for count, *_ in found)
    assert found[0][1] == found[2][1] == 0  # of float16 nothing is left out
    assert 0 < found[1][1] < found[1][0]  # of float32 whatever multiplies in TF32
    assert found[3][1] > 0


def test_nothing_is_left_out_of_graphs_without_a_product(ask, skeleton_of):
    found = ask([(skeleton_of(text), dtype) for text in _POINTWISE for dtype in ("float16", "float32")])

    assert all(count and not left_out for count, left_out, _ in found)


@pytest.mark.parametrize("text", _POINTWISE)
def test_no_dimension_is_longer_than_a_kernel_can_launch(text, skeleton_of):
    whole = translate(skeleton_of(text))
    few = merged(whole)

    for name, tensor in few.tensors.items():
        assert max(tensor.shape) <= 65_535
        assert math.prod(tensor.shape) == math.prod(whole.tensors[name].shape)


class _Offer:
    """A graph of the library with some plans, which notes what it executes."""

    def __init__(self, names: list[str]) -> None:
        self.names, self.executed = names, []

    def get_execution_plan_count(self) -> int:
        return len(self.names)

    def get_plan_name_at_index(self, index: int) -> str:
        return self.names[index]

    def build_plan_at_index(self, index: int) -> None:
        assert index < len(self.names)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return 0

    def execute_plan_at_index(self, _pack: object, _workspace: int, index: int, handle: object) -> None:
        self.executed.append(self.names[index])


@pytest.mark.parametrize(("asked", "executed"), [("eng9_k2=1", "eng9_k2=1"), ("0", "eng4_k2=3")])
def test_a_plan_is_found_by_engine_and_knobs_wherever_the_library_lists_it(asked, executed, monkeypatch):
    monkeypatch.setattr(backend.Execution, "_loaded", lambda _: LoadedBrick(released, [], [], list))
    for names in (["eng4_k2=3", "eng9_k2=1"], ["eng4_k2=3", "eng1_k2=0", "eng9_k2=1"]):
        execution = object.__new__(backend.Execution)
        execution._built, execution._pack, execution._handle = _Offer(names), {}, None
        execution._memory = SimpleNamespace(empty=lambda _: SimpleNamespace(address=0))

        execution.loaded(asked).run()

        assert execution._built.executed == [executed]
    with pytest.raises(UnsupportedBrick, match="no such plan"):
        execution.loaded("eng7_k2=1")


def test_descriptions_have_what_the_library_asks_for():
    wanted = json.loads(find_gpu("h200").description).keys() - {
        "smCountOrigin",
        "deviceId",
        "oversizedSharedMemoryPerBlock",
    }

    for known in KNOWN.values():
        assert not wanted - known.keys()
