"""What a brick of MXNet reads in blocks, and that it computes the same from there."""

from __future__ import annotations

import subprocess

from dlbricks.generator.backends.mxnet.backend import MxnetBackend

PROGRAM = """
import warnings; warnings.simplefilter("ignore")
import numpy as np, mxnet as mx
from dlbricks.generator.backends.mxnet.layout import in_blocks, read_in_blocks, rewrite
mx.util.set_np_shape(True)

x, w, z = (mx.sym.var(name) for name in "xwz")
convolution = mx.sym.Convolution(x, w, num_filter=16, kernel=(1, 1), no_bias=True)
assert read_in_blocks(convolution) == {"x", "w"}, read_in_blocks(convolution)
assert read_in_blocks(mx.sym.broadcast_mul(z, convolution)) == {"x", "w"}
assert read_in_blocks(mx.sym.transpose(z, axes=(0, 2, 3, 1))) == set()

values = np.random.default_rng(0).standard_normal((1, 24, 5, 7), dtype=np.float32)
laid_out, target = in_blocks(values), in_blocks(np.zeros_like(values))
assert (laid_out.asnumpy() == values).all()
rewrite(laid_out, target)
assert (target.asnumpy() == values).all()

assert in_blocks(values[:, :3]) is None
assert in_blocks(values[0]) is None
assert in_blocks(values.astype(np.float64)) is None
"""

IN_A_PASS = """
import sys
import numpy as np, onnx.parser
from dlbricks.generator.backends.base import Settings
from dlbricks.generator.backends.mxnet.backend import MxnetBackend
from dlbricks.generator.network.network import synthetic_network

backend = MxnetBackend()
options = {option.name: option.default for option in backend.declared("cpu")}
settings = Settings(device="cpu", options={**options, "pinning": "off"}, threads=1)
backend.setup(settings)
for text in sys.argv[1:]:
    network = synthetic_network(onnx.parser.parse_model(text), seed=3)
    alone, inside = backend.prepare(network, settings), backend.prepare_streamed(network, settings)
    assert len(inside._refreshing) == len(network.feeds)
    alone.run()
    for _ in range(2):
        inside.refresh()
        inside.run()
        for expected, found in zip(alone.outputs(), inside.outputs(), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
"""

HEADER = '<ir_version: 9, opset_import: ["" : 21]> brick '
BRICKS = (
    "(float[1,16,9,9] x) => (float[1,16,9,9] y) {m = MaxPool<kernel_shape=[3,3],pads=[1,1,1,1]>(x) y = Relu(m)}",
    "(float[1,16,9,9] x, float[1,24,9,9] z) => (float[1,40,9,9] y) {y = Concat<axis=1>(x, z)}",
    "(float[1,16,9,9] x, float[1,16,9,9] z) => (float[1,16,9,9] y) {y = Add(x, z)}",
    "(float[1,16,9,9] x, float[1,16,1,1] z) => (float[1,16,9,9] y) {y = Mul(x, z)}",
    "(float[2,8,9,9] x) => (float[2,9,9,8] y) {y = Transpose<perm=[0,2,3,1]>(x)}",
)


def test_bricks_of_a_pass_compute_the_same_from_there(mxnet):
    command = [*MxnetBackend().command()[:-2], "-c", IN_A_PASS, *(HEADER + brick for brick in BRICKS)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    assert done.returncode == 0, done.stderr[-2000:]


def test_values_are_the_same_in_blocks(mxnet):
    command = [*MxnetBackend().command()[:-2], "-c", PROGRAM]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
