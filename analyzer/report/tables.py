"""Text of answers: table, Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Self

from ...errors import UsageError
from ...tabular import Field, Records, Row, Tabular, as_text, finite, flattened
from .units import (
    counted,
    cut,
    duration,
    half_of,
    listed,
    margin,
    milliseconds,
    percent,
    quantity,
    share_margin,
    short,
    shortened,
    size,
)

if TYPE_CHECKING:
    from ...bricks.graph.control import ControlFlow
    from ...bricks.layer import TensorType
    from ...constructor.result import Form, Framing


MOST = 15
"""Layers, bricks and kernels that a table lists where not all are asked for."""

_GAP = "  "

_NARROWEST = (18, 9)
"""Characters that columns of words are wrapped to at least; where that does not suffice, to the second."""


class Format(StrEnum):
    """How an answer is written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


_WRITTEN: Mapping[str, Callable[[Any], str]] = {
    "": str,
    "ms": milliseconds,
    "s": duration,
    "bytes": size,
    "count": quantity,
    "ratio": "{:.3f}".format,
    "share": percent,
    "key": short,
    "yes": lambda value: "yes" if value else "no",
    "words": " ".join,
    "operators": "+".join,
}
"""How a table writes a value, by the unit of its field; None is written as ``-``."""


@dataclass(frozen=True, slots=True)
class InnerTable:
    """A table among the lines below the table of an answer."""

    rows: Sequence[Row]
    columns: Sequence[Field]
    indent: str = ""


Line = str | InnerTable
"""A line below a table, which is prose, or a table of its own."""


@dataclass(frozen=True, slots=True)
class Answer(Records):
    """The answer of a command: records, and their display.

    Attributes:
        columns: Columns of the table; JSON and CSV hold every key.
        summary: Lines below the table, and tables among them.
        table: Rows of the table; None: the results.
    """

    columns: Sequence[Field] = ()
    summary: Sequence[Line] = ()
    table: Sequence[Row] | None = None

    @classmethod
    def of(
        cls,
        records: Records,
        columns: Sequence[Field] = (),
        summary: Sequence[Line] = (),
        table: Sequence[Row] | None = None,
    ) -> Self:
        """Return the answer of a report."""
        return cls(records.results, records.totals, records.flat, columns, summary, table)


def render(answer: Answer, form: Format | str = Format.TABLE, *, width: int | None = None) -> str:
    """Return the answer as text with a final newline.

    Args:
        answer: The answer.
        form: How it is written.
        width: Characters of a terminal's line: cells and prose are wrapped at words, and longer names are shortened in
            the middle. None: nothing is wrapped or shortened.
    """
    match Format(form):
        case Format.JSON:
            return _json(answer)
        case Format.CSV:
            return _csv(answer.lines)
        case Format.TABLE:
            return _table(answer, width)
        case Format.MARKDOWN:
            return _markdown(answer)


def to_markdown(report: Tabular) -> str:
    """Return a result as Markdown: a table and the lines below it, as ``--format markdown``.

    Args:
        report: Result of a public function.

    Raises:
        UsageError: The value is not such a result.

    Example:
        >>> IPython.display.Markdown(to_markdown(analyze(models, store=store)))  # doctest: +SKIP
    """
    if not isinstance(report, Tabular):
        raise UsageError(
            f"{type(report).__name__} is not a result of dlbricks", remedy="give the result of a public function"
        )
    module, name = report.ANSWER.rsplit(".", 1)
    return render(getattr(import_module(f"..{module}", __package__), name)(report), Format.MARKDOWN)


def table_lines(rows: Sequence[Row], columns: Sequence[Field]) -> list[Line]:
    """Return a table within the summary."""
    return [InnerTable(rows, columns)]


def indented(lines: Iterable[Line], indent: str = "  ") -> list[Line]:
    """Return lines of a summary with an indent."""
    return [
        f"{indent}{line}" if isinstance(line, str) else replace(line, indent=f"{indent}{line.indent}") for line in lines
    ]


def printable(text: str) -> str:
    """Return the text with control characters, line breaks and invalid Unicode as escapes.

    The name of a model or file cannot control the terminal or forge a line.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def only_errors(answer: Answer) -> list[str]:
    """Return the named errors if every result is an error; else nothing."""
    errors = [_error_of(row) for row in answer.results]
    if not all(errors):
        return []
    named = [(str(row.get("name", "")), error) for row, error in zip(answer.results, errors, strict=True)]
    return [
        str(line) for line in _joined([error if _names(error, name) else f"{name}: {error}" for name, error in named])
    ]


def _names(error: str, name: str) -> bool:
    """Return True if an error names the model: a short name may be part of a word."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error) is not None


def _error_of(row: Row) -> str:
    """Return the error of a row; empty for a result."""
    error = row.get("error")
    return error if isinstance(error, str) else ""


def unlisted(rows: Sequence[object], most: int | None) -> list[str]:
    """Return the line that counts the rows after the first ones; nothing for a full list."""
    rest = 0 if most is None else len(rows) - most
    return [f"and {rest} more (--all lists them)"] if rest > 0 else []


def at_most(lines: Sequence[str], most: int, *, of: str = "", indent: str = "  ") -> list[str]:
    """Return the first lines, and a line that counts the rest."""
    rest = len(lines) - most
    return [*lines[:most], *([f"{indent}and {rest} more{of} (--json lists all)"] if rest > 0 else [])]


def _json(answer: Answer) -> str:
    """One object with a result per line: to indent would take Python's own encoder, many times slower."""
    record = answer.to_json()
    schema, results = record.pop("schema"), ",\n".join(map(json.dumps, record.pop("results")))
    totals = "".join(f",\n{json.dumps(name)}: {json.dumps(value)}" for name, value in record.items())
    return f'{{"schema": {schema}, "results": [{results}]{totals}}}\n'


def _csv(rows: Sequence[Row]) -> str:
    """Cells are numbers and words: of a list of records their number."""
    flat = [{key: _cell(value) for key, value in flattened(row)} for row in rows]
    keys = list(dict.fromkeys(key for row in flat for key in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([as_text(printable(key)) for key in keys])
    for row in flat:
        writer.writerow([row.get(key) for key in keys])
    return out.getvalue()


def _cell(value: object) -> object:
    """Return a cell of CSV; a list becomes its length or its words, and text its printable form."""
    if isinstance(value, list):
        records = any(isinstance(item, dict | list) for item in value)
        return len(value) if records else as_text(";".join(printable(str(item)) for item in value))
    return as_text(printable(value)) if isinstance(value, str) else value


def _table(answer: Answer, width: int | None) -> str:
    lines: list[str] = []
    rows = _tabled(answer)
    if answer.columns and rows:
        lines = _fitted(rows, list(answer.columns), width)
    if lines and answer.summary:
        lines.append("")
    return "".join(f"{line}\n" for line in [*lines, *_below(answer.summary, width)])


def _below(summary: Sequence[Line], width: int | None) -> Iterator[str]:
    """Yield the lines below a table. Cells are escaped already; prose may hold the name of any model or layer."""
    for line in _joined(summary):
        if isinstance(line, InnerTable):
            least = None if width is None else width - len(line.indent)
            yield from (f"{line.indent}{text}" for text in _fitted(line.rows, list(line.columns), least))
        else:
            yield from _prose(printable(line), width)


_ALIKE = 3
"""Lines of the same reason that become one."""

_COMMAND = re.compile(r"(?<=: )(dlbricks [^;]*;?) ?")
"""A command within a line, which stays in one piece, so that it can be copied."""


def _joined(summary: Sequence[Line]) -> list[Line]:
    """Join lines that say the same of several models: ``a, b, c: reason``. Lines with indented details stay."""
    heads: dict[str, list[str]] = {}
    reasons: list[str | None] = []
    for line, following in zip_longest(summary, summary[1:], fillvalue=""):
        head, colon, reason = line.partition(": ") if isinstance(line, str) else ("", "", "")
        alone = colon and not head.startswith(" ") and not (isinstance(following, str) and following.startswith(" "))
        reasons.append(reason if alone else None)
        if alone:
            heads.setdefault(reason, []).append(head)
    lines: list[Line] = []
    for line, of in zip(summary, reasons, strict=True):
        alike = [] if of is None else heads[of]
        if len(alike) < _ALIKE:
            lines.append(line)
        elif isinstance(line, str) and line.startswith(f"{alike[0]}: "):
            separator = "; " if any("," in head for head in alike) else ", "
            lines.append(f"{separator.join(dict.fromkeys(alike))}: {of}")
    return lines


def _prose(line: str, width: int | None) -> Iterator[str]:
    """Yield a line, wrapped at words; a command stays in one piece."""
    if width is None or len(line) <= width:
        yield line
        return
    indent = line[: len(line) - len(line.lstrip())]
    for number, piece in enumerate(_COMMAND.split(line)):
        if number % 2:
            yield f"{indent}    {piece}"
        elif piece:
            yield from textwrap.wrap(
                piece.strip(), width, initial_indent=f"{indent}  " if number else indent,
                subsequent_indent=f"{indent}  ", break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip


def _tabled(answer: Answer) -> list[Row]:
    """Return the rows of the table; errors are in the summary."""
    return [row for row in (answer.results if answer.table is None else answer.table) if not _error_of(row)]


def _markdown(answer: Answer) -> str:
    """Return a table of GitHub's Markdown with every column, and the summary as a block of text."""
    lines: list[str] = []
    rows = _tabled(answer)
    if answer.columns and rows:
        right = [_is_right([_reach(row, _cell_of(column)) for row in rows]) for column in answer.columns]
        cells = [[_written(row, column) for column in answer.columns] for row in rows]
        heading = [column.title or column.key for column in answer.columns]
        lines = [_bars(map(_unmarked, line)) for line in (heading, *cells)]
        lines.insert(1, _bars("--:" if figures else "---" for figures in right))
    if answer.summary:
        below = [*_below(answer.summary, None)]
        fence = "`" * max(3, 1 + max(len(run) for line in below for run in re.findall("`*", line)))
        lines += [*([""] if lines else []), f"{fence}text", *below, fence]
    return "".join(f"{line}\n" for line in lines)


def _bars(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _unmarked(text: str) -> str:
    """Return the text with escaped signs of Markdown: a model's name cannot become markup."""
    return re.sub(r"([\\`*_\[\]<>|~#!&$])", r"\\\1", text)


def _fitted(rows: Sequence[Row], columns: list[Field], limit: int | None) -> list[str]:
    """Return heading and rows. If they are too wide, wrap titles, leave out spare columns, and wrap words."""
    width = sys.maxsize if limit is None else limit
    cells = [[_written(row, column) for row in rows] for column in columns]
    needed = [max(map(len, column), default=0) for column in cells]
    whole = [max(len(column.title or column.key), need) for column, need in zip(columns, needed, strict=True)]
    if _sum(whole) > width:
        least = [max(map(len, (column.title or column.key).split()), default=0) for column in columns]
        whole = [max(word, need) for word, need in zip(least, needed, strict=True)]
    omitted = list[str]()
    for i in reversed([i for i, column in enumerate(columns) if column.spare]):
        if _sum(whole) > width:
            omitted.insert(0, columns[i].title or columns[i].key)
            del whole[i], cells[i], columns[i]
    # Figures stand right, so that their digits do; words stand left.
    right = [_is_right([_reach(row, _cell_of(column)) for row in rows]) for column in columns]
    _narrow(whole, [i for i, figures in enumerate(right) if not figures], width)
    heading = _wrapped([column.title or column.key for column in columns], whole, right, bottom=True)
    body = [line for row in zip(*cells, strict=True) for line in _wrapped(row, whole, right)]
    note = f"Not shown, since the terminal is narrow: {', '.join(omitted)}. --json has all."
    below = textwrap.wrap(note, max(width, _NARROWEST[0])) if omitted else []
    return [*heading, _GAP.join("─" * characters for characters in whole), *body, *below]


def _narrow(widths: list[int], words: Sequence[int], width: int) -> None:
    """Make columns of words narrower until the table fits, always the widest."""
    for narrowest in _NARROWEST:
        while (excess := _sum(widths) - width) > 0:
            first, second = sorted((*(widths[i] for i in words), narrowest, narrowest), reverse=True)[:2]
            if first <= narrowest:
                break
            widest = max(words, key=widths.__getitem__)
            widths[widest] = max(first - excess, min(second, first - 1))


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _wrapped(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], *, bottom: bool = False) -> list[str]:
    """Return a row as lines: one, or more if a cell is longer than its column."""
    parts = [_folded(cell, width) for cell, width in zip(cells, widths, strict=True)]
    height = max(map(len, parts))
    blank = [[""] * (height - len(part)) for part in parts]
    filled = [[*space, *part] if bottom else [*part, *space] for part, space in zip(parts, blank, strict=True)]
    return [_line(line, widths, right) for line in zip(*filled, strict=True)]


_INTERVAL = re.compile(r"\[([\d.]+), ([\d.]+)\]")
"""Both ends of a ratio's interval."""


def _folded(cell: str, width: int) -> list[str]:
    """Return the lines of a cell: wrapped at words, and a longer name shortened in the middle.

    An interval stays in one line, in its shorter form.
    """
    if len(cell) <= width:
        return [cell]
    words = " ".join(shortened(word, width) for word in _INTERVAL.sub("\\1\N{EN DASH}\\2", cell).split())
    return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False) or [""]


def _line(cells: Iterable[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = (
        cell.rjust(width) if figures else cell.ljust(width)
        for cell, width, figures in zip(cells, widths, right, strict=True)
    )
    return _GAP.join(parts).rstrip()


def _written(row: Row, column: Field) -> str:
    value = finite(_reach(row, _cell_of(column)))
    if value is None:
        return "-"
    write = _WRITTEN[column.unit] if isinstance(column.unit, str) else column.unit
    text = printable(write(value))
    bounds = None if column.interval is None else finite(_reach(row, column.interval))
    if isinstance(bounds, list) and isinstance(value, int | float) and None not in bounds:
        text += _within(column, value, bounds)
    return text


def _within(column: Field, value: float, bounds: Sequence[float]) -> str:
    """Write an interval in the unit of its value: half of it, or both ends for a ratio, which lies in no middle."""
    if column.unit == "ratio":
        return f" [{', '.join(map('{:.3f}'.format, bounds))}]"
    half = half_of(value, bounds)
    return f" ± {share_margin(half) if column.unit == 'share' else margin(half, value)}"


def _cell_of(column: Field) -> str:
    return column.cell or column.key


def _reach(row: Row, key: str) -> object:
    value: object = row
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _is_right(values: Sequence[object]) -> bool:
    """Return true for a column of numbers, or an empty one."""
    return any(map(_is_number, values)) or all(value is None for value in values)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# What a brick is called and looks like, in the same words in every table of layers.
#
# A layer has the name that it has in the model's own graph. The node that a runtime executes for it stands beside it.


FORM = Field("form", "operators, shapes, first layer")
"""All cells as one, which wraps: for tables of many figures."""

_NAMED = 3
"""Layers that a cell names, before it counts them."""

_LONGEST = 40
"""Characters of a kernel's name; those of CUDA are a page long."""

_INPUTS = 2
"""Different shapes that a cell gives, likewise."""


def form_cells(op_types: Sequence[str], names: Sequence[str], form: Form | None) -> Row:
    """Return the cells of a brick.

    Args:
        op_types: Operators.
        names: Names of its layers in the graph that was cut.
        form: Names in the model's own graph, and shapes; None if they are unknown.
    """
    layers = tuple(names) if form is None else form.source_layers
    cells = {
        "operators": " + ".join(op_types),
        "kernel": "" if form is None else kernel_of(form.kernel, form.strides),
        "shapes": "" if form is None else shapes_of(form.inputs, form.outputs),
        "layer": listed(layers, _NAMED),
        "node": "" if tuple(names) == layers else listed(names, _NAMED),
        "ran": "" if form is None else listed([_kernel(name) for name in form.kernels if name not in op_types], 1),
    }
    node = f"({cells['node']})" if cells["node"] else ""
    ran = f"by {cells['ran']}" if cells["ran"] else ""
    words = [cells["operators"], cells["kernel"], cells["shapes"] and f"{cells['shapes']};", cells["layer"], node, ran]
    shown: dict[str, object] = {name: text or None for name, text in cells.items()}
    return shown | {"form": " ".join(filter(None, words))}


def form_columns(rows: Iterable[Mapping[str, object]]) -> list[Field]:
    """Return the columns of these cells; columns without any value are left out."""
    filled = {name for row in rows for name, value in row.items() if value is not None}
    titles = {"node": "runtime's node", "ran": "ran by"}
    names = ("operators", "kernel", "shapes", "layer", "node", "ran")
    return [Field(name, titles.get(name, name)) for name in names if name in filled]


def kernel_of(kernel: str, strides: str) -> str:
    """Write kernel sizes and strides: ``3x3/2``, ``3x3`` for stride 1, ``3x3+1x1`` for two operators."""
    pairs = zip(kernel.split(), [_stride(steps) for steps in strides.split()], strict=False)
    return "+".join(f"{sizes}/{steps}" if steps != "1" else sizes for sizes, steps in pairs)


def shapes_of(inputs: str, outputs: str) -> str:
    """Write the shapes of a brick: ``1x24x56x56 → 1x61x56x56``; types other than float are named."""
    return " → ".join(listed([_shape(word) for word in side.split()] or ["-"], _INPUTS) for side in (inputs, outputs))


def _stride(steps: str) -> str:
    """Return a single number if all strides are equal."""
    different = set(steps.split("x"))
    return different.pop() if len(different) == 1 else steps


def _shape(word: str) -> str:
    """``float[1,2]`` as ``1x2``."""
    dtype, _, sizes = word.rstrip("]").partition("[")
    shape = sizes.replace(",", "x") or "scalar"
    return shape if dtype == "float" else f"{dtype} {shape}"


def _kernel(name: str) -> str:
    return cut(name.removeprefix("com.microsoft."), _LONGEST)


# What dynamic dimensions were bound to, and which course control flow takes, as lines below a table.


_MODELS = 4
"""Models that a line names, before it counts them."""

_LINES = 5
"""Different bindings that a summary lists."""


def values_of(bound: Mapping[str, int]) -> str:
    """Dimensions and their values: ``batch=1 past_sequence_length=127``."""
    return " ".join(f"{name}={size}" for name, size in bound.items())


def dimension_lines(models: Iterable[tuple[str, Mapping[str, int]]]) -> list[str]:
    """Return one line per set of dimensions, with its models; nothing for static shapes."""
    alike: dict[str, list[str]] = {}
    for name, bound in models:
        if bound:
            alike.setdefault(values_of(bound), []).append(name)
    lines = [f"dimensions: {values} ({listed(names, _MODELS)})" for values, names in alike.items()]
    return at_most(lines, _LINES, of=" sets of dimensions", indent="")


def invented_lines(models: Iterable[tuple[str, Mapping[str, TensorType]]]) -> list[str]:
    """Return one line per model with inputs whose made-up values decide shapes or time."""
    from ...models.user_inputs import spelled_option, spelled_type  # imports ONNX, and few answers need it

    lines = []
    for name, invented in models:
        if invented:
            inputs = ", ".join(f"{key} {spelled_type(kind.dtype, kind.shape)}" for key, kind in invented.items())
            options = " ".join(dict.fromkeys(spelled_option(key, kind.shape) for key, kind in invented.items()))
            lines.append(f"{name}: made-up values decide shapes or time: {inputs}; give yours with {options}")
    return at_most(lines, _LINES, of=" models with made-up values", indent="")


def control_lines(
    models: Iterable[tuple[str, Sequence[ControlFlow]]], framing: Iterable[Sequence[Framing]] = ()
) -> list[str]:
    """Return one line per control-flow operator: its course, the source of this knowledge, the result.

    Args:
        models: Name and control flow of each model.
        framing: Time of each operator outside its body, model by model; may be empty.
    """
    framings = iter(framing)
    lines = []
    for name, control in models:
        model_framing = next(framings, ()) or (None,) * len(control)
        lines += [
            f"{name}: {_told(flow)}{_taking(operator_framing)}"
            for flow, operator_framing in zip(control, model_framing, strict=True)
        ]
    return at_most(lines, _LINES, of=" of control flow", indent="")


def _taking(framing: Framing | None) -> str:
    """Write the measured time of a control-flow operator outside its body."""
    if framing is None or (framing.own_ms is None and framing.moved_ms is None):
        return ""
    parts = (("beyond its body", framing.own_ms), ("slices and stacks", framing.moved_ms))
    return "".join(f"; {words} {milliseconds(ms)} ms" for words, ms in parts if ms is not None)


def _told(flow: ControlFlow) -> str:
    course = flow.course if flow.op_type == "If" else counted(int(flow.course), "iteration") if flow.course else ""
    words = [f"{flow.op_type} {flow.name}", *([course] if course else []), str(flow.how)]
    times = f" {flow.times} times" if flow.times > 1 else ""
    became = f", written out as {counted(flow.layers, 'layer')}" if flow.layers else ", one layer"
    return f"{' '.join(words)}{times}{became}{f': {flow.reason}' if flow.reason else ''}"
