"""dlbricks: decompose a zoo of ONNX models into bricks, measure each once, reconstruct every model's latency."""

from .version import __version__

__all__ = ["__version__"]
