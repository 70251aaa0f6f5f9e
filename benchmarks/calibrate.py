"""Fit the error of the method, and the scatter of processes and runs, to committed data, and validate the fit.

    python benchmarks/calibrate.py

A ratio of estimate and measured latency differs from 1 by the scatter of the measurements, which its interval contains,
and by the error of the method. The fitted relative standard deviation of this error is the least with which 95 % of the
intervals of one run contain 1. It is judged only by other data: families of the half ``new``, and other runs
(``again``, other machines). ``docs/results/calibration.json`` has fit and validation of each accuracy there.

``constructor/uncertainty/calibration.json`` has the rows that ``estimate`` uses: of machines as they are, from ten
models at least. They are fitted to all families of the run, also to those of the half ``new``: the method was tuned
with the others in sight, and a user's model is not among them. These may have a run of their own, with the same packs
on the same day. A row holds if at least 92 % of all intervals of other runs on the same CPU model contain 1. Without
such a run it does not. ``widest`` is the largest deviation that a fit to any of these data gives: of this CPU model, if
there are other runs on it, which judge the row. Decoders (``tokens-t*.json``) have rows of their own: fitted to the
first half of the families by name, and judged by the others.

The scatter of processes of one run comes from ``docs/results/scatter-*.json`` (``scatter.py``). It is the least
relative standard deviation with which 95 % of the models' differences between two processes are explained by it and by
the scatter of time blocks. The scatter of runs comes from models that several runs measured, with the same stack,
threads and batch on the same machine within a day: accuracies, also of ``again`` and of other machines, and
``repeat-*.json``, each of two runs with a neighbour. It is the least with which 95 % of the differences of their
undisturbed latencies are within it. Pairs in which one run alone had a neighbour count only without other pairs. Both
have rows by threads, for sums of bricks and for whole models, in ``constructor/uncertainty/scatter.json``. Without a
row, nothing is known.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks.constructor.uncertainty.calibration import NORMAL, OPENED, Method, fitted_sd, least_sd, share_held
from dlbricks.db.values import PROTOCOL
from figures import parser, read, write

_FEWEST = 10
_GOAL = 0.92
"""Share of the validated intervals that must contain 1 in a row that holds."""

_ONE_HOST = timedelta(days=1)
"""Time between two runs on one machine: a virtual machine of the same type runs on another host later, which differs by
10 to 17 % at the median in these data."""

_TOP = Path(__file__).parents[1]
RESULTS, CONSTANTS = _TOP / "docs/results", _TOP / "constructor/uncertainty/calibration.json"
SCATTER = CONSTANTS.with_name("scatter.json")

_CLASSES_TWICE_APART = 4
"""The last version of filling packs (``PACKING``) with few classes; runs with it stay calibrated."""

Place = tuple[str, str, int, str]
"""Backend, device, threads, and subject: ``bricks`` or ``model``."""

_BESIDE = ("again", "xeon-2.5ghz", "epyc", "epyc-again")
"""Folders of runs that show what runs differ by."""

_FITTED = ("", "epyc")
"""Folders with a run of the whole zoo, each on a machine of its own."""

_UNDISTURBED = {"bricks": "undisturbed_ms", "model": "measured_undisturbed_ms"}
_REPEATED = {"bricks": "estimate_undisturbed", "model": "own_undisturbed"}


def main() -> None:
    """Read, calibrate and write."""
    parser(__doc__, out=False).parse_args()
    found, rows = fits(RESULTS)
    write(RESULTS / "calibration.json", found)
    write(CONSTANTS, rows)
    write(SCATTER, scatter(RESULTS))


def fits(folder: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    """Return fit and validation of each accuracy by name, and the rows that ``estimate`` uses."""
    results, decoders = accuracies(folder), of_decoders(folder)
    found = {name: validated(name, one) for name, one in results.items()}
    found |= {f"tokens-t{method.threads}": fit for method, fit in decoders}
    return found, [*constants(results), *map(_of_decoder, decoders), *on_gpu(folder)]


def accuracies(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Return the accuracies of the whole zoo under today's protocol, with models as they run, by name."""
    paths = [path for place in _FITTED for path in sorted((folder / place).glob("accuracy-*.json"))]
    found = {path.relative_to(folder).with_suffix("").as_posix(): read(path) for path in paths}
    return {
        name: one
        for name, one in found.items()
        if one.get("protocol") == PROTOCOL
        and not (one.get("half") or one.get("files") or one.get("given"))
        and one.get("cache", "model") == "model"
        and (one["threads"] == 1 or _packing(one) >= _CLASSES_TWICE_APART)
    }


def _packing(one: Mapping[str, Any]) -> int:
    """Return the version of filling packs, or a later one that fills packs of these bricks alike."""
    found = int(one.get("packing", 1))
    alike = 2 if one["threads"] == 1 else 3 if one["graph"] == "runtime" else _CLASSES_TWICE_APART
    return max(found, _CLASSES_TWICE_APART) if found >= alike else found


def constants(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that ``estimate`` uses."""
    rows = []
    for name, one in results.items():
        known = [row for row in one["models"] if row["ratio"] is not None and row["half"] != "new"]
        if one.get("neighbour") or one.get("generated_with") or len(known) < _FEWEST:
            continue
        how = {key: one[key] for key in ("graph", "granularity", "threads", "batch")}
        method = Method(backend=one["stack"]["backend"], device="cpu", cache="model", dtype="float32", **how)
        found, cpu = validated(name, one), one["system"]["cpu"]
        new = _new_families(name, one)
        shipped = fitted_sd(*_errors([*known, *new], one["method_sd"]))
        inside = {name, f"{name}-new"} if new else {name}
        others = {place: other for place, other in found["validation"].items() if place not in inside}
        here = [place for place, other in others.items() if other["cpu"] == cpu]
        held = math.fsum(_held_by(shipped, place) * others[place]["models"] for place in here)
        sds = [shipped, found["sd"]]
        sds += [other["sd"] for other in found["validation"].values() if other["cpu"] == cpu or not here]
        holds = bool(here) and held >= _GOAL * sum(others[place]["models"] for place in here)
        rows.append(_constant(method, cpu, sds, holds=holds, models=len(known), source=name, judged=bool(here)))
    return rows


def _new_families(name: str, one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the models of families that were added last, of the same run or of one with the same packs that day."""
    beside = read(RESULTS / f"{name}-new.json", {})
    if not beside or _packing(beside) != _packing(one) or beside["method_sd"] != one["method_sd"]:
        return []
    apart = abs(datetime.fromisoformat(beside["date"]) - datetime.fromisoformat(one["date"]))
    return [row for row in beside["models"] if apart < _ONE_HOST and row["ratio"] is not None]


def _held_by(sd: float, place: str) -> float:
    """Return the share of another run's intervals that contain 1 with an error of the method."""
    one = read(RESULTS / f"{place}.json")
    return share_held(*_errors([row for row in one["models"] if row["ratio"] is not None], one["method_sd"]), sd)


def _constant(method: Method, cpu: str, sds: Sequence[float], **more: Any) -> dict[str, Any]:
    """Return a row; the first of the deviations is its own."""
    sd, widest = round(sds[0], 4), round(max(sds), 4)
    return {"method": asdict(method), "cpu": cpu, "sd": sd, "widest": widest, "judged": False, **more}


def of_decoders(folder: Path) -> list[tuple[Method, dict[str, Any]]]:
    """Return the error of the method over half of the families of decoders, and how often it holds for the others."""
    made = []
    for path in sorted(folder.glob("tokens-t*.json")):
        found = read(path)
        families: dict[str, list[Mapping[str, Any]]] = {}
        for name, model in sorted(found["models"].items()):
            known = [row for row in model["rows"] if row["ratio_ci95"] is not None and "method_sd" in row]
            families.setdefault(name.partition("_")[0], []).extend(known)
        cpus = {model["cpu"] for model in found["models"].values()}
        fitted, others = ([row for one in half for row in families[one]] for half in _halves([*families]))
        if len(cpus) == 1 and min(len(fitted), len(others)) >= _FEWEST:
            errors, sampling = _errors(fitted, [row["method_sd"] for row in fitted])
            sd = fitted_sd(errors, sampling)
            judged = _errors(others, [row["method_sd"] for row in others])
            method = Method("onnxruntime", "cpu", OPENED, 1, "model", found["threads"], 1, "float32")
            cpu = cpus.pop()
            other = {
                "cpu": cpu, "models": len(others), "unit": "visit", "hold_1": share_held(*judged, sd),
                "sd": fitted_sd(*judged),
            }  # fmt: skip
            fit = {
                "cpu": cpu, "models": len(fitted), "sd": sd, "bias": float(np.exp(errors.mean()) - 1),
                "median_half_width": float(np.median(np.expm1(np.hypot(sampling, NORMAL * sd)))),
                "validation": {f"{path.stem}, other families": other},
            }  # fmt: skip
            made.append((method, fit))
    return made


def _halves(families: list[str]) -> tuple[list[str], list[str]]:
    return families[: len(families) // 2], families[len(families) // 2 :]


def _of_decoder(decoder: tuple[Method, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of decoders that ``tokens`` uses."""
    method, fit = decoder
    (other,) = fit["validation"].values()
    source, holds = f"tokens-t{method.threads}", other["hold_1"] >= _GOAL
    return _constant(method, fit["cpu"], [fit["sd"], other["sd"]], holds=holds, models=fit["models"], source=source)


def on_gpu(folder: Path) -> list[dict[str, Any]]:
    """Return rows of the visits of a GPU: widest errors, which hold nowhere, since their intervals are unknown."""
    found = read(folder / "gpu/results.json")
    errors: dict[tuple[Method, str], list[float]] = {}
    for stage in found["stages"]:
        ratios = [row["ratio"] for row in stage["models"] if row["ratio"] is not None]
        if len(ratios) >= _FEWEST:
            place = stage["backend"], stage["device"]
            method = Method(*place, "source", 1, "model", 1, stage["batch"] or 1, stage["dtype"])
            cpu = found["systems"][stage["system"]]["system"]["cpu"]
            errors.setdefault((method, cpu), []).append(least_sd(np.abs(np.log(ratios)) / NORMAL))
    return [
        _constant(method, cpu, sorted(sds, reverse=True), holds=False, source="gpu/results")
        for (method, cpu), sds in errors.items()
    ]


def calibrated(models: Sequence[Mapping[str, Any]], method_sd: float | None) -> dict[str, float]:
    """Return the error of the method over some models.

    Args:
        models: With their ratios; at least one is not of the half ``new``.
        method_sd: The error of the method that is in the ratios' intervals; None for none.
    """
    rows = [row for row in models if row["ratio"] is not None and row["half"] != "new"]
    errors, sampling = _errors(rows, method_sd)
    sd = fitted_sd(errors, sampling)
    return {
        "models": len(rows),
        "families": len({row["name"] if row["family"] == "-" else row["family"] for row in rows}),
        "bias": float(np.exp(errors.mean()) - 1),
        "sd": sd,
        "median_half_width": float(np.median(np.expm1(np.hypot(sampling, NORMAL * sd)))),
        "median_half_width_of_sampling": float(np.median(np.expm1(sampling))),
    }


def validated(name: str, fitted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the error of the method over one run, and the share of intervals that contain 1 in other data."""
    made = calibrated(fitted["models"], fitted["method_sd"])
    others = {name: {**fitted, "models": [row for row in fitted["models"] if row["half"] == "new"]}}
    stem = Path(name).name
    beside = (f"{place}/{stem}{more}" for place in _BESIDE for more in ("", "-new", "-files"))
    for other in (f"{name}-new", *dict.fromkeys((stem, f"{stem}-new", *beside))):
        one = read(RESULTS / f"{other}.json", {})
        if other != name and one.get("protocol") == PROTOCOL:
            others[other] = one
    coverage = {}
    for other, one in others.items():
        rows = [row for row in one["models"] if row["ratio"] is not None]
        if rows:
            errors, sampling = _errors(rows, one["method_sd"])
            coverage[other] = {
                "cpu": one["system"]["cpu"],
                "models": len(rows),
                "unit": one.get("unit", "time block"),
                "hold_1": share_held(errors, sampling, made["sd"]),
                "median_half_width": float(np.median(np.expm1(np.hypot(sampling, NORMAL * made["sd"])))),
                "sd": fitted_sd(errors, sampling),
            }
    return {**made, "validation": coverage}


def _errors(rows: Sequence[Mapping[str, Any]], method_sd: float | Sequence[float] | None) -> tuple[Any, Any]:
    """Return the logarithms of the ratios, and half of their intervals without the error of the method."""
    composing = np.zeros(1) if method_sd is None else np.asarray(method_sd)
    errors = np.log([row["ratio"] for row in rows])
    halves = np.log([row["ratio_ci95"][1] / row["ratio"] for row in rows])
    return errors, np.sqrt(np.maximum(0, halves**2 - (NORMAL * composing) ** 2))


def scatter(folder: Path) -> list[dict[str, Any]]:
    """Return the scatter of processes and runs of each known place."""
    processes, runs = _of_processes(folder), _of_runs(folder)
    names = ("backend", "device", "threads", "of", "processes", "runs")
    places = sorted({*processes, *runs})
    return [dict(zip(names, (*place, processes.get(place), runs.get(place)), strict=True)) for place in places]


def _of_processes(folder: Path) -> dict[Place, dict[str, Any]]:
    """Return the scatter of processes of one run; the data contain only models that several processes visited."""
    lacking: dict[Place, list[float]] = {}
    sources: dict[Place, list[str]] = {}
    for path in sorted(folder.glob("scatter-*.json")):
        found = read(path)
        if found["protocol"] != PROTOCOL:
            continue
        for of in ("bricks", "model"):
            place = _place(found, of)
            sources.setdefault(place, []).append(path.stem)
            for model in found["models"]:
                for (one, error, _), (other, doubt, _) in itertools.combinations(model[of], 2):
                    rest = math.log(one / other) ** 2 - (NORMAL * math.hypot(error, doubt)) ** 2
                    lacking.setdefault(place, []).append(math.sqrt(max(0.0, rest / 2)) / NORMAL)
    return {
        place: {"sd": round(least_sd(found), 4), "models": len(found), "sources": sources[place]}
        for place, found in lacking.items()
    }


def _of_runs(folder: Path) -> dict[Place, dict[str, Any]]:
    """Return the scatter of runs, from pairs of runs."""
    found: dict[tuple[Place, bool], list[tuple[str, str, list[float]]]] = {}
    for place, alike, first, second, apart in (*_pairs(folder), *_repeated(folder)):
        if len(apart) >= _FEWEST:
            found.setdefault((place, alike), []).append((first, second, apart))
    rows = {}
    for place in {place for place, _ in found}:
        pairs = found.get((place, True)) or found[place, False]
        lacking = [difference / math.sqrt(2) / NORMAL for *_, apart in pairs for difference in apart]
        rows[place] = {
            "sd": round(least_sd(lacking), 4),
            "models": len(lacking),
            "pairs": len(pairs),
            "alike": (place, True) in found,
            "sources": sorted({name for first, second, _ in pairs for name in (first, second)}),
        }
    return rows


def _pairs(folder: Path) -> Iterator[tuple[Place, bool, str, str, list[float]]]:
    """Yield pairs of accuracies of the same models and their differences; True if both or neither had a neighbour."""
    paths = [path for place in (folder, *(folder / name for name in _BESIDE)) for path in place.glob("accuracy-*.json")]
    results = {path.relative_to(folder).with_suffix("").as_posix(): read(path) for path in paths}
    known = {
        name: one
        for name, one in sorted(results.items())
        if one.get("protocol") == PROTOCOL and not one.get("half") and not one.get("generated_with")
    }
    for first, second in itertools.combinations(known, 2):
        one, other = known[first], known[second]
        if any(one[key] != other[key] for key in ("system", "stack", "threads", "batch")):
            continue
        if abs(datetime.fromisoformat(one["date"]) - datetime.fromisoformat(other["date"])) > _ONE_HOST:
            continue
        packed_alike = _packing(one) == _packing(other)
        for of, latency in _UNDISTURBED.items():
            if of == "bricks" and not (
                packed_alike and all(one[key] == other[key] for key in ("graph", "granularity"))
            ):
                continue
            ours, theirs = ({row["name"]: row[latency] for row in found["models"]} for found in (one, other))
            alike = bool(one.get("neighbour")) == bool(other.get("neighbour"))
            yield _place(one, of), alike, first, second, _differences(ours, theirs)


def _repeated(folder: Path) -> Iterator[tuple[Place, bool, str, str, list[float]]]:
    """Yield the differences of models that were measured twice, with a neighbour in both runs."""
    for path in sorted(folder.glob("repeat-*.json")):
        found = read(path)
        both = {name: pair for name, pair in found["figures_ms"].items() if None not in pair}
        for of, latency in _REPEATED.items():
            ours, theirs = ({name: pair[run].get(latency) for name, pair in both.items()} for run in (0, 1))
            yield _place(found, of), True, path.stem, path.stem, _differences(ours, theirs)


def _differences(ours: Mapping[str, float | None], theirs: Mapping[str, float | None]) -> list[float]:
    both = ((ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys()))
    return [abs(math.log(one / other)) for one, other in both if one and other]


def _place(found: Mapping[str, Any], of: str) -> Place:
    return found["stack"]["backend"], "cpu", found["threads"], of


if __name__ == "__main__":
    main()
