"""Answer Benanza's six questions about a GPU from committed visits, without a GPU.

    python benchmarks/visit_analyses.py [--out FOLDER]

It reads ``docs/results/gpu`` (latencies, plans) and ``docs/results/gpu/events`` (kernels), and writes
``gpu/analyses.json``. No sum mixes cache states: committed times of plans are hot, all others of the model. Where plans
were timed hot alone, the first plan of a library stands for the framework's default. The table names the data behind
each answer, and the stages of a visit that would prove it.
"""

from __future__ import annotations

import math
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dlbricks.analyzer.kernels import units_of
from dlbricks.bricks.graph.footprint import level_name
from dlbricks.db import KernelView, Subject
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.models import find_models
from figures import RESULTS, number, parser, percent, read, share, table, write
from visit_plans import best_of, in_one_state, state_of, timed_plans
from visit_state import PLANS, Folder, copied

_TENSOR_CORES = frozenset({"TENSOR_CORE", "HMMA"})
"""Notes of cuDNN and of cuBLASLt."""
_LISTED = 5
"""Rows of a list of bricks or kernels."""


def main() -> None:
    """Write all answers."""
    out = parser(__doc__).parse_args().out
    with tempfile.TemporaryDirectory(prefix="dlbricks-analyses-") as work:
        folder, events = (copied(RESULTS / "gpu" / name, Path(work) / (name or "gpu")) for name in ("", "events"))
        latencies = read(RESULTS / "gpu/results.json")["stages"]
        write(out / "gpu/analyses.json", answers(folder, events, latencies))


def answers(folder: Folder, events: Folder, latencies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the answers by question.

    Args:
        folder: Visits with plans.
        events: Visits with kernels.
        latencies: Stages of their results.
    """
    models = {model.name: model for model in decompose(find_models(folder.settings["models"]), Cut(granularity=1))}
    counts = {name: Counter(part.key for part in model.sequences) for name, model in models.items()}
    keys = {name: model.graph.key for name, model in models.items()}
    stages = {stage["stage"]: {row["name"]: row for row in stage["models"]} for stage in latencies}
    rows = folder.rows(PLANS)
    precisions = {"float32": None, "float16": None, "tf32": "on"}
    plans = {name: _plans(folder, rows, name.replace("tf32", "float32"), tf32) for name, tf32 in precisions.items()}
    return {
        "potential": _ratios(stages["float32-graph"], "measured_ms", "lower_bound_sequential_ms"),
        "parallel": _ratios(stages["float32-graph"], "sequential_ms", "critical_path_ms"),
        "algorithms": {
            name: selection(counts, plans[name], stages[f"{name}-graph"], _framework_ns(folder, name))
            for name in ("float32", "float16")
        },
        "framework": inefficiency(events, keys, counts),
        "fusion": _fused(stages),
        "tensor_cores": {
            name: tensor_cores(counts, plans[name], _whole(events, keys, name)) for name in ("float16", "tf32")
        },
    }


def _framework_ns(folder: Folder, dtype: str) -> dict[tuple[str, str], float]:
    """Return the latency of each brick as a CUDA graph of the framework, by brick and cache state."""
    places = {(record.system, record.stack) for record in folder.records if record.stage["name"] == f"{dtype}-graph"}
    with folder.store() as store:
        every = store.measurements(subject=Subject.BRICK, dtype=dtype, variant="")
    return {(one.key, one.conditions.cache): one.latency_ns for one in every if (one.system, one.stack) in places}


def _whole(events: Folder, keys: Mapping[str, str], precision: str) -> dict[str, KernelView]:
    """Return the kernels of whole models in a precision, by model."""
    stage = "tf32-graph" if precision == "tf32" else f"{precision}-graph"
    stacks = {record.stack for record in events.records if record.stage["name"] == stage}
    dtype = "float32" if precision == "tf32" else precision
    with events.store() as store:
        views = store.kernels(subject=Subject.MODEL, dtype=dtype, variant="")
    found = {identity.key: view for identity, view in views.items() if identity.stack in stacks}
    return {name: found[key] for name, key in keys.items() if key in found}


def _ratios(rows: Mapping[str, Mapping[str, Any]], above: str, below: str) -> dict[str, Any]:
    ratios = {name: row[above] / row[below] for name, row in rows.items() if row[above] and row[below]}
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    return {"models": ratios, "geometric_mean": mean, "most": max(ratios, key=lambda name: ratios[name])}


def _fused(stages: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Compare each model as a graph with the fastest framework that fuses."""
    fusing = [stages[name] for name in ("float32-compiled", "onnxruntime-float32")]
    rows = {
        name: row | {"fused_ms": min(stage[name]["measured_ms"] for stage in fusing)}
        for name, row in stages["float32-graph"].items()
    }
    return _ratios(rows, "measured_ms", "fused_ms")


def _plans(folder: Folder, rows: Iterable[Mapping[str, Any]], dtype: str, tf32: str | None) -> dict[str, Any]:
    """Return the rows of a precision by brick."""
    stacks = {
        record.stack
        for record in folder.records
        if record.stage["kind"] == "plans" and record.stage["options"].get("tf32") == tf32
    }
    mine = [row for row in rows if row["dtype"] == dtype and row["stack"] in stacks]
    return {row["key"]: row for row in in_one_state(mine)}


def selection(
    counts: Mapping[str, Mapping[str, int]],
    plans: Mapping[str, Any],
    measured: Mapping[str, Mapping[str, Any]],
    framework_ns: Mapping[tuple[str, str], float],
) -> dict[str, Any]:
    """Compare what is taken by default with the library's fastest plans, all in one cache state.

    The framework's own latency of a brick is of the state that its plans were timed in, which is that of the largest
    model with this brick. Where plans were timed hot alone, the library's first plan stands for it.

    Args:
        counts: How often each model has each brick.
        plans: Rows of plans by brick.
        measured: The models' latencies, in the model's state: the saving is told as a part of them, and never added.
        framework_ns: The framework's latency by brick and cache state.

    Raises:
        ValueError: The plans are of several cache states.
    """
    if len({state_of(row) for row in plans.values()}) > 1:
        raise ValueError("plans of several cache states have no sum")
    rows = {}
    state = next(map(state_of, plans.values()), None)
    for name, bricks in counts.items():
        pairs = {key: pair for key in bricks if key in plans and (pair := best_of(plans[key])) is not None}
        if state == "model":
            places = {key: (key, level_name(plans[key]["footprint"])) for key in pairs}
            pairs = {key: (framework_ns[at], pairs[key][1]) for key, at in places.items() if at in framework_ns}
        first_ns, fastest_ns = (sum(bricks[key] * pair[at] for key, pair in pairs.items()) for at in (0, 1))
        saved = sorted(pairs, key=lambda key: (pairs[key][1] - pairs[key][0]) * bricks[key])[:_LISTED]
        rows[name] = {
            "bricks": len(pairs),
            "default_ms": first_ns / 1e6,
            "fastest_ms": fastest_ns / 1e6,
            "of_model": share((first_ns - fastest_ns) / 1e6, measured[name]["measured_ms"]),
            "most": [
                {"key": key, "operators": plans[key]["operators"], "count": bricks[key],
                 "default_us": pairs[key][0] / 1e3,
                 "fastest_us": pairs[key][1] / 1e3}
                for key in saved
            ],
        }  # fmt: skip
    return {"state": state, "default": "framework" if state == "model" else "first plan", "models": rows}


def inefficiency(events: Folder, keys: Mapping[str, str], counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Compare the kernels of each whole model with the kernels of its bricks, under the same profiler.

    Args:
        events: Visits with kernels of float32.
        keys: Key of each model.
        counts: How often each model has each brick.
    """
    with events.store() as store:
        views = {
            (identity.subject, identity.key): view
            for identity, view in store.kernels(dtype="float32", variant="").items()
        }
    rows = {}
    for name, bricks in counts.items():
        whole = views.get((Subject.MODEL, keys[name]))
        parts = [(views.get((Subject.BRICK, key)), count) for key, count in bricks.items()]
        if whole is not None:
            known = [(view, count) for view, count in parts if view is not None]
            rows[name] = {"unknown": len(parts) - len(known), **_differences(_summed([(whole, 1)]), _summed(known))}
    return rows


_Sums = Mapping[str, tuple[int, float]]
"""Calls and nanoseconds by short name of a kernel."""


def _summed(views: Iterable[tuple[KernelView, int]]) -> _Sums:
    sums: dict[str, tuple[int, float]] = {}
    for view, count in views:
        for kernel in (kernel for kernel in view.kernels if kernel.place != "cpu"):
            calls, spent = sums.get(short(kernel.name), (0, 0.0))
            sums[short(kernel.name)] = calls + count * kernel.calls, spent + count * (kernel.time_ns or 0)
    return sums


def _differences(model: _Sums, bricks: _Sums) -> dict[str, Any]:
    """Return kernels that are called more often on one side, with the time of these calls."""

    def beyond(one: _Sums, other: _Sums) -> dict[str, dict[str, float]]:
        more = {name: calls - other.get(name, (0, 0.0))[0] for name, (calls, _) in one.items()}
        rows = {
            name: {"calls": count, "ms": one[name][1] / one[name][0] * count / 1e6}
            for name, count in more.items()
            if count > 0
        }
        return dict(sorted(rows.items(), key=lambda row: -row[1]["ms"]))

    extra, lost = beyond(model, bricks), beyond(bricks, model)
    return {
        "profiled_ms": sum(spent for _, spent in model.values()) / 1e6,
        "only_model_ms": sum(row["ms"] for row in extra.values()),
        "only_bricks_ms": sum(row["ms"] for row in lost.values()),
        "only_model": dict([*extra.items()][:_LISTED]),
        "only_bricks": dict([*lost.items()][:_LISTED]),
    }


def short(name: str) -> str:
    """Return the name of a kernel without parameters, and with the kind of work that a template was made for."""
    plain = re.sub(r"\(anonymous namespace\)::|^void ", "", name)
    work = re.search(r"(\w+(?:_copy|_kernel)\w*|\w+Functor\w*|\w+_kernel_\w+)", plain[plain.find("<") :])
    base = re.split(r"[<(]", plain, maxsplit=1)[0].removeprefix("at::native::")
    return f"{base} {work.group(1)}"[:80] if "<" in plain and work else base[:80]


def tensor_cores(
    counts: Mapping[str, Mapping[str, int]], plans: Mapping[str, Any], kernels: Mapping[str, KernelView]
) -> dict[str, Any]:
    """Return how much of each model's products runs on Tensor Cores, and what the others could save.

    Args:
        counts: How often each model has each brick.
        plans: Rows of plans by brick; the library's notes say which plans use Tensor Cores.
        kernels: Kernels of whole models in this precision, by name; their names say it for the framework.
    """
    rows = {}
    for name, bricks in counts.items():
        known = [(count, _by_units(plans[key])) for key, count in bricks.items() if key in plans]
        total_ns = sum(count * first for count, (first, _, _) in known)
        with_ns = sum(count * first for count, (first, uses, _) in known if uses)
        idle = [(count, first, able) for count, (first, uses, able) in known if not uses and able is not None]
        if not total_ns:
            continue
        view = kernels.get(name)
        rows[name] = {
            "bricks": len(known),
            "time_with": share(with_ns, total_ns),
            "could": len(idle),
            "could_gain": sum(able < first for _, first, able in idle),
            "could_save_ms": sum(count * max(first - able, 0.0) for count, first, able in idle) / 1e6,
            "kernels": None if view is None else _named_units(view),
        }
    return rows


def _by_units(row: Mapping[str, Any]) -> tuple[float, bool, float | None]:
    """Return the nanoseconds of a brick's first plan, whether it uses Tensor Cores, and the fastest plan that does."""
    ran = [(ns, not _TENSOR_CORES.isdisjoint(plan["notes"])) for plan, ns in timed_plans(row)]
    return (*ran[0], min((ns for ns, uses in ran if uses), default=None))


def _named_units(view: KernelView) -> dict[str, float]:
    """Return the shares of a GPU's time in kernels with, without and with unknown use of Tensor Cores."""
    spent: Counter[str] = Counter()
    for kernel in view.kernels:
        if kernel.place != "cpu":
            spent[str(units_of(kernel.name, kernel.operator)[0])] += kernel.time_ns or 0
    return {use: spent[use] / spent.total() for use in sorted(spent)}


def questions(data: Mapping[str, Any]) -> str:
    """Return Benanza's questions with answers, data and proofs."""

    def mean(name: str) -> str:
        one = data[name]
        return f"{number(one['geometric_mean'])}, {number(one['models'][one['most']])} in {one['most']}"

    def cores(name: str) -> str:
        shares = {model: row["time_with"] for model, row in data["tensor_cores"][name].items()}
        least = min(shares, key=lambda model: shares[model])
        return f"{name} {percent(statistics.median(shares.values()))}, {percent(shares[least])} in {least}"

    half = data["algorithms"]["float16"]
    losses = {name: row["of_model"] for name, row in half["models"].items()}
    known = {name: row for name, row in data["framework"].items() if not row["unknown"]}  # kernels of all bricks are
    extra = {name: row["only_model_ms"] / row["profiled_ms"] for name, row in known.items()}

    def parts(shares: Mapping[str, float]) -> str:
        most = max(shares, key=lambda name: shares[name])
        median = percent(statistics.median(shares.values()))
        return f"{median}, {percent(shares[most])} of {most}"

    return table(
        ("question", "mean or median, most", "from", "proof"),
        [
            ("Q1, measured / fastest bricks", mean("potential"), "float32, one state", ""),
            ("Q2, sum / critical path", mean("parallel"), "float32", "`branches`"),
            (f"Q3, lost by the {half['default']}", parts(losses), f"float16, {half['state']}", "`plans-*`"),
            ("Q4, kernels of no brick", parts(extra), "float32, profiler", "`kernels-*`"),
            ("Q5, graph / fused", mean("fusion"), "float32, whole models", "`fused-*`"),
            (
                "Q6, time of first plans on Tensor Cores (median, least)",
                f"{cores('float16')}; {cores('tf32')}",
                "the libraries' notes, plans hot",
                "`kernels-*`",
            ),
        ],
    )


if __name__ == "__main__":
    main()
