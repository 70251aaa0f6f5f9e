"""Which operators write over their input, by the memory that an execution takes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from dlbricks.bricks.operators import Trait, having
from onnx import numpy_helper

SHAPE = (48, 1024, 256)
"""48 MiB: memory that the system takes back at once."""
CALLS = {
    "Add": "Add(a, c)", "Cast": "Cast<to=6>(a)", "Clip": "Clip(a, c)", "Mul": "Mul(c, a)", "Trilu": "Trilu(a)",
    "ScatterElements": "ScatterElements(a, index, one)", "LayerNormalization": "LayerNormalization(a, c)",
    "CastLike": "CastLike(a, c)",
}  # fmt: skip
NEVER = ("Add", "Mul", "Erf", "Exp", "Sqrt", "Abs", "LayerNormalization")
"""Operators that compute each element alone, or nearly so, and do not."""
OLD = {"Scatter"}
"""Not in the operator set of the test."""


def _kib(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("operator", sorted((having(Trait.OVERWRITES) - OLD) | {*NEVER}))
def test_only_operators_with_the_trait_write_over_their_input(operator):
    dims = ",".join(map(str, SHAPE))
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[{dims}] x) => (y)
    {{ a = Neg(x) b = {CALLS.get(operator, f"{operator}(a)")} y = ReduceMax<keepdims=0>(b) }}"""
    model = onnx.parser.parse_model(text.replace("(y)", f"({'int32' if operator == 'Cast' else 'float'} y)"))
    weights = {"c": np.float32(1), "one": np.ones((1, 1, 1), np.float32), "index": np.zeros((1, 1, 1), np.int64)}
    if operator == "LayerNormalization":
        weights["c"] = np.ones(SHAPE[-1], np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items())
    options = onnxruntime.SessionOptions()
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds = {"x": np.ones(SHAPE, np.float32)}

    before = _kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    session.run(None, feeds)

    taken = (_kib("VmHWM") - before) * 1024 / feeds["x"].nbytes
    assert round(taken) == (1 if operator in having(Trait.OVERWRITES) else 2)
