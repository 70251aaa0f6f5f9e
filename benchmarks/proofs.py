"""Compare predictions of findings with the savings of their remedies, over models of the zoo, and write the zoo's page.

    python benchmarks/proofs.py [--models NAME ...] [--budget 600] [--visits 36] [--again]

Each model is generated and measured like in ``dlbricks report``, then analysed with at most ``--budget`` seconds of
proofs. Models are done one by one. Models in ``proofs.json`` under ``--out`` are not repeated without ``--again``, so
that a call continues an earlier one. ``--folder`` keeps the database and the page (``zoo.html``); measurements there
are reused.

A prediction is right if it differs from the proven saving by at most 25 %, or 2 % of the model. Findings with an upper
bound predict nothing, nor do ideas, which only a trial can confirm; both are listed. A remedy that saved nothing counts
as wrong if a saving was predicted. Wrong predictions whose interval overlaps the proven one are counted separately:
noise can explain them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dlbricks.analyzer.findings.analyze import analyze
from dlbricks.analyzer.findings.finding import Finding
from dlbricks.analyzer.reporting import keep_findings, report, set_up
from dlbricks.db import Store
from dlbricks.models import ModelSource, find_models
from facts import percent, provenance, quietness, share
from facts import write as write_figures

NAME = "proofs"

MODELS = (
    "squeezenet", "alexnet", "resnet50", "inception_v1", "inception_v2", "shufflenet", "densenet121", "zfnet512",
    "vgg19", "bert_base", "gpt2", "vit_b16",
    "minilm_l6", "swin_tiny", "swinv2_tiny", "convnext_tiny", "mobilevit_small", "levit_128", "efficientnet_b0",
    "mobilenet_v2", "poolformer_s12", "distilbert", "albert_base", "resnet18",
)  # fmt: skip
"""The built-in ones, and a dozen exports of several families."""

_NEAR, _SMALL = 0.25, 0.02


def main() -> None:
    """Prove, model by model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", metavar="NAME", default=MODELS)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds of proofs for one model")
    parser.add_argument("--visits", type=int, default=36, help="of each side in one proof")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="models that are done already, too")
    parser.add_argument("--folder", type=Path, default=Path(".cache/proofs"), help="of the database and the page")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    done = _earlier(options.out / f"{NAME}.json")
    options.folder.mkdir(parents=True, exist_ok=True)
    sources = find_models(options.models)
    with Store.open(options.folder / f"{NAME}.db") as store:
        for source in sources:
            if options.again or source.name not in done:
                done[source.name] = proven(source, store, options)
                print(f"{source.name}: {done[source.name]['wall_s']:.0f} s", flush=True)
                _keep(options.out, done)
        where = _where(store)
        how = replace(set_up(threads=options.threads), system=where.pop("system_key"), stack=where.pop("stack_key"))
        report(sources, store=store, out=options.folder / "zoo.html", setup=how, measure=False)
        found = {**where, **result(list(done.values()))}
    write_figures(options.out, NAME, found, text(found))


def _earlier(path: Path) -> dict[str, dict[str, Any]]:
    """Return the finished models by name."""
    return {one["model"]: one for one in json.loads(path.read_text())["models"]} if path.exists() else {}


def _keep(out: Path, done: Mapping[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{NAME}.json").write_text(json.dumps({"models": list(done.values())}, indent=1) + "\n")


def _where(store: Store) -> dict[str, Any]:
    """Return the provenance of the latest measurement of a model."""
    measured = [one for one in store.measurements(variant="") if one.subject == "model"]
    if not measured:
        raise SystemExit("no model was measured")
    last = measured[-1]
    return {
        **provenance(store, last.system, last.stack),
        "quiet": quietness(store, [one.id for one in measured]),
        "system_key": last.system,
        "stack_key": last.stack,
    }


def proven(source: ModelSource, store: Store, options: argparse.Namespace) -> dict[str, Any]:
    """Return the predictions and proofs of one model."""
    begun = time.monotonic()
    made = report([source], store=store, setup=set_up(threads=options.threads), prove=False)
    (section,) = made.sections
    record: dict[str, Any] = {"model": source.name, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    truth = section.truth
    if truth is None or not section.estimate.complete:
        reason = section.estimate.error or "not all of its bricks can be measured"
        return {**record, "error": reason, "wall_s": time.monotonic() - begun, "rows": []}
    measured_s = time.monotonic() - begun
    (row,) = analyze(
        [source], store=store, system=truth.system, stack=truth.stack, threads=truth.conditions.threads,
        cache=section.estimate.place.cache, dtype=truth.conditions.dtype, prove=True, visits=options.visits,
        until=time.monotonic() + options.budget,
    ).rows  # fmt: skip
    keep_findings(truth, row.findings, proven=True)
    return {
        **record,
        "error": row.error,
        "latency_ms": row.latency_ms,
        "measured_s": measured_s,
        "wall_s": time.monotonic() - begun,
        "unasked": list(row.unasked),
        "rows": [_row(one) for one in (*row.findings, *row.tried)],
    }


def _row(found: Finding) -> dict[str, Any]:
    """Return a finding with its prediction and proof, both relative to the model's one latency."""
    proof, tried = found.proof, found.proven_share
    # An idea has no prediction: what it saves is what it saved.
    known = not found.at_most and math.isfinite(found.share) and (tried is None or abs(found.share - tried) > 1e-12)
    predicted = found.share if known else None
    least, most = (None, None) if found.ci95_ms is None or not found.saving_ms else found.ci95_ms
    scale = None if not found.saving_ms else found.share / found.saving_ms
    expected = None if predicted is None or scale is None or least is None else [scale * least, scale * most]
    interval = None if proof is None else [one / proof.before_ms for one in proof.ci95_ms]
    return {
        "kind": found.kind,
        "title": found.title,
        "layers": len(found.layers),
        "at_most": found.at_most,
        "predicted_ms": None if predicted is None else found.saving_ms,
        "predicted": predicted,
        "predicted_ci": expected,
        "proven_ms": found.proven_ms,
        "proven": tried,
        "proven_ci": interval,
        "saves": proof is not None and proof.ci95_ms[0] > 0,
        "right": None if predicted is None or tried is None else is_right(predicted, tried),
        "overlap": None if expected is None or interval is None else _overlap(expected, interval),
        "unproven": found.unproven,
    }


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def is_right(predicted: float, proven_share: float) -> bool:
    """Return True if a prediction is near the proven saving, both as shares of the model."""
    apart = abs(predicted - proven_share)
    return apart <= _NEAR * abs(proven_share) or apart <= _SMALL


def result(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return all models with their summary."""
    rows = [row for one in models for row in one["rows"]]
    compared = [row for row in rows if row["right"] is not None]
    saving = [row for row in rows if row["saves"]]
    kinds = sorted({row["kind"] for row in saving})
    return {
        "summary": {
            "models": len(models),
            "failed": sum(one["error"] is not None for one in models),
            "tried": sum(row["proven"] is not None for row in rows),
            "saving": len(saving),
            "kinds": kinds,
            "compared": len(compared),
            "right": share(sum(row["right"] for row in compared), len(compared)),
            "right_or_noise": share(sum(row["right"] or bool(row["overlap"]) for row in compared), len(compared)),
            "right_of_saving": share(
                sum(row["right"] for row in compared if row["saves"]), sum(row["saves"] for row in compared)
            ),
        },
        "models": list(models),
    }


def text(found: Mapping[str, Any]) -> str:
    """Return the result as Markdown."""
    all_of = found["summary"]
    lines = [
        "# What findings predict, and what their remedies save",
        "",
        (
            f"dlbricks {found['dlbricks']}, {found['date']}, {found['system']['cpu']}; visits of models were "
            f"{found['quiet']['state']}. {all_of['models']} models, {all_of['failed']} of them with an error; "
            f"{all_of['tried']} remedies were tried, {all_of['saving']} save something beyond their interval, of "
            f"{len(all_of['kinds'])} kinds: {', '.join(all_of['kinds'])}. Of {all_of['compared']} predictions that "
            f"were tried {percent(all_of['right'])} are within 25 % of what was proven or 2 % of the model; of those "
            f"whose remedy saves something, {percent(all_of['right_of_saving'])}. With those whose intervals overlap "
            f"it is {percent(all_of['right_or_noise'])} of all."
        ),
        "",
        "Shares of the model, with 95 % intervals.",
        "",
        "| model | finding | predicted | proven | near | |",
        "|---|---|---|---|---|---|",
    ]
    for one in found["models"]:
        lines += [f"| {one['model']} | | | | | {one['error']} |"] if one["error"] else []
        lines += [
            f"| {one['model']} | {row['kind']} | {'at most' if row['at_most'] else _spelt(row, 'predicted')} | "
            f"{_spelt(row, 'proven')} | {_near(row)} | {row['unproven'] or ''} |"
            for row in one["rows"]
        ]
    return "\n".join([*lines, ""])


def _near(row: Mapping[str, Any]) -> str:
    if row["right"] is None:
        return ""
    return "yes" if row["right"] else "intervals overlap" if row["overlap"] else "no"


def _spelt(row: Mapping[str, Any], which: str) -> str:
    """Return a share with its interval; empty if unknown."""
    ends = row[f"{which}_ci"]
    if row[which] is None:
        return ""
    return percent(row[which]) + ("" if ends is None else f" ({percent(ends[0])} to {percent(ends[1])})")


if __name__ == "__main__":
    main()
