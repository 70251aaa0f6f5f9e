"""The error of the method that intervals hold, from the accuracies that are committed.

    python benchmarks/calibrate.py

A ratio of estimate and measured latency differs from 1 by what the measurements differ by, which its interval tells,
and by the error of the method. Of the latter the relative standard deviation is given with which 95 % of the
intervals hold 1. It is judged by models that it does not come from: each family is left out in turn. Models of the half
``new`` are left out altogether: nothing is fitted to them. Written are ``docs/results/calibration.json``, of each
accuracy there, and ``constructor/uncertainty/calibration.json``, of those that ``estimate`` goes by: of machines as
they are, and of ten models at least.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks.constructor.uncertainty.calibration import Method
from dlbricks.constructor.uncertainty.interval import NORMAL
from dlbricks.db.values import PROTOCOL

_HELD = 0.95
_FEWEST = 10

_TOP = Path(__file__).parents[1]
RESULTS, CONSTANTS = _TOP / "docs/results", _TOP / "constructor/uncertainty/calibration.json"


def main() -> None:
    """Read, calibrate and write."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    results = accuracies(RESULTS)
    found = {name: calibrated(one["models"], one["method_sd"]) for name, one in results.items()}
    for name, one in found.items():
        print(name, {key: round(value, 4) for key, value in one.items()})
    (RESULTS / "calibration.json").write_text(json.dumps(found, indent=1) + "\n")
    CONSTANTS.write_text(json.dumps(constants(results), indent=1) + "\n")


def accuracies(folder: Path) -> dict[str, Mapping[str, Any]]:
    """Those of the whole zoo that the protocol of today measured, by name."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("accuracy-*.json"))}
    return {name: one for name, one in found.items() if one.get("protocol") == PROTOCOL and not one.get("half")}


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
    errors = np.log([row["ratio"] for row in rows])
    halves = np.log([row["ratio_ci95"][1] / row["ratio"] for row in rows])
    sampling = np.sqrt(np.maximum(0, halves**2 - (NORMAL * (method_sd or 0.0)) ** 2))
    lacking = np.sqrt(np.maximum(0, errors**2 - sampling**2)) / NORMAL
    families = [row["name"] if row["family"] == "-" else row["family"] for row in rows]
    held = []
    for family in set(families):
        own = np.array([one == family for one in families])
        reach = np.hypot(sampling[own], NORMAL * _least(lacking[~own]))
        held += (np.abs(errors[own]) <= reach).tolist()
    sd = _least(lacking)
    return {
        "models": len(rows),
        "families": len(set(families)),
        "bias": float(np.exp(errors.mean()) - 1),
        "sd": sd,
        "held": statistics.fmean(held),
        "median_half_width": float(np.median(np.expm1(np.hypot(sampling, NORMAL * sd)))),
        "median_half_width_of_sampling": float(np.median(np.expm1(sampling))),
    }


def _least(lacking: Sequence[float]) -> float:
    """The least deviation with which so many of the intervals hold 1."""
    ordered = sorted(lacking)
    return float(ordered[math.ceil(_HELD * len(ordered)) - 1])


if __name__ == "__main__":
    main()
