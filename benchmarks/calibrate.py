"""The error of the method that ``constructor/uncertainty/calibration.py`` has, from the accuracies that are committed.

    python benchmarks/calibrate.py [docs/results/accuracy-*.json ...]

A ratio of estimate and measured latency differs from 1 by what the measurements differ by, which its interval tells,
and by the error of the method. Of the latter the relative standard deviation is given with which 95 % of the
intervals hold 1. It is judged by models that it does not come from: each family is left out in turn. Models of the half
``new`` are left out altogether: nothing is fitted to them. Written under ``--out``: ``calibration.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks.constructor.uncertainty.interval import NORMAL
from dlbricks.db.values import PROTOCOL

_HELD = 0.95


def main() -> None:
    """Read, calibrate and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, default=sorted(Path("docs/results").glob("accuracy-*.json")))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    found = {}
    for path in options.results:
        result = json.loads(path.read_text())
        if result.get("protocol") == PROTOCOL and not result.get("half"):
            found[path.stem] = calibrated(result["models"], result["method_sd"])
            print(path.stem, {name: round(value, 4) for name, value in found[path.stem].items()})
    (options.out / "calibration.json").write_text(json.dumps(found, indent=1) + "\n")


def calibrated(models: Sequence[Mapping[str, Any]], method_sd: float) -> dict[str, float]:
    """The error of the method over some models.

    Args:
        models: With their ratios; at least one is not of the half ``new``.
        method_sd: The error of the method that is in the ratios' intervals.
    """
    rows = [row for row in models if row["ratio"] is not None and row["half"] != "new"]
    errors = np.log([row["ratio"] for row in rows])
    halves = np.log([row["ratio_ci95"][1] / row["ratio"] for row in rows])
    sampling = np.sqrt(np.maximum(0, halves**2 - (NORMAL * method_sd) ** 2))
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
