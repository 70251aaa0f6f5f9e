"""Estimates written as flat as their records are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dlbricks.analyzer.estimation.estimates import FIELDS
from dlbricks.bricks.layer import Cutting
from dlbricks.constructor.result import Estimate, EstimatedModel
from dlbricks.models import ModelSource


def flat_estimate(
    name: str = "m", granularity: int = 1, *, batch: int | None = None, dims: dict[str, int] | None = None, **known: Any
) -> Estimate:
    """An estimate of a model without a file, its values by the keys of its record.

    Args:
        name: The model.
        granularity: G.
        batch: Its batch.
        dims: Its dimensions.
        **known: What is known of it.
    """
    source = ModelSource(name, None, None, batch, tuple((dims or {}).items()))
    return changed(Estimate(EstimatedModel(source, Cutting(granularity))), **known)


def changed(estimate: Estimate, **known: Any) -> Estimate:
    """The same estimate with other values, by the keys of its record."""
    paths = {field.key: field.path or field.key for field in FIELDS} | {
        "disturbance": "truth.disturbance",
        "path": "parts.path",
    }  # of the record it is the model's, else the bricks'
    for key, value in known.items():
        estimate = _put(estimate, paths.get(key, key).split("."), value)
    return estimate


def _put(holder: Any, path: list[str], value: Any) -> Any:
    first, *rest = path
    return replace(holder, **{first: _put(getattr(holder, first), rest, value) if rest else value})
