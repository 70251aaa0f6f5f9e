"""A decoder of one layer: the model of its prompt and that of a step, with open lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

WIDTH, VOCABULARY = 16, 50

PROMPT = """
<ir_version: 8, opset_import: ["": 17]>
prompt (int64[1, sequence_length] ids) => (float[1, sequence_length, 50] logits, float[1, sequence_length, 16] present)
{
    e = Gather(table, ids)
    present = MatMul(e, keys)
    t = Transpose<perm=[0, 2, 1]>(present)
    s = MatMul(e, t)
    p = Softmax(s)
    c = MatMul(p, present)
    logits = MatMul(c, head)
}
"""
STEP = """
<ir_version: 8, opset_import: ["": 17]>
step (int64[1, 1] ids, float[1, past_length, 16] past) => (float[1, 1, 50] logits, float[1, total, 16] present) {
    e = Gather(table, ids)
    k = MatMul(e, keys)
    present = Concat<axis=1>(past, k)
    t = Transpose<perm=[0, 2, 1]>(present)
    s = MatMul(e, t)
    p = Softmax(s)
    c = MatMul(p, present)
    logits = MatMul(c, head)
}
"""


def write(text: str, path: Path) -> Path:
    model = onnx.parser.parse_model(text)
    chance = np.random.default_rng(0)
    shapes = {"table": (VOCABULARY, WIDTH), "keys": (WIDTH, WIDTH), "head": (WIDTH, VOCABULARY)}
    for name, shape in shapes.items():
        weights = chance.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two files."""
    folder = tmp_path_factory.mktemp("decoder")
    return str(write(PROMPT, folder / "prompt.onnx")), str(write(STEP, folder / "step.onnx"))
