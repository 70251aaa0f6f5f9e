"""Kernel views as they are stored: one per item, the latest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select, update

from ..errors import StoreError
from .filter import Filter
from .identity import CHUNK, Identity, insert_new, item_id
from .queries import matching_items
from .schema import CombinationRow, ItemRow, KernelViewRow, table_of
from .values import Conditions, Kernel, KernelView, Subject

__all__ = ["kernel_views", "put_view", "to_view", "view_row"]

_view, _item, _combination = map(table_of, (KernelViewRow, ItemRow, CombinationRow))


def view_row(view: KernelView) -> dict[str, Any]:
    """The columns of ``KernelViewRow`` that say what ran."""
    kernels = [[one.name, one.operator, one.place, one.calls, one.time_ns] for one in view.kernels]
    return {
        "source": view.source,
        "executions": view.executions,
        "wall_ns": view.wall_ns,
        "kernels": kernels,
    }


def to_view(row: Mapping[str, Any]) -> KernelView:
    """From a row of ``KernelViewRow``.

    Raises:
        StoreError: It holds something else.
    """
    kernels = row["kernels"]
    if not isinstance(kernels, list) or not all(_is_kernel(entry) for entry in kernels):
        raise StoreError("a stored kernel view cannot be read", remedy="restore a copy")
    return KernelView(
        kernels=tuple(Kernel(*entry) for entry in kernels),
        wall_ns=row["wall_ns"],
        executions=row["executions"],
        source=row["source"],
    )


def _is_kernel(entry: Sequence[object]) -> bool:
    # Databases of others are merged: what cannot be summed must not get further than here.
    if not isinstance(entry, list) or len(entry) != len(Kernel.__slots__):
        return False
    *texts, calls, time_ns = entry
    whole = isinstance(calls, int) and (time_ns is None or isinstance(time_ns, int))
    return whole and all(isinstance(text, str) for text in texts)


def put_view(connection: Connection, identity: Identity, row: Mapping[str, Any]) -> bool:
    """Store a view in place of an older one of the same item.

    Args:
        connection: Inside a writing transaction.
        identity: What it is of.
        row: Columns of ``KernelViewRow`` but for ``item_id``.

    Returns:
        Whether it was stored: not where the one that is there is as new.
    """
    item = item_id(connection, identity)
    if insert_new(connection, _view, [{**row, "item_id": item}]):
        return True
    later = update(_view).where(_view.c.item_id == item, _view.c.taken_us < row["taken_us"]).values(**row)
    return connection.execute(later).rowcount == 1


def kernel_views(connection: Connection, wanted: Filter) -> dict[Identity, KernelView]:
    """The views that match, by what they are of."""
    i, c = _item.c, _combination.c
    query = (
        select(i.subject, i.key.label("item_key"), i.variant, c.system, c.stack, c.threads, c.cache, c.dtype, _view)
        .join(_item, i.id == _view.c.item_id)
        .join(_combination, c.id == i.combination_id)
    )
    if wanted.since_us is not None:
        query = query.where(_view.c.taken_us >= wanted.since_us)
    items = matching_items(connection, wanted)
    found: dict[Identity, KernelView] = {}
    for start in range(0, len(items), CHUNK):
        chunk = query.where(_view.c.item_id.in_(items[start : start + CHUNK]))
        for row in connection.execute(chunk).mappings():
            conditions = Conditions(threads=row["threads"], cache=row["cache"], dtype=row["dtype"])
            identity = Identity(
                Subject(row["subject"]), row["item_key"], row["system"], row["stack"], conditions, row["variant"]
            )
            found[identity] = to_view(dict(row))
    return found
