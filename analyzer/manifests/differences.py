"""In what a machine and its software differ from those of a manifest, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .manifest import Manifest

__all__ = ["FieldDifference", "differences"]

_PARTS = ("hardware", "software", "model", "data", "settings")

_DERIVED = frozenset({"software.lock", "software.without_hash"})
"""What follows from the packages."""

_OF_FILE = ("wheel", "sha256")
"""Of a package: the file that it came from. Where both sides know what is in it, nothing hangs on that."""


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field that differs; None: not known there, or not there.

    Attributes:
        field: Its path, such as ``hardware.governor`` or ``software.packages.numpy.version``.
        manifest: What the manifest says.
        here: What it is here.
    """

    field: str
    manifest: Any
    here: Any


def differences(base: Manifest, here: Manifest) -> tuple[FieldDifference, ...]:
    """Every field of the machine, the software, the models, the data and the settings in which two manifests differ.

    Args:
        base: The one that was handed on.
        here: Of the same suite, here.
    """
    ours, theirs = (dict(_fields(one)) for one in (base, here))
    names = [name for name in dict.fromkeys([*ours, *theirs]) if name not in _DERIVED]
    return tuple(
        FieldDifference(name, ours.get(name), theirs.get(name))
        for name in names
        if ours.get(name) != theirs.get(name) and not _same_contents(name, ours, theirs)
    )


def _fields(manifest: Manifest) -> Iterator[tuple[str, Any]]:
    for part in _PARTS:
        yield from _flat(part, getattr(manifest, part))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, list(value) if isinstance(value, tuple) else value


def _same_contents(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether a field is about the file of a package whose files are the same on both sides."""
    package, _, last = name.rpartition(".")
    known = [side.get(f"{package}.contents") for side in (ours, theirs)]
    return last in _OF_FILE and known[0] is not None and known[0] == known[1]
