"""The error of the method, and the scatter of processes and runs, that intervals hold, from data that are committed.

    python benchmarks/calibrate.py

A ratio of estimate and measured latency differs from 1 by what the measurements differ by, which its interval says,
and by the error of the method. Of the latter the relative standard deviation is given with which 95 % of the
intervals hold 1. It is judged only by what it does not come from: families of the half ``new``, and
other runs (``again``, other machines). Written are ``docs/results/calibration.json``, of each
accuracy there, and ``constructor/uncertainty/calibration.json``, of those that ``estimate`` goes by: of machines as
they are, and of ten models at least.

What processes of one run differ by comes from ``docs/results/scatter-*.json`` (``scatter.py``): the least relative
standard deviation with which 95 % of the models' differences between two processes are within what their time blocks
and it allow. What runs differ by comes from the models that several runs measured, with the same stack, threads and
batch on the same machine: accuracies, also those of ``again`` and of other machines, and ``repeat-*.json``, each of two
runs with a neighbour. It is the least with which 95 % of the differences of their undisturbed latencies are within it.
Two runs of which one alone had a neighbour of ours count only where there are no others. Both are told apart by
threads, and for sums over bricks and whole models; written to ``constructor/uncertainty/scatter.json``. Where it has no
row, nothing is known.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks.constructor.uncertainty.calibration import Method
from dlbricks.constructor.uncertainty.interval import NORMAL
from dlbricks.db.values import PROTOCOL
from dlbricks.generator.network.packed import PACKING

_HELD = 0.95
_FEWEST = 10

_TOP = Path(__file__).parents[1]
RESULTS, CONSTANTS = _TOP / "docs/results", _TOP / "constructor/uncertainty/calibration.json"
SCATTER = CONSTANTS.with_name("scatter.json")

Place = tuple[str, str, int, str]
"""Backend, device, threads (2 stands for all above 1), and what is said: ``bricks`` or ``model``."""

_BESIDE = ("again", "xeon-2.5ghz")
"""Folders of runs that are no headline, and show what runs differ by as well as others."""

_UNDISTURBED = {"bricks": "undisturbed_ms", "model": "measured_undisturbed_ms"}
_REPEATED = {"bricks": "estimate_undisturbed", "model": "own_undisturbed"}


def main() -> None:
    """Read, calibrate and write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    results = accuracies(RESULTS)
    found = {name: validated(name, one) for name, one in results.items()}
    for name, one in found.items():
        print(name, one)
    (RESULTS / "calibration.json").write_text(json.dumps(found, indent=1) + "\n")
    CONSTANTS.write_text(json.dumps(constants(results), indent=1) + "\n")
    rows = scatter(RESULTS)
    for row in rows:
        print(row)
    SCATTER.write_text(json.dumps(rows, indent=1) + "\n")


def accuracies(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Those of the whole zoo that the protocol of today measured as models run, by name."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("accuracy-*.json"))}
    return {
        name: one
        for name, one in found.items()
        if one.get("protocol") == PROTOCOL
        and not (one.get("half") or one.get("given"))
        and one.get("cache", "model") == "model"
        and (one["threads"] == 1 or _packing(one) == PACKING)
    }


def _packing(one: Mapping[str, Any]) -> int:
    """How packs were filled; what one thread runs is filled since the second way as it is now."""
    found = int(one.get("packing", 1))
    return PACKING if one["threads"] == 1 and found > 1 else found


def constants(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows that ``estimate`` goes by."""
    rows = []
    for name, one in results.items():
        known = [row for row in one["models"] if row["ratio"] is not None and row["half"] != "new"]
        if one["neighbour"] or one.get("generated_with") or len(known) < _FEWEST:
            continue
        method = Method(
            backend=one["stack"]["backend"],
            device="cpu",
            cache="model",
            dtype="float32",
            **{key: one[key] for key in ("graph", "granularity", "threads", "batch")},
        )
        sd = calibrated(one["models"], one["method_sd"])["sd"]
        rows.append({"method": asdict(method), "sd": round(sd, 4), "models": len(known), "source": name})
    return rows


def calibrated(models: Sequence[Mapping[str, Any]], method_sd: float | None) -> dict[str, float]:
    """The error of the method over some models.

    Args:
        models: With their ratios; at least one is not of the half ``new``.
        method_sd: The error of the method that is in the ratios' intervals; None where none is.
    """
    rows = [row for row in models if row["ratio"] is not None and row["half"] != "new"]
    errors, sampling = _errors(rows, method_sd)
    sd = _least(np.sqrt(np.maximum(0, errors**2 - sampling**2)) / NORMAL)
    return {
        "models": len(rows),
        "families": len({row["name"] if row["family"] == "-" else row["family"] for row in rows}),
        "bias": float(np.exp(errors.mean()) - 1),
        "sd": sd,
        "median_half_width": float(np.median(np.expm1(np.hypot(sampling, NORMAL * sd)))),
        "median_half_width_of_sampling": float(np.median(np.expm1(sampling))),
    }


def validated(name: str, fitted: Mapping[str, Any]) -> dict[str, Any]:
    """The error of the method over one run, and how many intervals with it hold 1 in what it was not fitted to."""
    made = calibrated(fitted["models"], fitted["method_sd"])
    new = [row for row in fitted["models"] if row["half"] == "new"]
    others: dict[str, tuple[Sequence[Mapping[str, Any]], float | None]] = {name: (new, fitted["method_sd"])}
    for path in (RESULTS / f"{name}-new.json", *(RESULTS / place / f"{name}.json" for place in _BESIDE)):
        one = json.loads(path.read_text()) if path.exists() else {}
        if one.get("protocol") == PROTOCOL:
            others[path.relative_to(RESULTS).with_suffix("").as_posix()] = one["models"], one["method_sd"]
    coverage = {}
    for other, (models, method_sd) in others.items():
        rows = [row for row in models if row["ratio"] is not None]
        if rows:
            errors, sampling = _errors(rows, method_sd)
            held = np.abs(errors) <= np.hypot(sampling, NORMAL * made["sd"])
            coverage[other] = {"models": len(rows), "hold_1": float(held.mean())}
    return {**made, "validation": coverage}


def _errors(rows: Sequence[Mapping[str, Any]], method_sd: float | None) -> tuple[Any, Any]:
    """Logarithms of the ratios, and half of their intervals without the error of the method."""
    errors = np.log([row["ratio"] for row in rows])
    halves = np.log([row["ratio_ci95"][1] / row["ratio"] for row in rows])
    return errors, np.sqrt(np.maximum(0, halves**2 - (NORMAL * (method_sd or 0.0)) ** 2))


def scatter(folder: Path) -> list[dict[str, Any]]:
    """What processes and runs differ by, of each place that either is known of."""
    processes, runs = _of_processes(folder), _of_runs(folder)
    return [
        {
            **dict(zip(("backend", "device", "threads", "of"), place, strict=True)),
            "processes": processes.get(place),
            "runs": runs.get(place),
        }
        for place in sorted({*processes, *runs})
    ]


def _of_processes(folder: Path) -> dict[Place, dict[str, Any]]:
    """What processes of one run differ by; models that one process visited are not in the data, and never count."""
    lacking: dict[Place, list[float]] = {}
    sources: dict[Place, list[str]] = {}
    for path in sorted(folder.glob("scatter-*.json")):
        found = json.loads(path.read_text())
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
        place: {"sd": round(_least(found), 4), "models": len(found), "sources": sources[place]}
        for place, found in lacking.items()
    }


def _of_runs(folder: Path) -> dict[Place, dict[str, Any]]:
    """What runs differ by, from pairs of them."""
    found: dict[tuple[Place, bool], list[tuple[str, str, list[float]]]] = {}
    for place, alike, first, second, apart in (*_pairs(folder), *_repeated(folder)):
        if len(apart) >= _FEWEST:
            found.setdefault((place, alike), []).append((first, second, apart))
    rows = {}
    for place in {place for place, _ in found}:
        pairs = found.get((place, True)) or found[place, False]
        lacking = [difference / math.sqrt(2) / NORMAL for *_, apart in pairs for difference in apart]
        rows[place] = {
            "sd": round(_least(lacking), 4),
            "models": len(lacking),
            "pairs": len(pairs),
            "alike": (place, True) in found,
            "sources": sorted({name for first, second, _ in pairs for name in (first, second)}),
        }
    return rows


def _pairs(folder: Path) -> Iterator[tuple[Place, bool, str, str, list[float]]]:
    """Accuracies that measured the same, by twos: whether both or neither had a neighbour, and what they differ by."""
    paths = [path for place in (folder, *(folder / name for name in _BESIDE)) for path in place.glob("accuracy-*.json")]
    results = {path.relative_to(folder).with_suffix("").as_posix(): json.loads(path.read_text()) for path in paths}
    known = {
        name: one
        for name, one in sorted(results.items())
        if one.get("protocol") == PROTOCOL and not one.get("half") and not one.get("generated_with")
    }
    for first, second in itertools.combinations(known, 2):
        one, other = known[first], known[second]
        if any(one[key] != other[key] for key in ("system", "stack", "threads", "batch")):
            continue
        packed_alike = _packing(one) == _packing(other)
        for of, latency in _UNDISTURBED.items():
            if of == "bricks" and not (
                packed_alike and all(one[key] == other[key] for key in ("graph", "granularity"))
            ):
                continue
            ours, theirs = ({row["name"]: row[latency] for row in found["models"]} for found in (one, other))
            alike = bool(one["neighbour"]) == bool(other["neighbour"])
            yield _place(one, of), alike, first, second, _differences(ours, theirs)


def _repeated(folder: Path) -> Iterator[tuple[Place, bool, str, str, list[float]]]:
    """What was measured twice, a neighbour beside both runs; of protocol 2 it stands in a folder of its own."""
    for path in sorted(folder.glob("repeat-*.json")):
        found = json.loads(path.read_text())
        both = {name: pair for name, pair in found["figures_ms"].items() if None not in pair}
        for of, latency in _REPEATED.items():
            ours, theirs = ({name: pair[run].get(latency) for name, pair in both.items()} for run in (0, 1))
            yield _place(found, of), True, path.stem, path.stem, _differences(ours, theirs)


def _differences(ours: Mapping[str, float | None], theirs: Mapping[str, float | None]) -> list[float]:
    both = ((ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys()))
    return [abs(math.log(one / other)) for one, other in both if one and other]


def _place(found: Mapping[str, Any], of: str) -> Place:
    return found["stack"]["backend"], "cpu", min(found["threads"], 2), of


def _least(lacking: Sequence[float]) -> float:
    """The least deviation with which so many of the intervals hold 1."""
    ordered = sorted(lacking)
    return float(ordered[math.ceil(_HELD * len(ordered)) - 1])


if __name__ == "__main__":
    main()
