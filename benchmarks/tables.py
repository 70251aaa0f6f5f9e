"""Write the figures of README.md, docs/explanation and docs/results/README.md from the committed data.

    python benchmarks/tables.py [--check]

The text between ``<!-- name -->`` and ``<!-- /name -->`` is replaced. ``--check`` writes nothing and fails if
something would change; a test does the same.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import atlas
import blocks
import round_trip
import tokens
import visit_analyses
import visit_tables
from calibrate import scatter
from dlbricks.analyzer.comparison.difference import MINIMUM_EFFECT
from dlbricks.db.samples.statistics import student
from dlbricks.db.values import PROTOCOL
from figures import RESULTS, number, percent, read, spread, table

PAGES = tuple(
    Path(name) for name in (
        "README.md", "docs/explanation/measuring.md", "docs/explanation/prediction.md", "docs/explanation/trust.md",
        "docs/how-to/language-models.md", "docs/reference/findings.md", "docs/reference/versions.md",
        "docs/results/README.md",
    )
)  # fmt: skip
"""From the top of the project."""

_FASTER = 0.05

Result = Mapping[str, Any]
Row = Sequence[object]


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
    return blocks.rendered(text, lambda name: _BLOCKS[name](top / RESULTS))


def _of(folder: Path, name: str) -> Any:
    """Return the figures of one file."""
    return read(folder / f"{name}.json")


# Estimates. ----------------------------------------------------------------------------------------------------------


def _accuracies(folder: Path) -> dict[str, Result]:
    """Return the accuracies of today's protocol by file: models that nothing was tuned on first, then one thread."""
    results = {path.stem: read(path) for path in folder.glob("accuracy-*.json")}
    graphs = ("runtime", "fused", "source")

    def order(one: Result) -> Row:
        backend = one["stack"]["backend"]
        return (
            one.get("half") != ["new"], backend != "onnxruntime", backend, graphs.index(one["graph"]), one["threads"],
            one["batch"], one["granularity"], bool(one.get("neighbour")), bool(one.get("generated_with")),
        )  # fmt: skip

    today = [(name, one) for name, one in results.items() if one.get("protocol") == PROTOCOL]
    return dict(sorted(today, key=lambda item: order(item[1])))


def _accuracy(folder: Path) -> str:
    rows = []
    for name, one in _accuracies(folder).items():
        summary = one["summary"]["all"]
        errors = [percent(summary[name]) for name in ("median_error", "within_10")]
        half = [percent(summary[name]) for name in ("inside_interval", "median_half_width")]
        slower = number(summary.get("slowdown_from_earlier") or summary["slowdown"])
        rows.append([f"[{_label(one)}]({name}.json)", summary["models"], *errors, _worst(summary), *half, slower])
    head = ("bricks", "models", "median error", "within 10 %", "worst", "interval holds", "half-width", "slowed")
    return table(head, rows)


def _worst(summary: Result) -> str:
    return f"{percent(summary['worst'])} ({summary['worst_model']})"


def _label(one: Result) -> str:
    label = {"runtime": "executed graph", "fused": "`fused`", "source": "`source`"}[one["graph"]]
    backend = one["stack"]["backend"]
    label += "" if backend == "onnxruntime" else f", {backend}"
    label += f", G={one['granularity']}" if one["granularity"] > 1 else ""
    label += f", {one['threads']} threads" if one["threads"] > 1 else ""
    label += f", batch {one['batch']}" if one["batch"] > 1 else ""
    label += ", neighbour" if one.get("neighbour") else ""
    label += f", run by ONNX Runtime {one['stack']['versions']['onnxruntime']}" if one.get("generated_with") else ""
    return label + (", new families" if one.get("half") == ["new"] else "")


def _round_trips(folder: Path) -> str:
    """Return the errors of private round trips."""
    rows = []
    for path in sorted(folder.rglob("round-trip-*.json")):
        result = read(path)
        one = round_trip.summary(result)
        how = "alternately" if result["together"] else "before and after"
        beside = f", {result['loops']} busy loops" if result["loops"] else ""
        shares = [percent(one[name]) for name in ("median_error", "within_15%", "hold", "half_width")]
        label = f"[`{result['graph']}`, {_threads(result)}{beside}]({path.relative_to(folder)})"
        rows.append([label, result["system"]["cpu"], how, one["models"], *shares])
    head = (
        "bricks",
        "machine",
        "truth measured",
        "models",
        "median error",
        "within 15 %",
        "interval holds",
        "half-width",
    )
    return table(head, rows)


def _across(folder: Path) -> str:
    """Return estimates from one run's bricks against the models of another run, both ways."""
    rows = []
    for name in ("runtime-g1-t1-b1",):
        runs = [_of(folder / place, f"accuracy-{name}")["models"] for place in ("", "again")]
        for label, bricks, models in (("first, second", *runs), ("second, first", *reversed(runs))):
            measured = {row["name"]: row["measured_undisturbed_ms"] for row in models}
            pairs = [(row["undisturbed_ms"], measured.get(row["name"])) for row in bricks]
            errors = [abs(estimate / truth - 1) for estimate, truth in pairs if estimate and truth]
            rows.append([name, label, len(errors), *map(percent, spread(errors)), percent(max(errors))])
    return table(("data", "bricks of run, models of run", "models", "median error", "within 10 %", "worst"), rows)


def _headline(name: str) -> Callable[[Path], str]:
    """Return a block with the errors of an accuracy for the README."""

    def block(folder: Path) -> str:
        return "median error {median}, {near} within 10 %; {hold} of the intervals hold, half-width {half}".format(
            **_told(_of(folder, name))
        )

    return block


def _told(result: Result) -> dict[str, Any]:
    """Return the number of models and the formatted errors of an accuracy."""
    summary = result["summary"]["all"]
    shares = {
        "median": "median_error", "near": "within_10", "hold": "inside_interval", "half": "median_half_width",
    }  # fmt: skip
    return {"models": summary["models"], **{word: percent(summary[name]) for word, name in shares.items()}}


def _held(folder: Path) -> str:
    """Return the least and the largest share of intervals at one thread that held in other runs or families."""
    fit = _of(folder, "calibration")["accuracy-runtime-g1-t1-b1"]
    shares = [one["hold_1"] for one in fit["validation"].values()]
    return f"{percent(min(shares))} to {percent(max(shares))}"


def _calibration(folder: Path) -> str:
    rows = []
    for name, one in _of(folder, "calibration").items():
        figures = [percent(one[key]) for key in ("bias", "sd", "median_half_width")]
        shares = [seen["hold_1"] for seen in one["validation"].values()]
        coverage = f"{len(shares)}: {min(shares):.0%} to {max(shares):.0%}" if shares else ""
        rows.append([name.removeprefix("accuracy-"), one["models"], *figures, coverage])
    return table(("fitted to", "models", "bias", "error of the method (sd)", "half-width", "other data hold"), rows)


def _scatter(folder: Path) -> str:
    """Return the differences between processes and between runs, as intervals include them."""
    rows = []
    for row in scatter(folder):
        threads = "1 thread" if row["threads"] == 1 else "several threads"
        deviations = [percent((row[unit] or {}).get("sd")) for unit in ("processes", "runs")]
        rows.append([f"{row['backend']}, {row['device']}, {threads}", row["of"], *deviations])
    return table(("", "", "processes (sd)", "runs (sd)"), rows)


def _cost(folder: Path) -> str:
    rows = []
    for path in sorted(folder.rglob("cost-*.json")):
        one = read(path)
        walls = [f"{one['walls_s'][key]:.0f} s" for key in ("generate_s", "suite_s", "models_s")]
        ratios = [number(place.get("ratio_with_generation")) for place in (one, one.get("at_equal_interval") or {})]
        rows.append([one["system"]["cpu"], one["models"], *walls, *ratios])
    return table(
        ("processor", "models", "generation", "suite", "models alone", "ratio", "ratio at equal interval"), rows
    )


# Predictions. --------------------------------------------------------------------------------------------------------


def _prediction(folder: Path) -> str:
    """Return errors of predictions for left-out families, by the number of measured bricks."""
    places = (("one thread", "prediction", "left_out"), ("one to two threads", "prediction", "transfer"),
              ("EPYC to Xeon", "prediction-xeon", "transfer"))  # fmt: skip
    return _predictions((place, row) for place, name, key in places for row in _of(folder, name)[key])


def _prediction_others(folder: Path) -> str:
    """Return the same for other graphs, runtimes and devices."""
    names = {"fused": "`fused`", "torch": "PyTorch", "h100": "H100, CUDA graph", "h100-eager": "H100, eager"}
    return _predictions(
        (label, row) for name, label in names.items() for row in _of(folder, f"prediction-{name}")["left_out"]
    )


def _prediction_days(folder: Path) -> str:
    """Return the same for other runs on the same kind of machine, without and with the factor of a run."""
    data = _of(folder, "prediction-days")
    places = (("runs of the fit", "pairs"), ("another run", "other"))
    kinds = {False: "without", True: "with"}
    return _predictions((f"{place}, {kinds[row['day'] > 0]}", row) for place, key in places for row in data[key])


def _predictions(rows: Iterable[tuple[str, Result]]) -> str:
    lines = [
        [place, row["bricks"], *(percent(row[name]) for name in ("median", "within_10", "inside")),
         percent(math.expm1(row["half"]))]
        for place, row in rows
    ]  # fmt: skip
    return table(("", "measured bricks", "median error", "within 10 %", "interval holds", "half-width"), lines)


def _answers(folder: Path) -> str:
    """Return seconds and intervals of predicting and measuring the same models."""
    kinds = {"answers-t1": "the zoo", "answers-t1-files": "files"}
    rows = [
        [kind, line["setting"], line["models"], f"{line['wall_s']:.1f}", line["bricks"] or "",
         *(percent(line[name]) for name in ("half", "median", "within_10", "inside"))]
        for name, kind in kinds.items() for line in _of(folder, f"epyc/{name}")["summary"]
    ]  # fmt: skip
    heads = ("", "", "models", "seconds", "bricks", "half-width", "median error", "within 10 %", "interval holds")
    return table(heads, rows)


# Gates and findings. -------------------------------------------------------------------------------------------------


def _power(folder: Path) -> str:
    """Return the verdicts of ``compare OLD NEW``, by the real difference and the load of the machine."""
    rows = []
    for path, found in _curves(folder):
        place = f"[{found['threads']}, {found['cpu']}](../results/{path.relative_to(folder)})"
        counted = [row for row in found["rows"] if _counts(row)]
        for kind in sorted({_kind(row) for row in counted}):
            beside, effect, step = kind
            tries = [row for row in counted if _kind(row) == kind]
            said = Counter(row["verdict"] for row in tries)
            injected = sorted(row["injected"] for row in tries)
            copy = f"{percent(injected[0])} to {percent(injected[-1])}" if step else "0"
            rows.append([
                place, [*_BESIDE.values()][beside], f"{effect:.0%}", copy, len(tries),
                *(said[verdict] for verdict in ("SLOWER", "FASTER", "SAME", "UNCLEAR")), _bias(tries),
                percent(_held_share(tries)), f"{statistics.median(row['wall_s'] for row in tries):.0f}",
            ])  # fmt: skip
    head = ("threads, machine", "beside", "minimum effect", "new model slower by", "tries", "SLOWER", "FASTER", "SAME",
            "UNCLEAR", "reads too much by", "intervals hold", "seconds, median")  # fmt: skip
    return table(head, rows)


_BESIDE = {"quiet": "nothing", "loops": "two busy loops", "memory": "copies of memory"}
"""Loads of the machine during tries, in words."""


def _curves(folder: Path) -> Iterator[tuple[Path, Result]]:
    """Yield the files of tries of comparisons."""
    return ((path, read(path)) for path in sorted(folder.rglob("power-t*.json")))


_STEPS = (0.001, 0.025, 0.045, 0.09)
"""Real differences at which a curve is cut."""


def _kind(row: Result) -> tuple[int, float, int]:
    """Return the index of the load during a try, the minimum effect, and the step of its real difference."""
    step = sum(row["injected"] >= edge for edge in _STEPS)
    return [*_BESIDE].index(row["beside"]), row["minimum_effect"], step


def _counts(row: Result) -> bool:
    """Return True if a try follows today's rule and its real difference was measured in the same hour."""
    return "ratios" in row and (not row["share"] or "injected_processes" in row)


def _bias(tries: Sequence[Result]) -> str:
    """Return by how much comparisons read too much, with its interval over tries."""
    apart = [row["ratio"] / (1 + row["injected"]) - 1 for row in tries]
    if len(apart) < 2:
        return ""
    half = student(len(apart) - 1) * statistics.stdev(apart) / math.sqrt(len(apart))
    return f"{statistics.fmean(apart):+.2%} ± {half:.2%}"


def _held_share(tries: Iterable[Result]) -> float | None:
    """Return the share of intervals that contain the real difference; the error of this difference is not counted."""
    ends = [(row["ratio_ci95"], 1 + row["injected"]) for row in tries if row["ratio_ci95"] is not None]
    return statistics.fmean(low <= real <= high for (low, high), real in ends) if ends else None


def _atlas(folder: Path) -> str:
    """Return how many bricks changed by a tenth from one version of ONNX Runtime to the next."""
    pairs = _pairs(folder)
    where = _repeated_on(pairs)
    rows = []
    for pair in pairs:
        long = [row for row in pair["rows"] if row["old_ms"] >= atlas.CALL_MS]
        short = [row["ratio"] for row in pair["rows"] if row["old_ms"] < atlas.CALL_MS]
        slower = sum(row["ratio"] > 1 for row in long)
        calls = f"{len(short)} ({statistics.median(short):.2f})" if short else "0"
        name = f"{pair['old']} → {pair['new']}"
        counts = [pair["compared"], slower, len(long) - slower, calls, pair["left"], pair["failed"]]
        rows.append([name, *counts, f"{pair['wall_s']:.0f}", *(_repeated(pair, cpu) for cpu in where)])
    head = (
        *("versions", "bricks", "slower", "faster", "below 4 µs that differ", "suspects left", "did not run"),
        "seconds",
    )
    return table((*head, *(f"held {place}" for place in where.values())), rows)


def _repeated_on(pairs: Sequence[Result]) -> dict[str | None, str]:
    """Return the processors on which changes of the atlas were repeated; None for the one that found them."""
    cpus = {once.get("cpu") for pair in pairs for row in pair["rows"] for once in row.get("again", ())}
    return {None: "when repeated"} | {cpu: f"on {cpu}" for cpu in sorted(filter(None, cpus))}


def _repeated(pair: Result, cpu: str | None) -> str:
    """Return how many changes of a pair were repeated on a processor, and how many of them hold."""
    again = [held for row in pair["rows"] if (held := atlas.holds(row, cpu)) is not None]
    day = "" if atlas.on_another_day(pair, cpu) else ", same day"
    return f"{sum(again)} of {len(again)}{day}" if again else "-"


def _atlas_changes(folder: Path) -> str:
    """Return the largest changes of the atlas, without bricks of a few microseconds and changes that did not hold."""
    pairs = _pairs(folder)
    where = _repeated_on(pairs)
    found = [
        (pair, row)
        for pair in pairs
        for row in pair["rows"]
        if row["old_ms"] >= atlas.CALL_MS and atlas.holds(row) is not False
    ]
    rows = []
    for pair, row in sorted(found, key=lambda item: -abs(math.log(item[1]["ratio"])))[:_LARGEST]:
        low, high = row["ratio_ci95"]
        again = [
            ", ".join(f"{once['ratio']:.2f}" for once in row.get("again", ()) if once.get("cpu") == cpu) or "-"
            for cpu in where
        ]
        rows.append([
            f"{pair['old']} → {pair['new']}", row["operator"], f"`{row['inputs']}`", f"{row['old_ms'] * 1e3:.1f}",
            f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})", *again,
        ])  # fmt: skip
    return table(("versions", "operator", "inputs", "µs before", "ratio", *where.values()), rows)


_LARGEST = 24
"""Changes that the table lists."""


def _pairs(folder: Path) -> list[Result]:
    return sorted(
        _of(folder, "atlas")["pairs"].values(), key=lambda pair: [int(part) for part in pair["old"].split(".")]
    )


def _improvements(folder: Path, *, zoo: bool) -> list[dict[str, Any]]:
    """Return the improved models of the built-in zoo, which have random weights, or trained models."""
    rows = _of(folder, "improved")
    return [row for row in rows if not row.get("error") and (row["package"] == "zoo") == zoo]


def _faster(models: Sequence[Result]) -> list[Result]:
    """Return the models with a useful saving, largest first."""
    useful = [one for one in models if one["changes"] and one["saving"] >= _FASTER]
    return sorted(useful, key=lambda one: -one["saving"])


def _improved(folder: Path, *, zoo: bool = False) -> str:
    """Return the proven savings, largest first."""
    models = _improvements(folder, zoo=zoo)
    rows = [
        [one["name"], f"{one['before_ms']:.3g}", percent(one["saving"]),
         ", ".join(change["kind"].partition(": ")[2] for change in one["changes"])]
        for one in _faster(models)
    ]  # fmt: skip
    return table((f"{len(rows)} of {len(models)} models", "before, ms", "saving", "by"), rows)


def _improved_headline(folder: Path) -> str:
    """Return the counts of both tables for the README."""
    told = []
    for zoo in (False, True):
        models = _improvements(folder, zoo=zoo)
        faster = _faster(models)
        by_files = sum(any(not change["kind"].startswith("setting") for change in one["changes"]) for one in faster)
        most = percent(faster[0]["saving"] if faster else 0.0)
        where = "of the zoo" if zoo else f"trained models out of {len({one['package'] for one in models})} packages"
        settings = f", {len(faster) - by_files} of them by settings alone" if by_files < len(faster) else ""
        told.append(f"{len(faster)} of {len(models)} {where} (up to {most}{settings})")
    return " and ".join(told)


def _traps(folder: Path) -> str:
    """Return the counts of wrong files by blind round."""
    traps = _of(folder, "wrong-files")
    rows = []
    for name in dict.fromkeys(row["round"] for row in traps):
        mine = [row for row in traps if row["round"] == name]
        written, accepted = (sum(bool(row.get(key)) for row in mine) for key in ("steps", "proven_wrongly"))
        rows.append([name, len(mine), written, sum(row["wrong"] for row in mine), accepted])
    return table(("round", "models", "files", "wrong files", "tempting rewrites accepted"), rows)


# Claims. -------------------------------------------------------------------------------------------------------------


def _trust(folder: Path) -> str:
    """Return the claims about estimates, intervals, busy machines and gates, each with its data and result."""
    claims = (
        _of_estimates, _of_intervals, _of_savings, _of_rooflines, _of_own_fits, _of_busy, _of_gates, _of_proofs,
        _of_sessions, _of_memory,
    )  # fmt: skip
    return table(("claim", "tested on", "result"), [row for rows in claims for row in rows(folder)])


def _data(name: str) -> str:
    return f"([data](../results/{name}.json))"


def _of_estimates(folder: Path) -> Iterable[Row]:
    for name, claim, models in (
        ("epyc/accuracy-runtime-g1-t1-b1-files", "Estimates from bricks of executed graphs, one thread",
         "that packages ship"),
        ("epyc/accuracy-runtime-g1-t1-b1-new", "The same", "of new families"),
        ("epyc/accuracy-runtime-g1-t2-b1-new", "The same, two threads", "of new families"),
        ("epyc/accuracy-fused-g1-t1-b1-files", "The same, from bricks along fusions, one thread", "that packages ship"),
        ("epyc/accuracy-fused-g1-t1-b1-new", "The same, from bricks along fusions, one thread", "of new families"),
        ("epyc-zen3/accuracy-runtime-g1-t1-b1", "Bricks of executed graphs, one thread, another processor (Zen 3)",
         "of the zoo, 60 of them known from development"),
        ("epyc-zen3/accuracy-runtime-g1-t1-b1-new", "The same, after a fault that they revealed there was mended",
         "of new families"),
        ("epyc-zen3/accuracy-runtime-g1-t2-b1-new", "The same, two threads", "of new families"),
        ("epyc-zen3/accuracy-fused-g1-t1-b1-new", "The same, from bricks along fusions, one thread", "of new families"),
        ("epyc-zen4/accuracy-runtime-g1-t1-b1-new", "Bricks of executed graphs, one thread, a slower machine (Zen 4)",
         "of new families"),
        ("epyc-zen4/accuracy-runtime-g1-t1-b1", "The same", "of the zoo, known from development"),
        ("epyc-zen4/accuracy-runtime-g1-t2-b1-new", "The same, two threads", "of new families"),
        ("accuracy-runtime-g1-t1-b1-new", "Bricks of executed graphs, one thread", "of new families"),
        ("accuracy-runtime-g1-t1-b1", "The same, models that were looked at during development", "of the zoo"),
        ("accuracy-runtime-g1-t2-b1-new", "The same, two threads", "of new families"),
        ("accuracy-fused-g1-t1-b1-new", "The same, from bricks along fusions", "of new families"),
    ):  # fmt: skip
        result = _of(folder, name)
        told, worst = _told(result), _worst(result["summary"]["all"])
        known = sum(row["ratio"] is not None for row in result["models"])
        tested = f"{known} models {models}, {result['system']['cpu']} {_data(name)}"
        yield claim, tested, f"median error {told['median']}, {told['near']} within 10 %, worst {worst}"


def _of_intervals(folder: Path) -> Iterable[Row]:
    fits = _of(folder, "calibration")
    for name, threads in (("accuracy-runtime-g1-t1-b1", "one thread"), ("accuracy-runtime-g1-t2-b1", "two threads")):
        for unit in ("session", "time block"):
            seen = "; ".join(
                f"{percent(one['hold_1'])} of {one['models']} ({one['cpu']}), half-width "
                f"{percent(one['median_half_width'])}"
                for one in fits[name]["validation"].values()
                if one["unit"] == unit
            )
            claim = f"Intervals by {unit}s that contain the measured latency, {threads}"
            if seen:
                yield claim, f"other runs and families {_data('calibration')}", seen


def _of_memory(folder: Path) -> Iterable[Row]:
    rows = _of(folder, "memory")["rows"]
    apart = [abs(row["ratio"] - 1) for row in rows]
    tested = f"{len(rows)} models, a script that only loads and runs them, under `/usr/bin/time` {_data('memory')}"
    yield "Peak memory (`measure --alone`)", tested, f"at most {percent(max(apart))} apart"


def _of_savings(folder: Path) -> Iterable[Row]:
    for fit in _of(folder, "proofs")["fits"]:
        seen = f"{percent(fit['contained_left_out'])} hold, half-width {percent(fit['half_width'])}"
        yield (
            f"Predicted savings of a setting contain the proven one: {fit['kind']}",
            f"{_counted(fit['models'], 'model')}, each judged by a fit to the others {_data('proofs')}",
            f"{seen}; median error {percent(fit['median_error'])}",
        )


def _of_rooflines(folder: Path) -> Iterable[Row]:
    models = _of(folder, "roofline")["models"]
    graphs = [row for model in models for row in model["graphs"]]
    beaten = [one for row in graphs for one in row["beaten_bricks"]]
    excess = max((one["bound_ms"] / one["high_ms"] - 1 for one in beaten), default=0.0)
    whole = f"{sum(row['beaten'] for row in graphs)} of {len(graphs)} rooflines of models are beaten"
    bricks = f"{len(beaten)} of {sum(row['brick_latencies'] for row in graphs):,} latencies of bricks are below theirs"
    yield (
        "No measured way to run a model or brick is faster than its roofline",
        f"{_counted(len(models), 'model')}, executed and source graphs {_data('roofline')}",
        f"{whole}; {bricks}, by {percent(excess)} at most",
    )


def _of_own_fits(folder: Path) -> Iterable[Row]:
    result = _of(folder, "calibrated-own")
    first, second = result["first"], result["second"]
    tested = f"{first['models']} models, {result['system']['cpu']}: fitted to one run, judged by the next"
    held = f"{percent(second['later_held'])} of {second['later_models']}"
    seen = f"{held}, error of the method ± {percent(first['half_width'])}"
    yield "Intervals after `system --calibrate`, one thread", f"{tested} {_data('calibrated-own')}", seen


def _of_busy(folder: Path) -> Iterable[Row]:
    for name, phases in (
        ("busy-high-t1-r3", "quiet and busy phases alternate"), ("busy-high-t1", "runs one after the other"),
        ("busy-high-t2-r1", "quiet and busy phases alternate"),
        ("busy-high-t2-r3", "the same, before waits were subtracted at two threads"),
        ("busy-high-t2", "runs one after the other, before that"),
    ):  # fmt: skip
        result = _of(folder, name)
        for run in (run for run in result["runs"] if run["loops"]):
            models, estimate = run["summary"]["measured_undisturbed"], run["summary"]["estimate"]
            change = f"median {percent(models['median'])}, 95th percentile {percent(models['p95'])}"
            ends = models.get("bias_ci95")
            bias = percent(models["bias"]) + (f" ({percent(ends[0])} to {percent(ends[1])})" if ends else "")
            yield (
                f"Latency beside {_counted(run['loops'], 'busy loop')} on two cores, {_threads(result)}",
                f"{models['count']} models, {phases} {_data(name)}",
                f"undisturbed: bias {bias}, {change}; estimates: median error {percent(estimate['median'])}",
            )


def _busy_two(folder: Path) -> str:
    """Return the change of latencies at two threads during two busy loops, and the error of estimates then."""
    (seen,) = (run["summary"] for run in _of(folder, "busy-high-t2-r1")["runs"] if run["loops"] == 2)
    models, error = seen["measured_undisturbed"], percent(seen["estimate"]["median"])
    return (
        f"{models['count']} models beside two busy loops change by {percent(models['median'])} at the median and "
        f"{percent(models['p95'])} at the 95th percentile; median error of estimates {error}"
    )


def _of_gates(folder: Path) -> Iterable[Row]:
    for path, found in _curves(folder):
        where = f"{_counted(found['threads'], 'thread')}, {found['cpu']}"
        data = f"([data](../results/{path.relative_to(folder)}))"
        equal = _equal(found["rows"])
        told = sum(row["verdict"] in {"SLOWER", "FASTER"} for row in equal)
        tested = f"{_counted(len({row['model'] for row in equal}), 'model')}, quiet and beside other programs {data}"
        held = percent(_held_share(equal))
        seen = f"{told} of {len(equal)}; bias {_bias(equal)}; {held} of the intervals hold"
        yield f"`compare OLD NEW` calls an equal copy SLOWER or FASTER, {where}", tested, seen
        slower = _slower(found["rows"])
        if slower:
            right = sum(row["verdict"] == "SLOWER" for row in slower)
            tested = f"copies slower by {percent(min(row['injected'] for row in slower))} and more, likewise"
            every = [row for row in found["rows"] if _counts(row) and row["share"]]
            held = percent(_held_share(every))
            seen = f"{right} of {len(slower)}; {held} of the intervals of all {len(every)} tries hold"
            yield f"It calls a slower copy SLOWER, {where}", tested, seen


def _slower(rows: Iterable[Result]) -> list[Result]:
    """Return tries by today's rule of copies that are slower by the default minimum effect, as far as is known."""
    return [
        row
        for row in rows
        if _counts(row)
        and row["minimum_effect"] == MINIMUM_EFFECT
        and row["injected"] + row["injected_error"] >= MINIMUM_EFFECT
    ]


def _equal(rows: Iterable[Result]) -> list[Result]:
    """Return tries by today's rule of equal copies with the default minimum effect."""
    return [row for row in rows if _counts(row) and not row["share"] and row["minimum_effect"] == MINIMUM_EFFECT]


def _gates_headline(folder: Path) -> str:
    """Return how often comparisons were right, over all files of tries."""
    rows = [row for _, found in _curves(folder) for row in found["rows"]]
    equal = _equal(rows)
    slower = _slower(rows)
    wrong = sum(row["verdict"] in {"SLOWER", "FASTER"} for row in equal)
    found = sum(row["verdict"] == "SLOWER" for row in slower)
    return (
        f"called {wrong} of {len(equal)} equal copies slower or faster, and found {found} of {len(slower)} copies that "
        f"are {percent(min(row['injected'] for row in slower))} slower and more"
    )


def _of_proofs(folder: Path) -> Iterable[Row]:
    for path in sorted(folder.glob("equal-t*.json")):
        result = read(path)
        before = ", before waits were subtracted" if path.stem.endswith("first") else ""
        seen = f"{result['exclude_zero']} of {result['proofs']}, half-width {percent(result['half_width'])}"
        yield (
            f"Proofs of a model against itself exclude zero in at most 5 %, {_threads(result)}",
            f"{_counted(len(result['models']), 'model')}, beside other programs{before} {_data(path.stem)}",
            f"{seen}; {result['save_3_percent']} seem to save 3 % or more",
        )


def _of_sessions(folder: Path) -> Iterable[Row]:
    result = _of(folder, "sessions-runtime-g1-t1")
    beyond = result["beyond_5_percent"]
    tested = f"F-test of {len(result['models'])} models and runs, 5 % point {_data('sessions-runtime-g1-t1')}"
    for of, what in (("model", "models"), ("bricks", "sums of bricks")):
        plain, allowed = (percent(beyond[of][name]) for name in ("p", "p_allowed"))
        seen = f"{allowed} beyond it; {plain} without the scatter of processes"
        yield f"Sessions of a run differ no more than intervals allow, {what}", tested, seen
    seen = f"{percent(beyond['ratio']['p'])} beyond it by time blocks, so that the session is the unit of this interval"
    yield "The same, ratio of estimate and model", tested, seen


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}{'s' if count > 1 else ''}"


def _threads(result: Result) -> str:
    """Return the number of threads of a result."""
    return _counted(result["threads"], "thread")


# Other checks. -------------------------------------------------------------------------------------------------------


def _checks(folder: Path) -> str:
    """Return one figure of every other benchmark, with the file and the script; old scripts are in the history."""
    rows = []
    for name, script, about, figure in _CHECKS:
        there = (blocks.TOP / "benchmarks" / script.split()[0]).exists()
        source = f"`{script}`" if there else f"`{script}`, finished"
        rows.append([f"[{about}]({name}.json)", figure(_of(folder, name)), source])
    return table(("what", "result", "script"), rows)


def _pieces(folder: Path) -> str:
    result = _of(folder, "pieces")
    rows = [
        [
            row["name"],
            number(row["weight_bytes"] / 1e9),
            *(_middle_of(row["ms"][way]) for way in ("scattered", "whole")),
        ]
        for row in result["models"]
    ]
    return table(("decoder", "weights, GB", f"ms per token, {result['cpu']}", "with whole pieces"), rows)


def _middle_of(times: Sequence[float]) -> str:
    """Return the median of some times, with the shortest and the longest."""
    return f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})"


_TOKENS = "epyc-again/tokens-t1"


def _tokens(folder: Path) -> str:
    """Return the estimates of decoders over their loop."""
    return tokens.page(_of(folder, _TOKENS))


def _error(one: Result) -> str:
    """Return the median and the count of an error."""
    return f"{percent(one['median'])} at the median of {one['count']}"


def _reported(result: Result) -> str:
    """Return the number of files with a latency, and the accuracy of their estimates."""
    measured = [row for row in result["rows"] if "measured_ms" in row]
    ratios = [row for row in measured if "ratio" in row]
    holds = sum(row["ratio_ci95"][0] <= 1 <= row["ratio_ci95"][1] for row in ratios)
    error = percent(statistics.median(abs(row["ratio"] - 1) for row in ratios))
    return f"{len(measured)} latencies, {len(ratios)} estimates: {error} at the median, {holds} hold"


def _agreement(result: Result) -> str:
    counts = {name: one["agreement"]["counts"] for name, one in result["frameworks"].items() if one.get("agreement")}
    return ", ".join(f"{name} {one['same']} of {sum(one.values())} bricks" for name, one in counts.items())


def _decomposed(result: Result) -> str:
    rows = [row for classes in result["classes"].values() for row in classes if row["graph"] == "source"]
    files, layers, whole = (sum(row[name] for row in rows) for name in ("files", "layers", "decomposed"))
    return f"{percent(whole / layers)} of {layers:,} layers in {files:,} files"


_CHECKS: Sequence[tuple[str, str, str, Callable[[Result], str]]] = (
    (_TOKENS, "tokens.py", "first token against the loop of decoders", lambda one: _error(one["errors"]["first"])),
    (_TOKENS, "tokens.py", "each token against it", lambda one: _error(one["errors"]["token"])),
    ("curves", "curves.py", "latency between measured sizes", lambda one: _error(one["summary"]["against_estimate"])),
    ("classes", "classes.py", "layers that can be decomposed", _decomposed),
    ("node-bricks", "node_bricks.py", "bricks of ONNX's node tests that keep their key",
     lambda one: f"{one['bricks'] - len(one['other_keys'])} of {one['bricks']}"),
    ("epyc/reports", "reports.py", "`report` on 41 files out of packages, 60 s each, AMD EPYC", _reported),
    ("reports", "reports.py", "on 42, Xeon, an earlier version", _reported),
    ("frameworks", "frameworks.py", "bricks that compute what ONNX Runtime computes", _agreement),
    ("fleet", "fleet.py", "measurements lost by 100 kills in a fleet",
     lambda one: f"{one['kills']['blocks_lost']} of {one['kills']['blocks_seen_before_kills']:,} blocks"),
    ("fuzz", "fuzz.py", "damaged files that ended in a traceback",
     lambda one: f"{sum(row['cases'] for row in one['findings'] if row['what'] == 'traceback')} of {one['cases']:,}"),
)  # fmt: skip


# A GPU. --------------------------------------------------------------------------------------------------------------


def _gpu(folder: Path) -> str:
    """Return each model's latency by framework, fastest bricks in one cache state, and estimate as a graph."""
    data = _of(folder, "gpu/results")["stages"]
    stages = {one["stage"]: {row["name"]: row for row in one["models"]} for one in data}
    ways = ("float32", "float32-graph", "float32-branches", "float32-compiled", "onnxruntime-float32")
    rows = []
    for name, row in stages["float32-graph"].items():
        times = [stages[way][name]["measured_ms"] for way in ways]
        cells = [f"{time:.3g}" for time in (*times, row["lower_bound_sequential_ms"])]
        rows.append([name, *cells, number(row["ratio"])])
    head = ("ms", "eager", "graph", "branches", "compiled", "ORT", "fastest bricks", "estimate / graph")
    return table(head, rows)


_BLOCKS: Mapping[str, Callable[[Path], str]] = {
    "accuracy": _accuracy,
    "across": _across,
    "round-trips": _round_trips,
    "power": _power,
    "pieces": _pieces,
    "tokens": _tokens,
    "atlas": _atlas,
    "atlas-changes": _atlas_changes,
    "improved": _improved,
    "improved-zoo": lambda folder: _improved(folder, zoo=True),
    "improved-headline": _improved_headline,
    "gates-headline": _gates_headline,
    "traps": _traps,
    "prediction": _prediction,
    "prediction-others": _prediction_others,
    "prediction-days": _prediction_days,
    "answers": _answers,
    "checks": _checks,
    "headline-files": _headline("epyc/accuracy-runtime-g1-t1-b1-files"),
    "headline-epyc": _headline("epyc-again/accuracy-runtime-g1-t1-b1-new"),
    "headline-epyc-two": _headline("epyc-again/accuracy-runtime-g1-t2-b1-new"),
    "headline-epyc-two-before": _headline("epyc/accuracy-runtime-g1-t2-b1-new"),
    "headline-epyc-fused-files": _headline("epyc/accuracy-fused-g1-t1-b1-files"),
    "headline-epyc-fused": _headline("epyc-again/accuracy-fused-g1-t1-b1-new"),
    "headline-epyc-fused-before": _headline("epyc/accuracy-fused-g1-t1-b1-new"),
    "headline-zen3": _headline("epyc-zen3/accuracy-runtime-g1-t1-b1"),
    "headline-zen3-two": _headline("epyc-zen3/accuracy-runtime-g1-t2-b1-new"),
    "headline-zen3-fused": _headline("epyc-zen3/accuracy-fused-g1-t1-b1-new"),
    "headline-zen4": _headline("epyc-zen4/accuracy-runtime-g1-t1-b1-new"),
    "headline-zen4-two": _headline("epyc-zen4/accuracy-runtime-g1-t2-b1-new"),
    "headline-xeon": _headline("accuracy-runtime-g1-t1-b1-new"),
    "headline-two": _headline("accuracy-runtime-g1-t2-b1-new"),
    "headline-fused": _headline("accuracy-fused-g1-t1-b1-new"),
    "calibration": _calibration,
    "trust": _trust,
    "held": _held,
    "busy-two": _busy_two,
    "scatter": _scatter,
    "cost": _cost,
    "gpu": _gpu,
    "gpu-questions": lambda folder: visit_analyses.questions(_of(folder, "gpu/analyses")),
    "gpu-ceilings": lambda folder: visit_tables.ceilings(_of(folder, "gpu/results")),
    "gpu-errors": lambda folder: visit_tables.errors(_of(folder, "gpu/results")),
    "gpu-plans": lambda folder: visit_tables.plans(_of(folder, "gpu/results")),
}


if __name__ == "__main__":
    main()
