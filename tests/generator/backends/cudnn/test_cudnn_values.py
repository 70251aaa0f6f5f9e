"""What lies in memory is what the strides of a tensor say."""

from __future__ import annotations

import numpy as np
import pytest
from dlbricks.generator.backends.cudnn.operations import Derivation, Tensor, TensorRole, from_memory, in_memory


def _read(tensor: Tensor, flat: np.ndarray, *, channels_last: bool) -> np.ndarray:
    strides = [step * flat.itemsize for step in tensor.strides(channels_last=channels_last)]
    return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("tensor", "turned"),
    [
        (Tensor((2, 3, 4, 5), TensorRole.INPUT, sources=("x",), image=True), (0, 1, 2, 3)),
        (Tensor((2, 3, 4, 5), TensorRole.INPUT, sources=("x",)), (0, 1, 2, 3)),
        (Tensor((1, 4, 5), TensorRole.WEIGHT, order=(0, 2, 1), sources=("x",)), (0, 2, 1)),
        (Tensor((2, 3, 4, 5), TensorRole.INPUT, order=(0, 1, 3, 2), sources=("x",), relaid=True), (0, 1, 3, 2)),
    ],
)
def test_an_operand_lies_as_its_strides_say(tensor, turned, channels_last):
    held = np.arange(np.prod(tensor.shape), dtype=np.float32).reshape([tensor.shape[at] for at in turned])

    flat = in_memory(tensor, {"x": held}, channels_last=channels_last).reshape(-1)

    found = _read(tensor, flat, channels_last=channels_last)
    np.testing.assert_array_equal(found, held.transpose(np.argsort(turned)))


@pytest.mark.parametrize("channels_last", [False, True])
def test_an_output_comes_back_in_the_order_of_the_network(channels_last):
    tensor = Tensor((2, 3, 4, 5), TensorRole.OUTPUT, image=True)
    value = np.arange(120, dtype=np.float32).reshape(tensor.shape)
    flat = in_memory(
        Tensor(tensor.shape, TensorRole.INPUT, sources=("x",), image=True), {"x": value}, channels_last=channels_last
    ).reshape(-1)

    np.testing.assert_array_equal(from_memory(tensor, flat, value.shape, channels_last=channels_last), value)


def test_a_batch_normalization_is_its_scale_and_shift():
    rng = np.random.default_rng(0)
    values = {name: rng.random(3).astype(np.float32) for name in ("scale", "mean", "variance", "bias")}
    x = rng.random((2, 3, 4)).astype(np.float32)
    sources = ("scale", "mean", "variance", "bias")

    factor, shift = (
        in_memory(Tensor((1, 3, 1), TensorRole.WEIGHT, (), names, kind, 1e-3), values, channels_last=False)
        for kind, names in ((Derivation.SCALE, sources[:3]), (Derivation.SHIFT, sources))
    )

    scale, mean, variance, bias = (values[name].reshape(1, 3, 1) for name in sources)
    np.testing.assert_allclose(x * factor + shift, (x - mean) / np.sqrt(variance + 1e-3) * scale + bias, rtol=1e-4)
