"""From the network of a brick to an operation graph.

Bricks are in canonical form (``bricks.canonical``): the newest opset, defaults filled in, shapes static. What has no
counterpart in cuDNN's graph API is refused with its reason; nothing is approximated.
"""

from __future__ import annotations

import onnx

from ....models.names import is_standard
from ....models.shapes import infer_shapes
from .attention import attention
from .building import Builder, Node
from .operations import OperationGraph
from .operators import OPERATORS

__all__ = ["translate"]


def translate(model: onnx.ModelProto) -> OperationGraph:
    """The operation graph of a brick.

    Args:
        model: A brick's network.

    Raises:
        UnsupportedBrick: cuDNN's graph API does not have it; the message names the operator and says why.
    """
    builder = Builder(infer_shapes(model, strict=True))
    if attention([Node(proto, builder) for proto in builder.graph.node]):
        return builder.finish()
    for proto in builder.graph.node:
        emit = OPERATORS.get(proto.op_type) if is_standard(proto) else None
        node = Node(proto, builder)
        if emit is None:
            raise node.refuse("is not in cuDNN's graph API, or not translated")
        emit(node)
    return builder.finish()
