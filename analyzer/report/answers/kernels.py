"""Kernels as tables and records: of models, and of one brick wherever it was profiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ...kernels.shares import KernelShare, shares_of, use_shares
from ...shell import shell_command
from ..forms import form_cells
from ..tables import MOST, Answer, Column
from ..units import counted, milliseconds, percent, short

if TYPE_CHECKING:
    from ....db import KernelView, Stack
    from ....db.identity import Identity
    from ...kernels.kernels import Kernels, ModelKernels

__all__ = ["kernels_answer", "view_lines", "view_records"]

_NS_PER_MS = 1e6
_LISTED = 20
"""Lines per view of a brick, and calls that ran elsewhere."""

_LONGEST_NAME = 72
"""Characters of a kernel's name in a table; those of CUDA are a page long."""

_MISSING = 5
"""Kinds of sequences without a view that are listed per model."""


def kernels_answer(found: Kernels, *, most: int | None = MOST) -> Answer:
    """The answer of ``kernels``: one result per model, one row of the table per kernel, ``most`` of each model."""
    layered = any(kernel.layers for one in found for kernel in one.kernels)
    fell_back = any(one.elsewhere for one in found)
    return Answer.of(
        found.records(),
        columns=[
            *([Column("model", "model")] if len(found) > 1 else []),
            *([] if layered else [Column("kernel.operator", "operator", _cut)]),
            Column("kernel.name", "kernel", _cut),
            *([Column("form", "operators, shapes, layers")] if layered else []),
            Column("kernel.calls", "calls"),
            Column("kernel.time_ms", "profiled ms", milliseconds),
            Column("kernel.share", "share", percent),
            Column("kernel.matrix", "matrix units"),
            Column("kernel.units", "units", spare=True),
            Column("kernel.place", "ran on", spare=not fell_back),
        ],
        table=[
            {"model": one.name, "kernel": kernel.record(), "form": _layers(kernel)}
            for one in found
            for kernel in one.kernels[:most]
        ],
        summary=[line for one in found for line in _remarks(one, most)],
    )


def _layers(one: KernelShare) -> str | None:
    """The brick that a kernel spent most time for, and the number of the others."""
    if not one.layers:
        return None
    first, rest = one.layers[0], len(one.layers) - 1
    form = form_cells(first.op_types, first.names, first.form)["form"]
    return f"{form}, and {counted(rest, 'other brick')}" if rest else str(form)


def _remarks(one: ModelKernels, most: int | None) -> list[str]:
    if one.error is not None:
        return [f"{one.name}: {one.error}"]
    lines = []
    if one.kernels:
        cut = most is not None and len(one.kernels) > most
        rest = f", of which {most} are listed (--all lists all)" if cut else ""
        time = "" if one.time_ms is None else f", {milliseconds(one.time_ms)} ms under {one.source}"
        lines.append(f"{one.name}: {counted(len(one.kernels), 'kernel')}{rest}{time}; {_in_words(one.kernels)}")
    if one.elsewhere and one.choice is not None:
        calls = sum(kernel.calls for kernel in one.elsewhere)
        lines.append(f"{one.name}: {counted(calls, 'call')} did not run on {one.choice.stack.device}:")
        lines += [f"  {kernel.calls:>4} x {_label(kernel)} on {kernel.place}" for kernel in one.elsewhere[:_LISTED]]
    if one.missing:
        what = "the model" if one.whole else counted(sum(missing.count for missing in one.missing), "sequence")
        lines.append(
            f"{one.name}: the kernels of {what} are not known"
            + (f": {shell_command(one.remedy)}" if one.remedy else "")
        )
        if not one.whole:
            kinds = Counter[str]()
            for missing in one.missing:
                kinds["+".join(missing.op_types)] += missing.count
            lines += [f"  {count:>4} x {operators}" for operators, count in kinds.most_common(_MISSING)]
            if len(kinds) > _MISSING:
                rest_count = sum(count for _, count in kinds.most_common()[_MISSING:])
                lines.append(f"  and {rest_count} more (--json lists all)")
    return lines


def _in_words(kernels: Sequence[KernelShare]) -> str:
    """The shares of time by what the names say of matrix units."""
    if not kernels:
        return "no kernels"
    shares = use_shares(kernels)
    if shares["yes"] is None:
        return "times are not known"
    words = {"yes": "with matrix units", "no": "without", "unknown": "unknown from the names"}
    parts = [f"{percent(shares[use] or 0.0)} {text}" for use, text in words.items()]
    return f"{', '.join(parts)} (of the time)"


def view_records(views: Mapping[Identity, KernelView], stacks: Mapping[str, Stack]) -> list[dict[str, object]]:
    """The views of one brick as records, each with the place where it was taken."""
    records: list[dict[str, object]] = []
    for identity, view in _sorted(views):
        stack = stacks[identity.stack]
        kernels, _ = shares_of([(view, 1)], stack.device)
        records.append(
            {
                "system": identity.system,
                "stack": identity.stack,
                "backend": stack.backend,
                "device": stack.device,
                "threads": identity.conditions.threads,
                "dtype": identity.conditions.dtype,
                "variant": identity.variant,
                "source": view.source,
                "executions": view.executions,
                "wall_ms": view.wall_ns / _NS_PER_MS,
                "matrix_shares": use_shares(kernels),
                "kernels": [one.record() for one in kernels],
            }
        )
    return records


def view_lines(views: Mapping[Identity, KernelView], stacks: Mapping[str, Stack]) -> list[str]:
    """The same as lines."""
    lines = []
    for identity, view in _sorted(views):
        stack, conditions = stacks[identity.stack], identity.conditions
        kernels, _ = shares_of([(view, 1)], stack.device)
        how = f", algorithm {identity.variant}" if identity.variant else ""
        where = f"{stack.backend} on {stack.device}, {counted(conditions.threads, 'thread')}, {conditions.dtype}{how}"
        lines.append(f"kernels    {where} (stack {short(identity.stack)}, {view.source}): {_in_words(kernels)}")
        for one in kernels[:_LISTED]:
            time = "-" if one.time_ms is None else milliseconds(one.time_ms)
            share = "-" if one.share is None else percent(one.share)
            lines.append(f"  {time:>10} ms {share:>5}  {one.calls:>3} x {_label(one)}{_units(one)}")
    return lines


def _sorted(views: Mapping[Identity, KernelView]) -> Iterable[tuple[Identity, KernelView]]:
    return sorted(
        views.items(), key=lambda pair: (pair[0].stack, pair[0].system, str(pair[0].conditions), pair[0].variant)
    )


def _label(one: KernelShare) -> str:
    name = _cut(one.name)
    return name if one.operator in {"", one.name} else f"{name} ({_cut(one.operator)})"


def _units(one: KernelShare) -> str:
    return f"  {one.units.name}" if one.units.name else ""


def _cut(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
