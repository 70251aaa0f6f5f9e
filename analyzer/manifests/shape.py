"""What a manifest has to hold, wherever it is from: every field that anything relies on, and its type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from ...db.values import Measurement
from ...generator.measurement.settings import MeasurementSettings

__all__ = ["Shape", "misfit"]


_MISSING = object()
"""Is of no type."""


class _Hardware(TypedDict):
    cpu: str
    architecture: str


class _Software(TypedDict):
    backend: str
    device: str
    versions: dict[str, str]
    options: dict[str, str]
    packages: dict[str, dict[str, Any]]
    without_hash: list[str]
    lock: str | None


class _Model(TypedDict):
    suite: str
    names: list[str]
    models: dict[str, Any]


class _Data(TypedDict):
    seed: int | None
    generator: dict[str, Any]


class _Reference(TypedDict):
    name: str | None
    latency_ns: float


class _Failure(TypedDict):
    key: str
    kind: str


class _Log(TypedDict):
    run: str
    probes_ns: list[float] | None
    references: list[_Reference]
    failures: list[_Failure]
    missing: list[str]


class Shape(TypedDict):
    """The predicate of the statement."""

    hardware: _Hardware
    software: _Software
    model: _Model
    data: _Data
    settings: MeasurementSettings
    reference_log: _Log
    measurements: list[Measurement]


def misfit(value: object, hint: Any, name: str = "predicate") -> str | None:
    """The first part of a value from JSON that is missing or not of its type.

    Args:
        value: What was read.
        hint: Its type. Keys that a ``TypedDict`` does not name are free, and so are fields of a dataclass to be absent,
            which whoever makes one of it finds out; an enumeration is a text here.
        name: What the value is called.

    Returns:
        The path of that part; None where all is as it should be.

    Raises:
        OverflowError: A number is too large for a float.
    """
    if get_origin(hint) in {Union, UnionType}:
        return None if any(misfit(value, one, name) is None for one in get_args(hint)) else name
    parts = _parts(value, hint)
    if parts is None:
        return name
    found = (misfit(inner, of, f"{name}.{key}") for key, inner, of in parts)
    return next((one for one in found if one is not None), None)


def _parts(value: object, hint: Any) -> list[tuple[object, object, Any]] | None:
    """What a value holds, each part with its type; None where the value itself is of another type."""
    kind, args = get_origin(hint), get_args(hint)
    if is_typeddict(hint) or is_dataclass(hint):
        if not isinstance(value, dict):
            return None
        fields = get_type_hints(hint).items()
        return [(key, value.get(key, _MISSING), of) for key, of in fields if key in value or is_typeddict(hint)]
    if kind in {dict, Mapping}:
        return [(key, inner, args[1]) for key, inner in value.items()] if isinstance(value, dict) else None
    if kind in {list, tuple}:
        if not isinstance(value, list) or (kind is tuple and ... not in args and len(args) != len(value)):
            return None
        return [(number, inner, args[0]) for number, inner in enumerate(value)]
    return [] if _is(value, hint) else None


def _is(value: object, hint: Any) -> bool:
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return type(value) is int
    if hint is NoneType:
        return value is None
    return isinstance(value, str)
