"""Architectures for images."""

from __future__ import annotations

import numpy as np
from plants.blocks import (
    attention,
    batch_norm,
    classifier,
    conv,
    conv_bn,
    dense,
    depthwise,
    gelu,
    layer_norm,
    mlp,
    relu,
    towers,
)
from plants.net import Net


def residual(net: Net) -> None:
    """Residual blocks of two 3x3 convolutions in three stages, as ResNet-18 has them."""
    x = net.input("image", (1, 3, 64, 64))
    with net.scope("stem"):
        x = relu(net, conv_bn(net, x, net.width(32), 3, 2))
    for stage, width in enumerate((32, 64, 128)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            with net.scope(f"layer{stage + 1}", block):
                before = x
                with net.scope("conv1"):
                    x = relu(net, conv_bn(net, x, net.width(width), 3, stride))
                with net.scope("conv2"):
                    x = conv_bn(net, x, net.width(width), 3)
                if stride == 2:
                    with net.scope("shortcut"):
                        before = conv_bn(net, before, net.width(width), 1, 2)
                x = net.edge(relu(net, net.op("Add", x, before)))
    classifier(net, x)


def mobile(net: Net) -> None:
    """Inverted residuals with depthwise convolutions and hard swish, as MobileNet v3 has them."""
    x = net.input("image", (1, 3, 128, 128))
    with net.scope("stem"):
        x = _hard_swish(net, conv_bn(net, x, 16, 3, 2))
    for block, (width, stride) in enumerate([(16, 1), (24, 2), (24, 1), (40, 2), (40, 1), (40, 1), (80, 2), (80, 1)]):
        with net.scope("blocks", block):
            before = x
            with net.scope("expand"):
                x = _hard_swish(net, conv_bn(net, x, 4 * net.shapes[x][1], 1))
            with net.scope("depthwise"):
                x = _hard_swish(net, batch_norm(net, depthwise(net, x, 3, stride=stride)))
            with net.scope("project"):
                x = conv_bn(net, x, width, 1)
            if net.shapes[x] == net.shapes[before]:
                x = net.op("Add", x, before)
            x = net.edge(x)
    classifier(net, x)


def _hard_swish(net: Net, x: str) -> str:
    return net.op("Mul", x, net.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def inception(net: Net) -> None:
    """Blocks of four branches that are concatenated, as GoogLeNet has them."""
    x = net.input("image", (1, 3, 64, 64))
    with net.scope("stem"):
        x = relu(net, conv_bn(net, x, net.width(48), 3, 2))
    for block in range(4):
        with net.scope(f"mixed_{block}"):
            branches = []
            for branch, kernels in enumerate([(1,), (1, 3), (1, 3, 3), (1,)]):
                with net.scope(f"branch{branch}"):
                    y = x
                    if branch == 3:
                        y = net.op("MaxPool", y, shape=net.shapes[y], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
                    for number, kernel in enumerate(kernels):
                        with net.scope(number):
                            y = relu(net, conv_bn(net, y, net.width(32), kernel))
                    branches.append(y)
            x = net.edge(net.concat(branches, 1))
            if block == 1:
                batch, channels, height, width = net.shapes[x]
                half = (batch, channels, height // 2, width // 2)
                x = net.op("MaxPool", x, shape=half, kernel_shape=[2, 2], strides=[2, 2])
    classifier(net, x)


def unet(net: Net) -> None:
    """Build an encoder and a decoder of convolutions with skip connections, like U-Net."""
    x = net.input("image", (1, 3, 64, 64))
    across = []
    for level, width in enumerate((16, 32, 64)):
        with net.scope("down", level):
            x = net.edge(_twice(net, x, net.width(width)))
            across.append(x)
            batch, channels, height, wide = net.shapes[x]
            half = (batch, channels, height // 2, wide // 2)
            x = net.op("MaxPool", x, shape=half, kernel_shape=[2, 2], strides=[2, 2])
    with net.scope("middle"):
        x = _twice(net, x, net.width(64))
    for level, width in enumerate((64, 32, 16)):
        with net.scope("up", level):
            batch, channels, height, wide = net.shapes[x]
            sizes = net.constant("scales", np.array([1, 1, 2, 2], np.float32))
            larger = net.op(
                "Resize", x, "", sizes, shape=(batch, channels, 2 * height, 2 * wide), mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor",
            )  # fmt: skip
            x = net.edge(_twice(net, net.concat([across.pop(), larger], 1), net.width(width)))
    with net.scope("head"):
        net.output(conv(net, x, 16, 1))


def _twice(net: Net, x: str, width: int) -> str:
    for number in range(2):
        with net.scope(f"conv{number}"):
            x = relu(net, conv_bn(net, x, width, 3))
    return x


def convnext(net: Net) -> None:
    """Depthwise 7x7 convolutions and a perceptron with channels last, as ConvNeXt has them."""
    x = net.input("pixel_values", (1, 3, 64, 64))
    with net.scope("stem"):
        x = conv(net, x, 64, 4, stride=4)
    for stage, blocks in enumerate((2, 3)):
        if stage:
            with net.scope("downsample"):
                x = conv(net, x, 128, 2, stride=2)
        for block in range(blocks):
            with net.scope("stages", stage, block):
                before = x
                with net.scope("dwconv"):
                    x = net.transpose(depthwise(net, x, 7), 0, 2, 3, 1)
                x = mlp(net, layer_norm(net, x), 4 * net.shapes[x][-1])
                x = net.edge(net.op("Add", before, net.transpose(x, 0, 3, 1, 2)))
    classifier(net, x)


def mixer(net: Net) -> None:
    """Build alternating perceptrons over patches and channels, like MLP-Mixer."""
    x = net.input("image", (1, 3, 128, 128))
    with net.scope("patches"):
        x = conv(net, x, 128, 8, stride=8)
        x = net.transpose(net.reshape(x, 1, 128, 256), 0, 2, 1)
    for block in range(4):
        with net.scope("blocks", block):
            with net.scope("tokens"):
                y = net.transpose(layer_norm(net, x), 0, 2, 1)
                x = net.op("Add", x, net.transpose(mlp(net, y, 128), 0, 2, 1))
            with net.scope("channels"):
                x = net.edge(net.op("Add", x, mlp(net, layer_norm(net, x), 256)))
    with net.scope("head"):
        net.output(dense(net, layer_norm(net, x), 64))


def stereo(net: Net) -> None:
    """Build one transformer for two views of a scene, and multiply their features."""
    views = [net.input(name, (1, 48, 96)) for name in ("left", "right")]

    def tower(net: Net, x: str) -> str:
        for block in range(6):
            with net.scope("tower", block):
                with net.scope("attention"):
                    x = net.op("Add", x, attention(net, layer_norm(net, x), 3))
                with net.scope("mlp"):
                    x = net.op("Add", x, mlp(net, layer_norm(net, x), 192))
        return x

    left, right = towers(net, views, tower)
    with net.scope("head"):
        net.output(gelu(net, dense(net, net.edge(net.op("Mul", left, right)), 96)))
