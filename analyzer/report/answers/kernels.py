"""Kernels as tables and records: of models, and of one brick wherever it was profiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ....tabular import Field
from ...kernels import KernelShare, shares_of, use_shares
from ...shell import shell_command
from ..tables import MOST, Answer, form_cells
from ..units import counted, cut, milliseconds, percent, short

if TYPE_CHECKING:
    from ....db import Kernel, KernelView, Stack
    from ....db.values import Identity
    from ...kernels import Kernels, ModelKernels

_NS_PER_MS = 1e6
_LISTED = 20
"""Lines per view of a brick, and calls that ran elsewhere."""

_LONGEST_NAME = 72
"""Characters of a kernel's name in a table; those of CUDA are a page long."""

_MISSING = 5
"""Kinds of sequences without a view that are listed per model."""


def kernels_answer(found: Kernels, *, most: int | None = MOST) -> Answer:
    """Return the answer of ``kernels``: one result per model, one row of the table per kernel, ``most`` per model."""
    layered = any(kernel.layers for row in found for kernel in row.kernels)
    fell_back = any(row.elsewhere for row in found)
    return Answer.of(
        found.records(),
        columns=[
            *([Field("model")] if len(found) > 1 else []),
            *([] if layered else [Field("kernel.operator", "operator", _cut)]),
            Field("kernel.name", "kernel", _cut),
            *([Field("form", "operators, shapes, layers")] if layered else []),
            Field("kernel.calls", "calls"),
            Field("kernel.time_ms", "profiled ms", "ms"),
            Field("kernel.share", "share", "share"),
            Field("kernel.matrix", "matrix units"),
            Field("kernel.units", "units", spare=True),
            Field("kernel.place", "ran on", spare=not fell_back),
        ],
        table=[
            {"model": row.name, "kernel": kernel.record(), "form": _layers(kernel)}
            for row in found
            for kernel in row.kernels[:most]
        ],
        summary=[line for row in found for line in _remarks(row, most)],
    )


def _layers(kernel: KernelShare) -> str | None:
    """Write the brick with the most time of a kernel, and the number of other bricks."""
    if not kernel.layers:
        return None
    first, rest = kernel.layers[0], len(kernel.layers) - 1
    form = form_cells(first.operators, first.names, first.form)["form"]
    return f"{form}, and {counted(rest, 'other brick')}" if rest else str(form)


def _remarks(row: ModelKernels, most: int | None) -> list[str]:
    if row.error is not None:
        return [f"{row.name}: {row.error}"]
    lines = []
    if row.kernels:
        cut = most is not None and len(row.kernels) > most
        rest = f", of which {most} are listed (--all lists all)" if cut else ""
        time = "" if row.time_ms is None else f", {milliseconds(row.time_ms)} ms under {row.source}"
        lines.append(f"{row.name}: {counted(len(row.kernels), 'kernel')}{rest}{time}; {_in_words(row.kernels)}")
    if row.elsewhere and row.choice is not None:
        calls = sum(share.kernel.calls for share in row.elsewhere)
        lines.append(f"{row.name}: {counted(calls, 'call')} did not run on {row.choice.stack.device}:")
        lines += [
            f"  {share.kernel.calls:>4} x {_label(share.kernel)} on {share.kernel.place}"
            for share in row.elsewhere[:_LISTED]
        ]
    if row.missing:
        what = "the model" if row.whole else counted(sum(count for _, _, count in row.missing), "sequence")
        lines.append(
            f"{row.name}: the kernels of {what} are not known"
            + (f": {shell_command(row.remedy)}" if row.remedy else "")
        )
        if not row.whole:
            kinds = Counter[str]()
            for _, names, count in row.missing:
                kinds["+".join(names)] += count
            lines += [f"  {count:>4} x {operators}" for operators, count in kinds.most_common(_MISSING)]
            if len(kinds) > _MISSING:
                more = sum(count for _, count in kinds.most_common()[_MISSING:])
                lines.append(f"  and {more} more (--json lists all)")
    return lines


def _in_words(kernels: Sequence[KernelShare]) -> str:
    """Write the shares of time with and without matrix units, known from kernel names."""
    if not kernels:
        return "no kernels"
    shares = use_shares(kernels)
    if shares["yes"] is None:
        return "times are not known"
    words = {"yes": "with matrix units", "no": "without", "unknown": "unknown from the names"}
    parts = [f"{percent(shares[use] or 0.0)} {text}" for use, text in words.items()]
    return f"{', '.join(parts)} (of the time)"


def view_records(views: Mapping[Identity, KernelView], stacks: Mapping[str, Stack]) -> list[dict[str, object]]:
    """Return the kernel views of one brick as records, each with its system, stack and conditions."""
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
                "kernels": [kernel.record() for kernel in kernels],
            }
        )
    return records


def view_lines(views: Mapping[Identity, KernelView], stacks: Mapping[str, Stack]) -> list[str]:
    """Return the kernel views of one brick as lines."""
    lines = []
    for identity, view in _sorted(views):
        stack, conditions = stacks[identity.stack], identity.conditions
        kernels, _ = shares_of([(view, 1)], stack.device)
        how = f", algorithm {identity.variant}" if identity.variant else ""
        where = f"{stack.backend} on {stack.device}, {counted(conditions.threads, 'thread')}, {conditions.dtype}{how}"
        lines.append(f"kernels    {where} (stack {short(identity.stack)}, {view.source}): {_in_words(kernels)}")
        for row in kernels[:_LISTED]:
            time = "-" if row.time_ms is None else milliseconds(row.time_ms)
            share = "-" if row.share is None else percent(row.share)
            units = f"  {row.units}" if row.units else ""
            lines.append(f"  {time:>10} ms {share:>5}  {row.kernel.calls:>3} x {_label(row.kernel)}{units}")
    return lines


def _sorted(views: Mapping[Identity, KernelView]) -> Iterable[tuple[Identity, KernelView]]:
    return sorted(
        views.items(), key=lambda pair: (pair[0].stack, pair[0].system, str(pair[0].conditions), pair[0].variant)
    )


def _label(kernel: Kernel) -> str:
    name = _cut(kernel.name)
    return name if kernel.operator in {"", kernel.name} else f"{name} ({_cut(kernel.operator)})"


def _cut(name: str) -> str:
    return cut(name, _LONGEST_NAME)
