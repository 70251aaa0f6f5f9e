"""Write the figures of README.md and docs/results/README.md from the data that is committed beside them.

    python benchmarks/tables.py [--check]

What stands between ``<!-- name -->`` and ``<!-- /name -->`` is replaced. ``--check`` writes nothing, and fails where
something would change; a test does the same.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import blocks
from dlbricks.db.values import PROTOCOL
from facts import accuracy_name, number, percent

PAGES = (Path("README.md"), Path("docs/results/README.md"))
"""From the top of the project."""

_RESULTS = Path("docs/results")

_NEAR = 0.1
_HALVES = {"held": "held-out half", "new": "models added since"}

Result = Mapping[str, Any]


def main() -> None:
    """Replace what differs, or report it."""
    blocks.write(PAGES, lambda text: rendered(text, blocks.TOP), __doc__ or "", "run python benchmarks/tables.py")


def rendered(text: str, top: Path) -> str:
    """A page with its blocks made anew.

    Args:
        text: The page.
        top: Folder of the project.

    Raises:
        KeyError: There is no block of a name.
    """
    return blocks.rendered(text, lambda name: _BLOCKS[name](top / _RESULTS))


def accuracies(folder: Path) -> list[Result]:
    """The accuracies that the protocol of today measured, one thread and the runtime's graph first."""
    found = [json.loads(path.read_text()) for path in folder.glob("accuracy-*.json")]
    graphs = ("runtime", "fused", "source")
    current = (one for one in found if one.get("protocol") == PROTOCOL)
    return sorted(
        current,
        key=lambda one: (
            one["stack"]["backend"], graphs.index(one["graph"]), one["threads"], one["batch"], one["granularity"],
            bool(one["neighbour"]), bool(one.get("generated_with")), one.get("half") or [],
        ),
    )  # fmt: skip


def _table(folder: Path) -> str:
    lines = [
        "",
        "| | models | median error | within 5 % | within 10 % | worst | holds 1 | half-width | quiet | slower |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in accuracies(folder):
        lines.append(_row(_label(one), one["summary"]["all"], one))
        for half, name in _HALVES.items():
            if f"half {half}" in one["summary"] and not one.get("half"):
                lines.append(_row(name, one["summary"][f"half {half}"], None))
    return "\n".join([*lines, ""])


def _row(label: str, summary: Result, whole: Result | None) -> str:
    cells = [label, str(summary["models"])]
    cells += [percent(summary[name]) for name in ("median_error", "within_5", "within_10")]
    cells += [f"{percent(summary['worst'])} ({summary['worst_model']})"]
    cells += [percent(summary[name]) for name in ("inside_interval", "median_half_width")]
    slower = summary.get("slowdown_from_earlier") or summary["slowdown"]
    cells += ["" if whole is None else percent(whole["quiet"]["quiet_share"]), number(slower)]
    return f"| {' | '.join(cells)} |"


def _label(one: Result) -> str:
    label = {"runtime": "executed graph", "fused": "`fused` bricks", "source": "`source` bricks"}[one["graph"]]
    backend = one["stack"]["backend"]
    label += "" if backend == "onnxruntime" else f" in {backend}"
    label += f", G={one['granularity']}" if one["granularity"] > 1 else ""
    label += (
        f", {one['threads']} thread{'s' if one['threads'] > 1 else ''}, batch {one['batch']}, {one['visits']} visits"
    )
    label += ", a neighbour of our own" if one["neighbour"] else ""
    if one.get("generated_with"):
        label += f", generated with {one['generated_with']}, run by {one['stack']['versions']['onnxruntime']}"
    label += f", half {', '.join(one['half'])} alone" if one.get("half") else ""
    return f"[{label}]({accuracy_name(one)}.md)"


def _headline(folder: Path) -> str:
    """The executed graph at one thread, as the README has it."""
    (found,) = (
        one
        for one in accuracies(folder)
        if (one["stack"]["backend"], one["graph"], one["granularity"]) == ("onnxruntime", "runtime", 1)
        and one["threads"] == one["batch"] == 1
        and not one["neighbour"]
        and not one.get("generated_with")
        and not one.get("half")
    )
    summary = found["summary"]["all"]
    return (
        f"on {summary['models']} models at one thread of a shared machine, a median error of "
        f"{percent(summary['median_error'])}, {percent(summary['within_10'])} of them within 10 %"
    )


def _calibration(folder: Path) -> str:
    found = json.loads((folder / "calibration.json").read_text())
    lines = [
        "",
        "| | models | bias | error of the method (sd) | half-width | of sampling | hold 1 in other runs and families |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        cells = [name.removeprefix("accuracy-"), str(one["models"]), percent(one["bias"]), percent(one["sd"])]
        cells += [percent(one[key]) for key in ("median_half_width", "median_half_width_of_sampling")]
        known = one["validation"].items()
        cells.append("; ".join(f"{percent(seen['hold_1'])} of {seen['models']} ({place})" for place, seen in known))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _scatter(folder: Path) -> str:
    """What processes and runs differ by, as intervals hold it."""
    from calibrate import scatter

    lines = ["", "| | | processes differ by (sd) | models | runs differ by (sd) | pairs of runs | models |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in scatter(folder):
        threads = "1 thread" if row["threads"] == 1 else "several threads"
        cells = [f"{row['backend']}, {row['device']}, {threads}", row["of"]]
        processes, runs = row["processes"], row["runs"]
        cells += [percent(processes["sd"]), str(processes["models"])] if processes else ["", ""]
        cells += [percent(runs["sd"]), str(runs["pairs"]), str(runs["models"])] if runs else ["", "", ""]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _cost(folder: Path) -> str:
    lines = [
        "",
        (
            "| | models | generation | suite | models alone | ratio | with generation | at equal interval | "
            "with generation | break-even | with generation |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    found = sorted(folder.glob("cost-*.json"))
    if not found:
        raise FileNotFoundError(f"no cost is in {folder}")
    for path in found:
        one = json.loads(path.read_text())
        walls = one["walls_s"]
        cells = [path.stem.removeprefix("cost-"), str(one["models"])]
        cells += [f"{walls[key]:.0f} s" for key in ("generate_s", "suite_s", "models_s")]
        for ratios in (one, one.get("at_equal_interval") or {}):
            cells += [number(ratios.get(key)) for key in ("ratio", "ratio_with_generation")]
        evens = (one["break_even"], one["break_even_with_generation"])
        cells += ["never" if even is None else f"{even} models" for even in evens]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


_ALONE = 0.98
"""A model whose critical path takes more than this part of all of it has no branches worth reporting."""


def _gpu_stages(folder: Path) -> dict[str, dict[str, Result]]:
    """What the visits of a GPU measured, by stage and model."""
    found = json.loads((folder / "gpu" / "results.json").read_text())
    return {one["stage"]: {row["name"]: row for row in one["models"]} for one in found["stages"]}


def _gpu(folder: Path) -> str:
    """Each model by the frameworks, its bound, and its estimate."""
    stages = _gpu_stages(folder)
    ways = ("float32", "float32-graph", "float32-branches", "float32-compiled", "onnxruntime-float32")
    lines = [
        "",
        "| | eager | graph | branches | compiled | ORT | bound | bound / graph | bound / fastest | estimate / graph |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in stages["float32-graph"].items():
        times = [stages[way][name]["measured_ms"] for way in ways]
        bound = row["bound_with_plans_ms"]
        cells = [f"{time:.3f}" for time in (*times, bound)]
        cells += [number(bound / time) for time in (row["measured_ms"], min(times))]
        lines.append(f"| {name} | {' | '.join(cells)} | {number(row['ratio'])} |")
    return "\n".join([*lines, ""])


def _gpu_branches(folder: Path) -> str:
    """What a critical path promises, and what running branches side by side keeps of it."""
    stages = _gpu_stages(folder)
    lines = ["", "| | graph | branches | critical path | times as fast | promised |", "|---|---|---|---|---|---|"]
    for label in ("float32", "float16"):
        for name, row in stages[f"{label}-graph"].items():
            graph, path, sequential = row["measured_ms"], row["critical_path_ms"], row["sequential_ms"]
            if path > _ALONE * sequential:
                continue
            branches = stages[f"{label}-branches"][name]["measured_ms"]
            cells = [f"{name}, {label}", *(f"{time:.3f}" for time in (graph, branches, path))]
            lines.append(f"| {' | '.join(cells)} | {number(graph / branches)} | {number(sequential / path)} |")
    return "\n".join([*lines, ""])


def _gpu_ceilings(folder: Path) -> str:
    """The highest rates that PyTorch reached."""
    found = json.loads((folder / "gpu" / "results.json").read_text())
    lines = ["", "| | products, TFLOP/s | memory, GB/s |", "|---|---|---|"]
    for one in found["ceilings"]:
        flops = max((row["flops_s"] for row in one["rows"] if row["flops_s"]), default=None)
        moved = max((row["bytes_s"] for row in one["rows"] if row["bytes_s"]), default=None)
        cells = [f"{rate:.0f}" if rate else "" for rate in (flops and flops / 1e12, moved and moved / 1e9)]
        lines.append(f"| {one['stage'].removeprefix('ceilings-')} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _gpu_errors(folder: Path) -> str:
    """How far estimates are off on a GPU, by stage."""
    lines = ["", "| | models | median error | within 10 % | worst |", "|---|---|---|---|---|"]
    for name, rows in _gpu_stages(folder).items():
        ratios = {model: row["ratio"] for model, row in rows.items() if row["ratio"] is not None}
        if not ratios:
            continue
        errors = sorted(abs(ratio - 1) for ratio in ratios.values())
        worst = max(ratios, key=lambda model: abs(ratios[model] - 1))
        within = sum(error <= _NEAR for error in errors) / len(errors)
        cells = [name, str(len(errors)), percent(statistics.median(errors)), percent(within)]
        lines.append(f"| {' | '.join(cells)} | {number(ratios[worst])} ({worst}) |")
    return "\n".join([*lines, ""])


def _gpu_precisions(folder: Path) -> str:
    """How much faster than in float32 a CUDA graph of PyTorch is."""
    stages = _gpu_stages(folder)
    base = stages["float32-graph"]
    others = ("tf32-graph", "float16-graph")
    lines = ["", "| | float32, ms | TF32 | float16 |", "|---|---|---|---|"]
    for name, row in base.items():
        gains = [number(row["measured_ms"] / stages[other][name]["measured_ms"]) for other in others]
        lines.append(f"| {name} | {row['measured_ms']:.3f} | {' | '.join(gains)} |")
    return "\n".join([*lines, ""])


def _gpu_plans(folder: Path) -> str:
    """The library's own choice beside the fastest of its plans."""
    found = json.loads((folder / "gpu" / "results.json").read_text())
    lines = ["", "| | bricks | plans timed | first is fastest | first / fastest, median | mean | most |"]
    lines.append("|---|---|---|---|---|---|---|")
    for one in found["plans"]:
        cells = [one["stage"].removeprefix("plans-"), str(one["bricks"]), f"{one['timed']} of {one['plans']}"]
        cells += [str(one["first_is_best"]), *(number(one[name]) for name in ("median", "mean", "most"))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


_BLOCKS: Mapping[str, Callable[[Path], str]] = {
    "accuracy": _table,
    "headline": _headline,
    "calibration": _calibration,
    "scatter": _scatter,
    "cost": _cost,
    "gpu": _gpu,
    "gpu-branches": _gpu_branches,
    "gpu-ceilings": _gpu_ceilings,
    "gpu-errors": _gpu_errors,
    "gpu-precisions": _gpu_precisions,
    "gpu-plans": _gpu_plans,
}


if __name__ == "__main__":
    main()
