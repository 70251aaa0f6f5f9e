"""Which measurements, failures or kernel views a question is about."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self, TypedDict, Unpack

from .values import PROTOCOL, Conditions, Subject

__all__ = ["Filter", "FilterFields"]


class FilterFields(TypedDict, total=False):
    """The fields of ``Filter`` as keywords of what takes one."""

    subject: Subject | None
    keys: Collection[str] | None
    system: str | None
    stack: str | None
    conditions: Conditions | None
    threads: int | None
    cache: str | None
    dtype: str | None
    backend: str | None
    device: str | None
    variant: str | None
    protocol: int | None
    since_us: int | None
    node: str | None


@dataclass(frozen=True, slots=True)
class Filter:
    """What to select; None leaves a property open.

    Attributes:
        subject: Brick, model or reference.
        keys: Keys of bricks or models.
        system: Key of the system.
        stack: Key of the stack.
        conditions: All of threads, cache and dtype at once.
        threads: Threads.
        cache: Cache state.
        dtype: Precision.
        backend: Name of the backend.
        device: Its device.
        variant: Name of the variant; None for all.
        protocol: How measurements were taken; None for all.
        since_us: Only what was measured, failed or profiled then or later, in microseconds since 1970, UTC.
        node: Name of the node that measured; empty: one without a name. Kernel views are of no node.
    """

    subject: Subject | None = None
    keys: Collection[str] | None = None
    system: str | None = None
    stack: str | None = None
    conditions: Conditions | None = None
    threads: int | None = None
    cache: str | None = None
    dtype: str | None = None
    backend: str | None = None
    device: str | None = None
    variant: str | None = ""
    protocol: int | None = PROTOCOL
    since_us: int | None = None
    node: str | None = None

    def but(self, **fields: Unpack[FilterFields]) -> Self:
        """The same with other values of some fields."""
        return replace(self, **fields)
