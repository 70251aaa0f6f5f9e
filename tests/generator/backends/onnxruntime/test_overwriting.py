"""Which operators write over their input, by the memory that an execution takes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from dlbricks.bricks.operators import Trait, having

CALLS = {
    "Add": "Add(a, c)", "Cast": "Cast<to=6>(a)", "CastLike": "CastLike(a, c)", "Clip": "Clip(a, c)", "Mul": "Mul(c, a)",
    "ScatterElements": "ScatterElements(a, index, one)", "LayerNormalization": "LayerNormalization(a, row)",
}  # fmt: skip
NEVER = ("Add", "Mul", "Erf", "Exp", "Sqrt", "Abs", "LayerNormalization")
"""Operators that compute each element alone, or nearly so, and do not."""
OLD = {"Scatter"}
"""Not in the operator set of the test."""
OPERATORS = sorted((having(Trait.OVERWRITES) - OLD) | {*NEVER})

MEASURED = """
import json, re, sys
from pathlib import Path
import numpy as np, onnx.parser, onnxruntime
from onnx import numpy_helper

SHAPE = (48, 1024, 256)  # 48 MiB: memory that the system takes back at once
FEEDS = {"x": np.ones(SHAPE, np.float32)}
WEIGHTS = {"c": np.float32(1), "row": np.ones(256, np.float32), "one": np.ones((1, 1, 1), np.float32),
           "index": np.zeros((1, 1, 1), np.int64)}

def kib(name):
    return int(re.search(rf"^{name}:\\s+(\\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1])

def taken(call):
    kind = "int32" if call.startswith("Cast<") else "float"
    model = onnx.parser.parse_model(f'''<ir_version: 8, opset_import: ["": 18]> g (float[48,1024,256] x) => ({kind} y)
    {{ a = Neg(x) b = {call} y = ReduceMax<keepdims=0>(b) }}''')
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in WEIGHTS.items())
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    before = kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    session.run(None, FEEDS)
    return round((kib("VmHWM") - before) * 1024 / FEEDS["x"].nbytes)

print(json.dumps([taken(call) for call in json.loads(sys.argv[1])]))
"""


@pytest.fixture(scope="module")
def memory() -> dict[str, int]:
    """Values that an execution holds at once, by operator: in a process whose memory nothing else has used."""
    calls = json.dumps([CALLS.get(operator, f"{operator}(a)") for operator in OPERATORS])
    done = subprocess.run([sys.executable, "-c", MEASURED, calls], capture_output=True, text=True, check=True)
    return dict(zip(OPERATORS, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("operator", OPERATORS)
def test_only_operators_with_the_trait_write_over_their_input(operator, memory):
    assert memory[operator] == (1 if operator in having(Trait.OVERWRITES) else 2)
