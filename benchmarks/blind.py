"""Score `dlbricks improve` on pairs of models that somebody else wrote, each with one planted fault.

    python benchmarks/blind.py FOLDER --round N [--budget 30] [--jobs 2] [--out docs/results]
    python benchmarks/blind.py FOLDER --round N --named NAME...

FOLDER has ``NAME-clean.onnx``, ``NAME-faulty.onnx`` and ``pairs.json``: a list with ``name``, ``kind``, ``cause`` and
``inputs`` (by input ``shape``, ``dtype``, for integers ``low`` and ``high``). Each faulty model is improved once.
The faulty, clean and improved models then run alternately in fresh processes of plain ONNX Runtime: one thread, CPU
time, medians. This timing and the comparison of outputs share no code with dlbricks. A fault is recovered if the
improved model saves at least half of its cost and its outputs are equal. Written: ``blind-N.json``, after each model;
models in it are skipped. ``--named`` records the faults with the right cause in the answer, judged by a person.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

Row = dict[str, Any]
EQUAL = 1e-3
"""Largest difference of outputs that count as equal, as a share of their largest value."""
HALF = 0.5
PROCESSES, ALTERNATIONS, SECONDS = 3, 40, 20.0
SEEDS = (101, 102, 103)


def main() -> None:
    """Score the pairs of a folder, or record the named ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--budget", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--named", nargs="*", help="faults with the right cause in the answer")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(timed(**json.loads(options.child))))
        return
    target = options.out / f"blind-{options.round}.json"
    rows: list[Row] = json.loads(target.read_text())["pairs"] if target.exists() else []
    if options.named is not None:
        for row in rows:
            row["named"] = row["name"] in options.named
        write(target, rows)
        return
    known = {row["name"] for row in rows}
    pairs = [pair for pair in json.loads((options.folder / "pairs.json").read_text()) if pair["name"] not in known]
    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(scored, options.folder, pair, options.budget) for pair in pairs]):
            rows.append(done.result())
            write(target, rows)
            print({key: rows[-1][key] for key in ("name", "cost", "saved", "recovered", "equal", "wall_s")}, flush=True)


def write(target: Path, rows: Sequence[Row]) -> None:
    """Write all rows with their counts."""
    ordered = sorted(rows, key=lambda row: str(row["name"]))
    recovered = [row for row in ordered if row["recovered"]]
    claimed = [row for row in ordered if row["claimed"] is not None]
    counts = {
        "pairs": len(ordered),
        "kinds": len({row["kind"] for row in ordered}),
        "recovered_half": len(recovered),
        "named_of_recovered": sum(bool(row.get("named")) for row in recovered),
        "claims": len(claimed),
        "unconfirmed": [row["name"] for row in claimed if not row["confirmed"]],
        "inside_claimed_interval": sum(row["inside"] for row in claimed),
        "intervals_overlap": sum(row["overlap"] for row in claimed),
        "wrong_outputs": [row["name"] for row in ordered if row["equal"] is False],
        "failed": [row["name"] for row in ordered if row["error"]],
        "wall_s": [statistics.median(row["wall_s"] for row in ordered), max(row["wall_s"] for row in ordered)],
    }
    target.write_text(json.dumps({"counts": counts, "pairs": ordered}, indent=1, allow_nan=False) + "\n")


def scored(folder: Path, pair: Mapping[str, Any], budget_s: float) -> Row:
    """Improve one faulty model, compare outputs, and time the three models."""
    clean, faulty = (folder / f"{pair['name']}-{side}.onnx" for side in ("clean", "faulty"))
    with tempfile.TemporaryDirectory(prefix="dlbricks-blind-") as place:
        better = Path(place) / "improved.onnx"
        command = [sys.executable, "-m", "dlbricks", "improve", str(faulty), "-o", str(better), "--json"]
        command += ["--budget", f"{budget_s:g}s"]
        for name, size in (pair.get("dims") or {}).items():
            command += ["--dim", f"{name}={size}"]
        begun = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall_s = time.monotonic() - begun
        answer = json.loads(done.stdout)["results"][0] if done.stdout.startswith("{") else {}
        files = [faulty, clean, *([better] if better.exists() else [])]
        worst = difference(faulty, better, pair["inputs"]) if better.exists() else None
        ratios = in_processes(files, pair["inputs"])
    cost, *saved = ([1 - process[place] for process in ratios] for place in range(len(files) - 1))
    claimed, claim = answer.get("saving"), answer.get("saving_ci95") or (0.0, 0.0)
    low, high = (min(saved[0]), max(saved[0])) if saved else (0.0, 0.0)
    equal = None if worst is None else worst <= EQUAL
    share = statistics.median(saved[0]) / statistics.median(cost) if saved else 0.0
    return {
        **{key: pair[key] for key in ("name", "kind", "cause")},
        "cost": statistics.median(cost),
        "saved": statistics.median(saved[0]) if saved else 0.0,
        "recovered": bool(share >= HALF and equal),
        "claimed": claimed if saved else None,
        "claimed_ci95": list(claim) if saved else None,
        "confirmed": low > 0,
        "inside": bool(saved and claim[0] <= statistics.median(saved[0]) <= claim[1]),
        "overlap": bool(saved and claim[0] <= high and low <= claim[1]),
        "equal": equal,
        "difference": worst,
        "changes": [f"{change['kind']} x {change['places']}" for change in answer.get("changes", ())],
        "rejected": [f"{change['kind']}: {change['reason']}" for change in answer.get("rejected", ())],
        "untried": answer.get("untried", []),
        "wall_s": wall_s,
        "error": "" if done.returncode in {0, 3} else done.stderr[-500:],
    }


def difference(original: Path, improved: Path, inputs: Mapping[str, Any]) -> float:
    """Return the largest difference of the outputs over their largest value; 1 for other shapes, types or NaN."""
    before, after = session(original), session(improved)
    names = [value.name for value in before.get_outputs()]
    worst = 0.0
    for seed in SEEDS:
        feeds = drawn(inputs, seed)
        for own, other in zip(before.run(names, feeds), after.run(names, feeds), strict=True):
            if own.shape != other.shape or own.dtype != other.dtype:
                return 1.0
            wide, narrow = own.astype(np.float64), other.astype(np.float64)
            if not np.isfinite(narrow).all():
                return 1.0
            worst = max(worst, float(np.abs(wide - narrow).max(initial=0) / max(np.abs(wide).max(initial=0), 1e-30)))
    return worst


def in_processes(files: Sequence[Path], inputs: Mapping[str, Any]) -> list[list[float]]:
    """Return for each process the latencies of all files but the first, as ratios to the first."""
    found = []
    for number in range(PROCESSES):
        asked = json.dumps({"files": [str(file) for file in files], "inputs": inputs, "turn": number})
        command = [sys.executable, __file__, ".", "--round", "0", "--child", asked]
        found.append(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return found


def timed(files: Sequence[str], inputs: Mapping[str, Any], turn: int) -> list[float]:
    """Execute the files alternately in this process; return the medians of their ratios to the first."""
    order = [(turn + place) % len(files) for place in range(len(files))]
    loaded = {place: session(Path(files[place])) for place in order}
    feeds = drawn(inputs, turn)
    taken: list[list[float]] = [[] for _ in files]
    end = time.monotonic() + SECONDS
    for count in range(ALTERNATIONS + 5):
        for place in order if count % 2 else order[::-1]:
            begun = time.process_time()
            loaded[place].run(None, feeds)
            taken[place].append(time.process_time() - begun)
        if count >= 10 and time.monotonic() > end:
            break
    warm = [np.array(times[5:]) for times in taken]
    return [float(np.median(times / warm[0])) for times in warm[1:]]


def session(path: Path) -> ort.InferenceSession:
    """Load a model on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def drawn(inputs: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Draw inputs as their author describes them."""
    random = np.random.default_rng(seed)
    feeds = {}
    for name, about in inputs.items():
        kind = np.dtype(about["dtype"])
        if kind.kind == "b":
            feeds[name] = random.integers(0, 2, about["shape"]).astype(kind)
        elif kind.kind in "iu":
            feeds[name] = random.integers(about["low"], about["high"], about["shape"]).astype(kind)
        elif "low" in about:
            feeds[name] = random.uniform(about["low"], about["high"], about["shape"]).astype(kind)
        else:
            feeds[name] = random.standard_normal(about["shape"]).astype(kind)
    return feeds


if __name__ == "__main__":
    main()
