"""Write the figures of README.md, docs/explanation and docs/results/README.md from the committed data.

    python benchmarks/tables.py [--check]

The text between ``<!-- name -->`` and ``<!-- /name -->`` is replaced. ``--check`` writes nothing and fails if
something would change; a test does the same.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import blocks
from dlbricks.db.values import PROTOCOL
from facts import accuracy_name, number, percent, within

PAGES = tuple(
    Path(name) for name in (
        "README.md", "docs/explanation/prediction.md", "docs/explanation/trust.md", "docs/reference/findings.md",
        "docs/results/README.md",
    )
)  # fmt: skip
"""From the top of the project."""

_RESULTS = Path("docs/results")

_NEAR = 0.1

Result = Mapping[str, Any]


def main() -> None:
    """Replace different pages, or report them."""
    blocks.write(PAGES, lambda text: rendered(text, blocks.TOP), __doc__ or "", "run python benchmarks/tables.py")


def rendered(text: str, top: Path) -> str:
    """Return a page with new blocks.

    Args:
        text: The page.
        top: Folder of the project.

    Raises:
        KeyError: The name of a block is unknown.
    """
    return blocks.rendered(text, lambda name: _BLOCKS[name](top / _RESULTS))


def accuracies(folder: Path) -> list[Result]:
    """Return the accuracies of today's protocol: models that nothing was tuned on first, then one thread."""
    results = [json.loads(path.read_text()) for path in folder.glob("accuracy-*.json")]
    graphs = ("runtime", "fused", "source")
    return sorted(
        (one for one in results if one.get("protocol") == PROTOCOL),
        key=lambda one: (
            one.get("half") != ["new"], one["stack"]["backend"] != "onnxruntime", one["stack"]["backend"],
            graphs.index(one["graph"]), one["threads"], one["batch"], one["granularity"], bool(one["neighbour"]),
            bool(one.get("generated_with")),
        ),
    )  # fmt: skip


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table between line breaks."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(["", *(f"| {' | '.join(map(str, cells))} |" for cells in lines), ""])


def _accuracy(folder: Path) -> str:
    rows = []
    for one in accuracies(folder):
        summary = one["summary"]["all"]
        figures = [percent(summary[name]) for name in ("median_error", "within_10")]
        worst = f"{percent(summary['worst'])} ({summary['worst_model']})"
        half = [percent(summary[name]) for name in ("inside_interval", "median_half_width")]
        slower = number(summary.get("slowdown_from_earlier") or summary["slowdown"])
        rows.append([_label(one), summary["models"], *figures, worst, *half, slower])
    head = ("bricks", "models", "median error", "within 10 %", "worst", "interval holds", "half-width", "slowed")
    return _table(head, rows)


def _label(one: Result) -> str:
    label = {"runtime": "executed graph", "fused": "`fused`", "source": "`source`"}[one["graph"]]
    backend = one["stack"]["backend"]
    label += "" if backend == "onnxruntime" else f", {backend}"
    label += f", G={one['granularity']}" if one["granularity"] > 1 else ""
    label += f", {one['threads']} threads" if one["threads"] > 1 else ""
    label += f", batch {one['batch']}" if one["batch"] > 1 else ""
    label += ", neighbour" if one["neighbour"] else ""
    label += f", run by ONNX Runtime {one['stack']['versions']['onnxruntime']}" if one.get("generated_with") else ""
    label += ", new families" if one.get("half") == ["new"] else ""
    return f"[{label}]({accuracy_name(one)}.json)"


_ACROSS = ("accuracy-runtime-g1-t1-b1", "accuracy-fused-g1-t1-b1", "accuracy-runtime-g1-t2-b1")


def _across(folder: Path) -> str:
    """Return estimates from one run's bricks against the models of another run, both ways."""
    rows = []
    for name in _ACROSS:
        runs = [json.loads((folder / place / f"{name}.json").read_text())["models"] for place in ("", "again")]
        for label, bricks, models in (("first, second", *runs), ("second, first", *reversed(runs))):
            measured = {row["name"]: row["measured_undisturbed_ms"] for row in models}
            pairs = [(row["undisturbed_ms"], measured.get(row["name"])) for row in bricks]
            errors = [abs(estimate / truth - 1) for estimate, truth in pairs if estimate and truth]
            figures = (statistics.median(errors), within(errors, _NEAR), max(errors))
            rows.append([name.removeprefix("accuracy-"), label, len(errors), *map(percent, figures)])
    return _table(("data", "bricks of run, models of run", "models", "median error", "within 10 %", "worst"), rows)


def _gates(folder: Path) -> str:
    """Return how often ``compare OLD NEW`` failed a model, by the real difference."""
    rows = []
    for path in sorted(folder.glob("gates-*.json")):
        one = json.loads(path.read_text())
        for loops, kind in dict.fromkeys((row["loops"], row["kind"]) for row in one["tries"]):
            tries = [row for row in one["tries"] if (row["loops"], row["kind"]) == (loops, kind)]
            failed = sum(row["failed"] for row in tries)
            seconds = f"{statistics.median(row['wall_s'] for row in tries):.0f}"
            copy = kind if kind == "equal" else f"{percent(one['injected'])} slower"
            rows.append([f"[{one['threads']}]({path.name})", loops, copy, len(tries), failed, seconds])
    return _table(("threads", "busy loops", "new model", "tries", "failed the gate", "seconds, median"), rows)


_FASTER = 0.05


def _improved(folder: Path) -> str:
    """Return the proven savings of trained models, largest first."""
    return _savings([one for one in _improvements(folder) if one["package"] != "zoo"])


def _improved_zoo(folder: Path) -> str:
    """Return the same of the built-in zoo, whose weights are random."""
    return _savings([one for one in _improvements(folder) if one["package"] == "zoo"])


def _improved_headline(folder: Path) -> str:
    """Return the counts of both tables for the README."""
    kinds = {False: list[dict[str, Any]](), True: list[dict[str, Any]]()}
    for one in _improvements(folder):
        kinds[one["package"] == "zoo"].append(one)
    told = []
    for of_zoo, found in kinds.items():
        faster = [one for one in found if one["changes"] and one["saving"] >= _FASTER]
        by_files = sum(any(not change["kind"].startswith("setting") for change in one["changes"]) for one in faster)
        most = percent(max((one["saving"] for one in faster), default=0.0))
        where = "of the zoo" if of_zoo else f"trained models out of {len({one['package'] for one in found})} packages"
        settings = f", {len(faster) - by_files} of them by settings alone" if by_files < len(faster) else ""
        told.append(f"{len(faster)} of {len(found)} {where} (up to {most}{settings})")
    return " and ".join(told)


def _improvements(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "improved.json").read_text())
    return [one for one in found if not one.get("error")]


def _savings(models: Sequence[Mapping[str, Any]]) -> str:
    saved = sorted((one for one in models if one["changes"]), key=lambda one: -one["saving"])
    rows = [
        [
            one["name"], f"{one['before_ms']:.3g}", f"{one['after_ms']:.3g}", percent(one["saving"]),
            ", ".join(change["kind"].partition(": ")[2] for change in one["changes"]),
        ]
        for one in saved
        if one["saving"] >= _FASTER
    ]  # fmt: skip
    head = (f"{len(rows)} of {len(models)} models", "before, ms", "after, ms", "saving", "by")
    return _table(head, rows)


def _traps(folder: Path) -> str:
    """Return the counts of wrong files by blind round."""
    rows = json.loads((folder / "wrong-files.json").read_text())
    lines = []
    for name in dict.fromkeys(row["round"] for row in rows):
        own = [row for row in rows if row["round"] == name]
        written = sum(bool(row["steps"]) for row in own)
        accepted = sum(bool(row.get("proven_wrongly")) for row in own)
        lines.append([name, len(own), written, sum(row["wrong"] for row in own), accepted])
    return _table(("round", "models", "files", "wrong files", "tempting rewrites accepted"), lines)


def _prediction(folder: Path) -> str:
    """Return errors of predictions for left-out families, by the number of measured bricks."""
    places = (("one thread", "prediction", "left_out"), ("one to two threads", "prediction", "transfer"),
              ("EPYC to Xeon", "prediction-xeon", "transfer"))  # fmt: skip
    found = [(place, json.loads((folder / f"{name}.json").read_text())[key]) for place, name, key in places]
    return _predictions((place, row) for place, rows in found for row in rows)


def _prediction_others(folder: Path) -> str:
    """Return the same for other graphs, runtimes and devices."""
    names = {"-fused": "`fused`", "-torch": "PyTorch", "-h100": "H100, CUDA graph", "-h100-eager": "H100, eager"}
    found = {label: json.loads((folder / f"prediction{name}.json").read_text()) for name, label in names.items()}
    return _predictions((label, row) for label, one in found.items() for row in one["left_out"])


def _prediction_days(folder: Path) -> str:
    """Return the same for other runs on the same kind of machine, without and with the factor of a run."""
    found = json.loads((folder / "prediction-days.json").read_text())
    places = (("runs of the fit", "pairs"), ("a later run", "other"))
    kinds = {False: "without", True: "with"}
    return _predictions((f"{place}, {kinds[row['day'] > 0]}", row) for place, key in places for row in found[key])


def _predictions(rows: Iterable[tuple[str, Result]]) -> str:
    lines = [
        [place, row["bricks"], *(percent(row[name]) for name in ("median", "within_10", "inside")),
         percent(math.expm1(row["half"]))]
        for place, row in rows
    ]  # fmt: skip
    return _table(("", "measured bricks", "median error", "within 10 %", "interval holds", "half-width"), lines)


def _answers(folder: Path) -> str:
    """Return seconds and intervals of predicting and measuring the same models."""
    rows = [
        [line["setting"], f"{line['wall_s']:.1f}", line["bricks"] or "",
         *(percent(line[name]) for name in ("half", "median", "within_10", "inside"))]
        for line in json.loads((folder / "answers-t1.json").read_text())["summary"]
    ]  # fmt: skip
    return _table(("", "seconds", "bricks", "half-width", "median error", "within 10 %", "interval holds"), rows)


def _checks(folder: Path) -> str:
    """Return one figure of every other benchmark, with the file and the script."""
    rows = []
    for name, script, about, figure in _CHECKS:
        result = json.loads((folder / f"{name}.json").read_text())
        rows.append([f"[{about}]({name}.json)", figure(result), f"`{script}`"])
    return _table(("what", "result", "script"), rows)


def _error(name: str) -> Callable[[Result], str]:
    """Return how to print the median and the count of an error."""
    return lambda result: f"{percent(_at(result, name)['median'])} at the median of {_at(result, name)['count']}"


def _at(result: Result, path: str) -> Any:
    for key in path.split("."):
        result = result[key]
    return result


def _agreement(result: Result) -> str:
    counts = {name: one["agreement"]["counts"] for name, one in result["frameworks"].items() if one.get("agreement")}
    return ", ".join(f"{name} {one['same']} of {sum(one.values())} bricks" for name, one in counts.items())


def _decomposed(result: Result) -> str:
    rows = [row for found in result["classes"].values() for row in found if row["graph"] == "source"]
    whole, layers = sum(row["decomposed"] for row in rows), sum(row["layers"] for row in rows)
    return f"{percent(whole / layers)} of {layers:,} layers in {sum(row['files'] for row in rows):,} files"


def _unexplained(result: Result) -> str:
    known = [row for row in result["models"] if (row["terms"].get("unexplained") or {}).get("ms") is not None]
    shares = [abs(row["terms"]["unexplained"]["ms"]) / row["measured_ms"] for row in known]
    return f"{percent(statistics.median(shares))} of the latency at the median of {len(shares)} models"


_CHECKS: Sequence[tuple[str, str, str, Callable[[Result], str]]] = (
    ("tokens", "tokens.py", "time to first token, 4 decoders", _error("errors.ttft")),
    ("tokens", "tokens.py", "time per token, 4 decoders", _error("errors.token")),
    ("curves", "curves.py", "latency between measured sizes", _error("summary.against_estimate")),
    ("attribution-g1-t1", "attribution.py", "unexplained part of `source` estimates", _unexplained),
    ("classes", "operators.py", "layers that can be decomposed", _decomposed),
    ("node-bricks", "node_bricks.py", "bricks of ONNX's node tests that keep their key",
     lambda one: f"{one['bricks'] - len(one['other_keys'])} of {one['bricks']}"),
    ("frameworks", "frameworks.py", "bricks that compute what ONNX Runtime computes", _agreement),
    ("fleet", "(git history)", "measurements lost by 100 kills in a fleet",
     lambda one: f"{one['kills']['blocks_lost']} of {one['kills']['blocks_seen_before_kills']:,} blocks"),
    ("fuzz", "(git history)", "damaged files that ended in a traceback",
     lambda one: f"{sum(row['cases'] for row in one['findings'] if row['what'] == 'traceback')} of {one['cases']:,}"),
)  # fmt: skip


def _headline(folder: Path) -> str:
    """Return the figures of the executed graph at one thread for the README."""
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


def _trust(folder: Path) -> str:
    """Return the claims about estimates, intervals, busy machines and gates, each with its data and result."""

    def read(name: str) -> tuple[Any, str]:
        return json.loads((folder / f"{name}.json").read_text()), f"([data](../results/{name}.json))"

    rows: list[Sequence[object]] = []
    for name, claim, models in (
        (
            "epyc/accuracy-runtime-g1-t1-b1-new",
            "Estimates from bricks of executed graphs, one thread",
            "of new families",
        ),
        ("accuracy-runtime-g1-t1-b1-new", "The same, an earlier version", "of new families"),
        ("accuracy-runtime-g1-t1-b1", "The same, models that were looked at during development", "of the zoo"),
    ):
        found, link = read(name)
        summary = found["summary"]["all"]
        error = f"median error {percent(summary['median_error'])}, {percent(summary['within_10'])} within 10 %"
        worst = f"worst {percent(summary['worst'])} ({summary['worst_model']})"
        rows.append(
            [claim, f"{summary['models']} models {models}, {found['system']['cpu']} {link}", f"{error}, {worst}"]
        )
    fits, link = read("calibration")
    for name, threads in (("accuracy-runtime-g1-t1-b1", "one thread"), ("accuracy-runtime-g1-t2-b1", "two threads")):
        for unit in ("session", "time block"):
            held = [one for one in fits[name]["validation"].values() if one["unit"] == unit]
            seen = "; ".join(
                f"{percent(one['hold_1'])} of {one['models']} ({one['cpu']}), half-width "
                f"{percent(one['median_half_width'])}"
                for one in held
            )
            claim = f"Intervals by {unit}s that contain the measured latency, {threads}"
            rows += [[claim, f"other runs and families {link}", seen]] if held else []
    found, link = read("proofs")
    for fit in found["fits"]:
        seen = f"{percent(fit['contained_left_out'])} hold, half-width {percent(fit['half_width'])}"
        rows.append([
            f"Predicted savings of a setting contain the proven one: {fit['kind']}",
            f"{_counted(fit['models'], 'model')}, each judged by a fit to the others {link}",
            f"{seen}; median error {percent(fit['median_error'])}",
        ])  # fmt: skip
    found, link = read("roofline")
    graphs = [row for model in found["models"] for row in model["graphs"]]
    bricks, beaten = (sum(map(of, graphs)) for of in (lambda row: row["brick_latencies"], _beaten_bricks))
    excess = max((one["bound_ms"] / one["high_ms"] - 1 for row in graphs for one in row["beaten_bricks"]), default=0.0)
    models = f"{sum(row['beaten'] for row in graphs)} of {len(graphs)} rooflines of models are beaten"
    rows.append([
        "No measured way to run a model or brick is faster than its roofline",
        f"{_counted(len(found['models']), 'model')}, executed and source graphs {link}",
        f"{models}; {beaten} of {bricks:,} latencies of bricks are below theirs, by {percent(excess)} at most",
    ])  # fmt: skip
    found, link = read("calibrated-own")
    first, second = found["first"], found["second"]
    held = f"{percent(second['later_held'])} of {second['later_models']}"
    rows.append([
        "Intervals after `system --calibrate`, one thread",
        f"{first['models']} models, {found['system']['cpu']}: fitted to one run, judged by the next {link}",
        f"{held}, error of the method ± {percent(first['half_width'])}",
    ])  # fmt: skip
    for name, phases in (
        ("busy-high-t1-r3", "quiet and busy phases alternate"), ("busy-high-t1", "runs one after the other"),
        ("busy-high-t2-r1", "quiet and busy phases alternate"),
        ("busy-high-t2-r3", "the same, before waits were subtracted at two threads"),
        ("busy-high-t2", "runs one after the other, before that"),
    ):  # fmt: skip
        found, link = read(name)
        for run in found["runs"]:
            if run["loops"]:
                models, estimate = run["summary"]["measured_undisturbed"], run["summary"]["estimate"]
                change = f"median {percent(models['median'])}, 95th percentile {percent(models['p95'])}"
                rows.append([
                    f"Latency beside {_counted(run['loops'], 'busy loop')} on two cores, {_threads(found)}",
                    f"{models['count']} models, {phases} {link}",
                    f"undisturbed: {_bias(models)}, {change}; estimates: median error {percent(estimate['median'])}",
                ])  # fmt: skip
    for threads in (1, 2):
        found, link = read(f"gates-t{threads}")
        right = sum(row["failed"] == (row["kind"] == "slower") for row in found["tries"])
        tested = f"{len(found['tries'])} tries, {percent(found['injected'])} slower or equal, quiet and busy {link}"
        rows.append([f"`compare OLD NEW --fail-on slower` is right, {_threads(found)}", tested, f"{right} right"])
    for path in sorted(folder.glob("equal-t*.json")):
        found, link = read(path.stem)
        claim = f"Proofs of a model against itself exclude zero in at most 5 %, {_threads(found)}"
        machine = "beside other programs" + (", before waits were subtracted" if path.stem.endswith("first") else "")
        seen = f"{found['exclude_zero']} of {found['proofs']}, half-width {percent(found['half_width'])}"
        saving = f"{found['save_3_percent']} seem to save 3 % or more"
        rows.append([claim, f"{_counted(len(found['models']), 'model')}, {machine} {link}", f"{seen}; {saving}"])
    found, link = read("sessions-runtime-g1-t1")
    beyond, count = found["beyond_5_percent"], len(found["models"])
    for of, what in (("model", "models"), ("bricks", "sums of bricks")):
        plain, allowed = (percent(beyond[of][name]) for name in ("p", "p_allowed"))
        rows.append([
            f"Sessions of a run differ no more than intervals allow, {what}",
            f"F-test of {count} models and runs, 5 % point {link}",
            f"{allowed} beyond it; {plain} without the scatter of processes",
        ])  # fmt: skip
    seen = f"{percent(beyond['ratio']['p'])} beyond it by time blocks, so that the session is the unit of this interval"
    rows.append(["The same, ratio of estimate and model", f"F-test of {count} models and runs, 5 % point {link}", seen])
    return _table(("claim", "tested on", "result"), rows)


def _beaten_bricks(row: Result) -> int:
    """Return how many latencies of bricks are below their roofline."""
    return len(row["beaten_bricks"])


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _threads(found: Result) -> str:
    """Return the number of threads of a result."""
    return _counted(found["threads"], "thread")


def _bias(found: Result) -> str:
    """Return a bias with its interval over models, if it has one."""
    ends = found.get("bias_ci95")
    return f"bias {percent(found['bias'])}" + (f" ({percent(ends[0])} to {percent(ends[1])})" if ends else "")


def _held(folder: Path) -> str:
    """Return the least share of intervals at one thread that held in another run or on other families."""
    fits = json.loads((folder / "calibration.json").read_text())
    held = [one["hold_1"] for one in fits["accuracy-runtime-g1-t1-b1"]["validation"].values()]
    return f"{percent(min(held))} to {percent(max(held))}"


def _busy_two(folder: Path) -> str:
    """Return the change of latencies at two threads beside two busy loops, and the error of estimates there."""
    runs = json.loads((folder / "busy-high-t2-r1.json").read_text())["runs"]
    (seen,) = (run["summary"] for run in runs if run["loops"] == 2)
    models, error = seen["measured_undisturbed"], percent(seen["estimate"]["median"])
    return (
        f"{models['count']} models beside two busy loops change by {percent(models['median'])} at the median and "
        f"{percent(models['p95'])} at the 95th percentile; median error of estimates {error}"
    )


def _calibration(folder: Path) -> str:
    rows = []
    for name, one in json.loads((folder / "calibration.json").read_text()).items():
        figures = [percent(one[key]) for key in ("bias", "sd", "median_half_width")]
        coverage = [f"{percent(seen['hold_1'])} of {seen['models']}" for seen in one["validation"].values()]
        rows.append([name.removeprefix("accuracy-"), one["models"], *figures, "; ".join(coverage)])
    return _table(("fitted to", "models", "bias", "error of the method (sd)", "half-width", "hold elsewhere"), rows)


def _scatter(folder: Path) -> str:
    """Return the differences between processes and between runs, as intervals include them."""
    from calibrate import scatter

    rows = []
    for row in scatter(folder):
        threads = "1 thread" if row["threads"] == 1 else "several threads"
        deviations = [percent((row[unit] or {}).get("sd")) for unit in ("processes", "runs")]
        rows.append([f"{row['backend']}, {row['device']}, {threads}", row["of"], *deviations])
    return _table(("", "", "processes (sd)", "runs (sd)"), rows)


def _cost(folder: Path) -> str:
    rows = []
    for path in sorted(folder.glob("cost-*.json")):
        one = json.loads(path.read_text())
        walls = [f"{one['walls_s'][key]:.0f} s" for key in ("generate_s", "suite_s", "models_s")]
        ratios = [number(found.get("ratio_with_generation")) for found in (one, one.get("at_equal_interval") or {})]
        rows.append([one["models"], *walls, *ratios])
    return _table(("models", "generation", "suite", "models alone", "ratio", "ratio at equal interval"), rows)


def _gpu_results(folder: Path) -> Result:
    result: Result = json.loads((folder / "gpu" / "results.json").read_text())
    return result


def _gpu_stages(folder: Path) -> dict[str, dict[str, Result]]:
    """Return the rows of the GPU visits, by stage and model."""
    return {one["stage"]: {row["name"]: row for row in one["models"]} for one in _gpu_results(folder)["stages"]}


def _gpu(folder: Path) -> str:
    """Return each model's latency by framework, the fastest known bricks, and the estimate of the CUDA graph."""
    stages = _gpu_stages(folder)
    ways = ("float32", "float32-graph", "float32-branches", "float32-compiled", "onnxruntime-float32")
    rows = []
    for name, row in stages["float32-graph"].items():
        times = [stages[way][name]["measured_ms"] for way in ways]
        cells = [f"{time:.3g}" for time in (*times, row["bound_with_plans_ms"])]
        rows.append([name, *cells, number(row["ratio"])])
    head = ("ms", "eager", "graph", "branches", "compiled", "ORT", "fastest bricks", "estimate / graph")
    return _table(head, rows)


def _gpu_ceilings(folder: Path) -> str:
    """Return the highest rates that PyTorch reached."""
    rows = []
    for one in _gpu_results(folder)["ceilings"]:
        rates = [max((row[name] for row in one["rows"] if row[name]), default=0) for name in ("flops_s", "bytes_s")]
        cells = [f"{rate:.0f}" if rate else "" for rate in (rates[0] / 1e12, rates[1] / 1e9)]
        rows.append([one["stage"].removeprefix("ceilings-"), *cells])
    return _table(("", "products, TFLOP/s", "memory, GB/s"), rows)


def _gpu_errors(folder: Path) -> str:
    """Return the errors of estimates on a GPU, by stage."""
    rows = []
    for name, models in _gpu_stages(folder).items():
        errors = {model: abs(row["ratio"] - 1) for model, row in models.items() if row["ratio"] is not None}
        if not errors:
            continue
        worst = max(errors, key=lambda model: errors[model])
        figures = (statistics.median(errors.values()), within(list(errors.values()), _NEAR))
        rows.append([name, len(errors), *map(percent, figures), f"{percent(errors[worst])} ({worst})"])
    return _table(("", "models", "median error", "within 10 %", "worst"), rows)


def _gpu_plans(folder: Path) -> str:
    """Return how far cuDNN's own choice is from the fastest of its plans."""
    rows = []
    for one in _gpu_results(folder)["plans"]:
        cells = [one["stage"].removeprefix("plans-"), one["bricks"], f"{one['timed']} of {one['plans']}"]
        rows.append([*cells, one["first_is_best"], *(number(one[name]) for name in ("median", "most"))])
    return _table(("", "bricks", "plans timed", "first is fastest", "first / fastest, median", "most"), rows)


_BLOCKS: Mapping[str, Callable[[Path], str]] = {
    "accuracy": _accuracy,
    "across": _across,
    "gates": _gates,
    "improved": _improved,
    "improved-zoo": _improved_zoo,
    "improved-headline": _improved_headline,
    "traps": _traps,
    "prediction": _prediction,
    "prediction-others": _prediction_others,
    "prediction-days": _prediction_days,
    "answers": _answers,
    "checks": _checks,
    "headline": _headline,
    "calibration": _calibration,
    "trust": _trust,
    "held": _held,
    "busy-two": _busy_two,
    "scatter": _scatter,
    "cost": _cost,
    "gpu": _gpu,
    "gpu-ceilings": _gpu_ceilings,
    "gpu-errors": _gpu_errors,
    "gpu-plans": _gpu_plans,
}


if __name__ == "__main__":
    main()
