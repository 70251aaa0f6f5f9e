"""What a visit does: its stages, in the order of their value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage.

    Attributes:
        name: Of the stage.
        kind: ``stack``, ``agreement``, ``bricks`` (with the models beside them), ``kernels`` (that ran for these) or
            ``models`` (alone, and few).
        share: Part of the visit that it may take while others wait.
        dtype: Precision.
        cache: Cache state.
        options: Options of the backend.
        batch: Batch; None: the models' own.
    """

    name: str
    kind: str
    share: float
    dtype: str = "float32"
    cache: str = "hot"
    options: Mapping[str, str] = field(default_factory=dict)
    batch: int | None = None


def stages(batch: int) -> list[Stage]:
    """All stages, the most valuable first; those of kernels come after what they are the kernels of.

    Args:
        batch: The larger batch.
    """
    dtypes = ("float32", "bfloat16", "float16")
    return [
        Stage("stack", "stack", 0.05),
        *(Stage(f"agreement-{dtype}", "agreement", 0.12, dtype) for dtype in dtypes),
        Stage("float32", "bricks", 0.25),
        Stage("float32-model", "bricks", 0.25, cache="model"),
        Stage("bfloat16", "bricks", 0.2, "bfloat16"),
        Stage("float16", "bricks", 0.2, "float16"),
        Stage("tf32", "bricks", 0.2, options={"tf32": "on"}),
        Stage("float32-channels_last", "bricks", 0.2, options={"layout": "channels_last"}),
        Stage("bfloat16-channels_last", "bricks", 0.2, "bfloat16", options={"layout": "channels_last"}),
        *(Stage(f"kernels-{dtype}", "kernels", 0.15, dtype) for dtype in dtypes),
        *(Stage(f"{dtype}-b{batch}", "bricks", 0.2, dtype, batch=batch) for dtype in dtypes),
        *(Stage(f"{dtype}-compile", "models", 0.3, dtype, options={"mode": "compile"}) for dtype in dtypes[:2]),
    ]
