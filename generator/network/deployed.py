"""Files as people deploy them, by ONNX Runtime's tools: attention as one operator, weights of products in four bits.

What they make of a file is what a runtime finds there: operators of its own domain (``com.microsoft``), which become
layers and bricks like any others.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import onnx

from ...errors import BackendError

__all__ = ["ATTENTION", "WEIGHTS", "with_attention", "with_weights"]

ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "SparseAttention")
"""Operators that are attention as a whole."""

WEIGHTS = ("int4", "int8")
"""What weights of products may be stored in."""

_KINDS = ("gpt2", "bert", "qwen3", "gpt_neox", "phi", "t5", "bart", "clip")
"""Families of models that the runtime's optimiser knows: each looks for attention in another spelling."""

_BLOCK = 32
"""Weights that share a scale, the optimiser's and most exporters' choice."""

_MICROSOFT = "com.microsoft"


def with_attention(data: bytes) -> bytes:
    """A model whose attention is one operator, where the runtime's optimiser for transformers finds it.

    The optimiser must be told the family of a model. Each is tried, and the one that fuses most attention is taken. It
    runs in a process of its own: it adds to Python's search path, and leaves temporary folders behind until that ends.

    Args:
        data: The model, with its weights.

    Raises:
        BackendError: It finds none.
    """
    with tempfile.TemporaryDirectory(prefix="dlbricks-fused-") as folder:
        given, made = Path(folder) / "given.onnx", Path(folder) / "made.onnx"
        given.write_bytes(data)
        done = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(given), str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode or not made.exists():
            raise BackendError(
                f"the runtime's optimiser for transformers fails: {(done.stderr.strip().splitlines() or ['?'])[-1]}"
            )
        if not made.stat().st_size:
            raise BackendError(
                "the runtime's optimiser for transformers finds no attention in it",
                remedy="leave --fuse-attention out",
            )
        return made.read_bytes()


def main(given: str, made: str) -> None:
    """Write what the optimiser makes of a file, as the family as which it fuses most; an empty file where that is none.

    Raises:
        BackendError: It fails over it as each of the families.
    """
    from onnxruntime.transformers.optimizer import optimize_model

    best, most = b"", 0
    failed: dict[str, Exception] = {}
    for kind in _KINDS:
        try:
            fused = optimize_model(onnx.load(given), model_type=kind, opt_level=0).model
        except Exception as error:  # noqa: BLE001  # a pattern of another family that is there in part raises anything
            failed[kind] = error
            continue
        found = sum(node.op_type in ATTENTION for node in fused.graph.node)
        if found > most:
            best, most = _stated(fused), found
    if len(failed) == len(_KINDS):
        raise BackendError("; ".join(f"as {kind}: {error!r:.100}" for kind, error in failed.items()))
    Path(made).write_bytes(best)


def with_weights(data: bytes, kind: str) -> bytes:
    """A model whose products read weights of few bits (``MatMulNBits``), in blocks that share a scale.

    Args:
        data: The model, with its weights.
        kind: One of ``WEIGHTS``.

    Raises:
        BackendError: It has no products with constant weights.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    bits = int(kind.removeprefix("int"))
    quantizer = MatMulNBitsQuantizer(onnx.load_from_string(data), bits=bits, block_size=_BLOCK, is_symmetric=True)
    quantizer.process()
    model: onnx.ModelProto = quantizer.model.model
    if not any(node.op_type == "MatMulNBits" for node in model.graph.node):
        raise BackendError("it has no products with constant weights", remedy="leave --weights out")
    return _stated(model)


def _stated(model: onnx.ModelProto) -> bytes:
    """The file, which says that it has operators of the runtime's own: that tools leave out."""
    if all(entry.domain != _MICROSOFT for entry in model.opset_import):
        model.opset_import.add(domain=_MICROSOFT, version=1)
    return bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
