"""How far estimates are off for reasons that no repetition of a measurement shows, as constants with their source.

Two kinds. A composed latency differs from the model's by what the composition leaves out: its relative standard
deviation was taken over models, apart from those that are judged by it. And what processes of one run have in common
is seen only as often as there are processes, two as a rule: how far they differ on other runs tells what two cannot.
"""

from __future__ import annotations

__all__ = ["PROCESS_SD", "RUN_SD", "model_error_sd"]

PROCESS_SD = 0.01
"""Relative standard deviation between processes of what all bricks of a process share (placement in memory, clock)."""

RUN_SD = 0.02
"""Relative standard deviation between runs of undisturbed latencies (docs/results/README.md)."""

_SEVERAL_THREADS_SD = 0.045
"""At least that much at more than one thread. It was the least with which the intervals held 91 % of the 22 models of
the tuning half at two threads, in a run whose threads were not bound; of one whose threads are
(docs/results/accuracy-t2-b1.json) they hold 95 %, and 94 % of the others."""

_MODEL_ERROR_SD = {
    # ONNX Runtime 1.31 on a CPU, batch 1, one thread. The first two are by benchmarks/calibrate.py over 60 models
    # (docs/results/calibration.json): with each family left out in turn the intervals of 95 % of the ratios hold 1.
    # The others are root mean squares of estimate / measured - 1, of protocol 1.
    ("runtime", "model"): 0.034,
    ("fused", "model"): 0.031,
    ("runtime", "hot"): 0.15,  # 18 models (CNNs and transformers), call overhead taken off
    ("runtime", "cold"): 0.29,  # the same 18, caches evicted before each execution
    ("source", "hot"): 0.235,  # the same 18: the method of DLBricks as printed
    # Not calibrated on models of their own: as uncertain as the nearest that is.
    ("source", "model"): 0.235,
    ("source", "cold"): 0.29,
    ("written", "model"): 0.09,  # PyTorch 2.13, eager, one thread: root mean square over 12 models at G=1
    ("written", "hot"): 0.15,
    ("written", "cold"): 0.29,
    ("fused", "hot"): 0.235,
    ("fused", "cold"): 0.29,
}


def model_error_sd(graph: str, cache: str, *, threads: int = 1) -> float:
    """Relative standard deviation of the error of an estimate that measures itself exactly.

    Args:
        graph: Which graph it is composed from; ``written`` for a model's own that is executed as it is written.
        cache: ``model`` where each model has bricks of its own footprint class, else ``hot`` or ``cold``; any other
            name is one class for all models, which suits some as badly as hot bricks do.
        threads: Of the runtime.
    """
    known = _MODEL_ERROR_SD[graph, cache if cache in {"model", "cold"} else "hot"]
    return known if threads == 1 else max(known, _SEVERAL_THREADS_SD)
