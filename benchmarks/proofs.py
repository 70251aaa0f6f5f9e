"""Compare predicted savings of settings with proven ones, and fit the error of each kind of prediction.

    python benchmarks/proofs.py [--models NAME ...] [--folder .cache/proofs]
    python benchmarks/proofs.py --fit

Each model is measured in several ways, in a run each: as it is with its bricks, and alone with two threads, with fewer
optimisations, and with another runtime. The finding ``alternatives`` predicts the saving of each way from these runs.
Then its remedy is tried like in ``analyze --prove``, but threads beside other programs as well: on a shared machine no
core may be free for minutes, and the time of programs of lower priority is taken off. Models in ``proofs.json`` under
``--out`` are not repeated, so that several short calls add up.

The error of a prediction is the logarithm of its ratio of latencies less that of the proven ratio. The fitted deviation
is the least with which 95 % of the intervals of one kind contain the proven ratio (``fitted_sd``): 0 if they do without
it. The quoted coverage leaves models out: each interval is widened by the fit to all other models, and must contain the
proven ratio. Findings have intervals for these kinds only (``analyzer/findings/finding.py``).
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks import estimate
from dlbricks.analyzer.findings.analysed_model import AnalysedModel
from dlbricks.analyzer.findings.analyses.trials import ALTERNATIVES
from dlbricks.analyzer.findings.finding import Finding
from dlbricks.analyzer.findings.proof import Proving, Workbench
from dlbricks.constructor.uncertainty.calibration import NORMAL, fitted_sd
from dlbricks.db import Store
from dlbricks.generator.measurement import trial
from dlbricks.generator.measurement.measure import measure
from dlbricks.generator.measurement.run import run
from dlbricks.models import ModelSource, find_models
from facts import generated, provenance
from figures import middle, parser, percent, read, share, table, write

MODELS = (
    "squeezenet", "mobilenet_v2", "shufflenet", "resnet18", "inception_v1", "efficientnet_b0", "levit_128",
    "mobilevit_small", "poolformer_s12", "deit_tiny", "minilm_l6", "electra_small", "pvt_v2_b0", "hgnetv2_b0",
    "swiftformer_xs", "mobilenet_v1",
)  # fmt: skip
"""Models of a few milliseconds, of many families."""

_WAYS: Sequence[Mapping[str, Any]] = (
    {"threads": 2},
    {"threads": 1, "options": {"optimization": "extended"}},
    {"threads": 1, "backend": "openvino"},
)

_FEWEST = 10
"""Models that a fit needs."""


def main() -> None:
    """Measure, predict and prove, or fit."""
    arguments = parser(__doc__)
    arguments.add_argument("--models", nargs="+", metavar="NAME", default=MODELS)
    arguments.add_argument("--visits", type=int, default=12, help="of each way")
    arguments.add_argument("--fit", action="store_true", help="only fit what is stored")
    arguments.add_argument("--folder", type=Path, default=Path(".cache/proofs"), help="of the databases")
    options = arguments.parse_args()
    trial.free_cores = lambda: os.cpu_count() or 1
    path = options.out / "proofs.json"
    result = read(path, {"rows": []})
    options.folder.mkdir(parents=True, exist_ok=True)
    known = {row["model"] for row in result["rows"]}
    for source in find_models([name for name in options.models if name not in known and not options.fit]):
        with Store.open(options.folder / f"{source.name}.db") as store:
            rows, facts = proven(source, store, options.visits)
        result = {**facts, "rows": [*result["rows"], *rows]}
        write(path, result, f"{source.name}: {len(rows)} predictions were tried")
    fits = fitted(result["rows"])
    names = ("median_error", "sd", "contained_before", "contained_left_out", "half_width_before", "half_width")
    cells = [[row["kind"], row["models"], *(percent(row[name]) for name in names)] for row in fits]
    write(path, {**result, "fits": fits}, table(("kind", "models", *names), cells))


def proven(source: ModelSource, store: Store, visits: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return predictions and proofs of one model, and where they were made."""
    with tempfile.TemporaryDirectory(prefix="dlbricks-proofs-") as folder:
        _, suite = generated([source], Path(folder) / "suite", granularity=1, graph="runtime")
        base = run(suite, store=store, models=[source], visits=visits)
        for way in _WAYS:
            measure([source], store=store, visits=visits, **way)
        (composed,) = estimate([source], store=store, granularity=1, graph="runtime", stack=base.stack, threads=1)
        subject = AnalysedModel(composed, store)
        bench = Workbench(source, subject.choice, Path(folder), Proving())
        tried = bench.prove([*ALTERNATIVES.run(subject)])
    rows = [{"model": source.name, **_row(found)} for found in tried if found.proof is not None]
    for found in tried:
        if found.proof is None:
            print(f"{source.name}, {found.kind}: {found.unproven}")
    return rows, provenance(store, base.system, base.stack)


def _row(found: Finding) -> dict[str, Any]:
    """Return the predicted and the proven ratio of latencies, each with half of its logarithm's interval."""
    proof = found.proof
    least, most = (1 - saving / found.current_ms for saving in reversed(found.ci95_ms))
    low, high = (1 - saving / proof.before_ms for saving in reversed(proof.ci95_ms))
    return {
        "kind": found.kind,
        "predicted": 1 - found.share,
        "half": math.log(most / least) / 2,
        "proven": proof.after_ms / proof.before_ms,
        "proven_half": math.log(high / low) / 2,
    }


def fitted(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the error of each kind of prediction, with the coverage of models that were left out."""
    ordered = sorted(rows, key=lambda row: str(row["kind"]))
    fits = []
    for kind, some in groupby(ordered, key=lambda row: str(row["kind"])):
        mine = [*some]
        if len(mine) < _FEWEST:
            continue
        held, widths = zip(*_left_out(mine), strict=True)
        fits.append({
            "kind": kind,
            "models": len({row["model"] for row in mine}),
            "sd": round(_sd(mine), 4),
            "median_error": middle([abs(_error(row)) for row in mine]),
            "contained_before": share(sum(abs(_error(row)) <= row["half"] for row in mine), len(mine)),
            "contained_left_out": share(sum(held), len(held)),
            "half_width_before": middle([row["half"] for row in mine]),
            "half_width": middle(widths),
        })  # fmt: skip
    return fits


def _left_out(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[bool, float]]:
    """Yield whether each interval, widened by a fit to the other models, contains the proven ratio, and its half."""
    for row in rows:
        sd = _sd([other for other in rows if other["model"] != row["model"]])
        half = math.hypot(row["half"], NORMAL * sd)
        yield abs(_error(row)) <= half, half


def _error(row: Mapping[str, Any]) -> float:
    return math.log(row["predicted"] / row["proven"])


def _sd(rows: Sequence[Mapping[str, Any]]) -> float:
    return fitted_sd(np.array([_error(row) for row in rows]), np.array([row["half"] for row in rows]))


if __name__ == "__main__":
    main()
