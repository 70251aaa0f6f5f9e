"""The loop that predictions are held against generates what the prompt alone would."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper
from tokens import Loop, _against, _spread

BODY = """
    t = Transpose<perm=[0, 2, 1]>(present_key)
    s = MatMul(e, t)
    f = Cast<to=1>(attention_mask)
    a = Unsqueeze(f, one)
    w = Mul(s, a)
    c = MatMul(w, present_key)
    logits = MatMul(c, head)
}
"""
PROMPT = """
<ir_version: 8, opset_import: ["": 17]>
prompt (int64[1, n] input_ids, int64[1, n] attention_mask) => (float[1, n, 50] logits, float[1, n, 8] present_key)
{
    e = Gather(table, input_ids)
    present_key = MatMul(e, keys)
"""
STEP = """
<ir_version: 8, opset_import: ["": 17]>
step (int64[1, 1] input_ids, int64[1, m] attention_mask, float[1, n, 8] past_key)
    => (float[1, 1, 50] logits, float[1, m, 8] present_key)
{
    e = Gather(table, input_ids)
    k = MatMul(e, keys)
    present_key = Concat<axis=1>(past_key, k)
"""


def write(text: str, path: Path) -> Path:
    model = onnx.parser.parse_model(text + BODY)
    chance = np.random.default_rng(0)
    for name, shape in {"table": (50, 8), "keys": (8, 8), "head": (8, 50)}.items():
        model.graph.initializer.append(numpy_helper.from_array(chance.normal(size=shape).astype(np.float32), name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    onnx.save(model, path)
    return path


def test_a_loop_feeds_what_a_step_returns_into_the_next(tmp_path: Path) -> None:
    prompt, step = write(PROMPT, tmp_path / "prompt.onnx"), write(STEP, tmp_path / "step.onnx")
    loop = Loop(prompt, step, threads=1)

    times = loop.answer(4, 5)

    assert len(times) == 5
    assert len(loop.ids) == 8
    session: Any = ort.InferenceSession(str(prompt), providers=["CPUExecutionProvider"])
    for length in range(4, 8):  # every position attends to all: to compare, the last alone
        ids = np.array([loop.ids[:length]])
        logits, _ = session.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        assert int(logits[0, -1].argmax()) == loop.ids[length]


def test_errors_are_relative_to_what_the_loop_took() -> None:
    found = _against("token", 11.0, 4.0, [(8.0, 4.0), (12.0, 6.0)])

    assert found["token_error"] == pytest.approx(0.1)
    assert found["loop_token_quiet_ms"] == pytest.approx(4.2)
    assert found["token_quiet_error"] == pytest.approx(4 / 4.2 - 1)
    assert _spread([-0.3, 0.1, 0.2]) == {"count": 3, "median": 0.2, "p90": pytest.approx(0.28), "worst": 0.3}
