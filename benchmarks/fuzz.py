"""Damaged models, suites and databases, thousands of them: every one ends in an answer or in one clear line.

    python benchmarks/fuzz.py --cases 10000 [--seed 0] [--out docs/results]
    python benchmarks/fuzz.py --only model/1234 [--keep FOLDER]

Each case damages a copy of something intact (``fuzzing/subjects.py``) by a seeded generator (``fuzzing/damage.py``) and
calls a command on it, in a process with limits of memory, file size and time (``fuzzing/process.py``). What must hold:
no traceback and no report of an unforeseen exception, an exit code that is documented, no signal, no more memory and
time than allowed, no file written outside the case's folder and the temporary one, nothing left in the latter, and no
secret outside read or repeated: files of external data may not lead there. ``fuzz.json`` and ``.md`` say what was run.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process with threads must not fork
sys.path.insert(0, str(Path(__file__).parent))

from fuzzing.damage import DATABASES, MODELS, SUITES
from fuzzing.process import Ended, Limits, call, preload
from fuzzing.subjects import CANARY, Subjects, prepare

__all__ = ["Case", "Finding", "fuzz", "main"]

CODES = frozenset({0, 1, 2, 3, 4})
"""Exit codes of the command line (docs/cli.md)."""

_SHARES = {"model": 0.7, "suite": 0.15, "database": 0.15}
_ASKING = 0.05
"""Share of the cases in which a worker may be asked for shapes: with it a case takes twenty times as long."""
_WAYS = {"model": MODELS, "suite": SUITES, "database": DATABASES}


@dataclass(frozen=True, slots=True)
class Case:
    """One damaged copy and the command that is called on it.

    Attributes:
        name: Kind and number; with the seed it is all that it takes to make the case again.
        kind: ``model``, ``suite`` or ``database``.
        damage: How it was damaged.
        command: What was called.
        asks: Whether a worker finds shapes that inference does not.
    """

    name: str
    kind: str
    damage: str
    command: tuple[str, ...]
    asks: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that did not end as it must.

    Attributes:
        case: The case.
        what: In which way.
        detail: The line that says it.
    """

    case: Case
    what: str
    detail: str


def make(name: str, seed: str, subjects: Subjects, folder: Path) -> Case:
    """Make a case: its damaged copy lies in ``folder/case``."""
    kind = name.partition("/")[0]
    rng = random.Random(f"{seed} {name}")  # cases, not secrets
    here, outside = folder / "case", folder / "outside"
    here.mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.bin").write_bytes(CANARY * 400)
    (here / "link.bin").symlink_to("../outside/secret.bin")
    (here / "linked").symlink_to("../outside")
    shutil.copyfile(subjects.models[0].parent / "weights.bin", here / "weights.bin")
    ways = _WAYS[kind]
    way = rng.choice(list(ways))
    source = rng.choice(subjects.models)
    model, suite, database = here / "model.onnx", here / "suite", here / "kept.db"
    shutil.copyfile(source if kind == "model" else subjects.models[0], model)
    command: Sequence[str]
    if kind == "model":
        ways[way](model, rng)
        command = _on_model(rng)
    elif kind == "suite":
        shutil.copytree(subjects.suite, suite)
        ways[way](suite, rng)
        key = rng.choice([path.stem for path in subjects.suite.rglob("*.onnx")])
        choices = (
            ["run", "suite", "--dry-run", "--db", "new.db"],
            ["brick", "list", "suite"],
            ["brick", "show", key, "--suite", "suite"],
            ["brick", "export", key, "--suite", "suite", "-o", "brick.onnx"],
        )
        command = rng.choice(choices)
    else:
        shutil.copyfile(subjects.database, database)
        ways[way](database, rng)
        command = rng.choice(_ON_DATABASE)
    return Case(name, kind, way, tuple(command), asks=rng.random() < _ASKING)


_ON_DATABASE = (
    ["db", "info", "--db", "kept.db"],
    ["estimate", "model.onnx", "-g", "2", "--db", "kept.db", "--explain"],
    ["estimate", "model.onnx", "--db", "kept.db"],
    ["db", "export", "--db", "kept.db", "-o", "export.db"],
    ["db", "merge", "kept.db", "--db", "new.db"],
    ["db", "upgrade", "--db", "kept.db"],
    ["history", "model.onnx", "--db", "kept.db", "--runs"],
    ["compare", "model.onnx", "-g", "2", "--db", "kept.db"],
    ["kernels", "model.onnx", "--db", "kept.db"],
)


def _on_model(rng: random.Random) -> list[str]:
    control: list[str] = []
    if rng.random() < 0.6:
        control += ["--branch", rng.choice(("then", "else"))]
    if rng.random() < 0.6:
        control += ["--trip", rng.choice(("0", "2", "5", "2147483647"))]
    if rng.random() < 0.01:
        control = ["--branch", "observed"]
    if rng.random() < 0.15:
        return ["estimate", "model.onnx", "--db", "new.db", *control]
    if rng.random() < 0.05:
        return ["models", "export", "model.onnx", "-o", "out.onnx"]
    graph = ["--graph", rng.choice(("fused", "runtime"))] if rng.random() < 0.01 else []
    shape = rng.choice(([], [], ["--overlap"], ["--connected"], ["--batch", "2"], ["--dim", "N=3"], ["--annotate"]))
    return ["generate", "model.onnx", "-g", rng.choice(("1", "2", "4")), "-o", "suite", *shape, *control, *graph]


def judge(case: Case, ended: Ended, folder: Path, limits: Limits) -> list[Finding]:
    """What is wrong with how a case ended."""
    found: list[tuple[str, str]] = []
    text = ended.out + ended.err
    if "Traceback (most recent call last)" in text:
        found.append(("traceback", _last(ended.err)))
    if "please report this" in text:
        line = next(line for line in text.splitlines() if "please report this" in line)
        found.append(("unforeseen", line[:300]))
    if ended.late:
        found.append(("late", f"still running after {limits.seconds:g} s"))
    elif ended.signal is not None:
        found.append(("signal", f"signal {ended.signal}: {_last(ended.err)}"))
    elif ended.code not in CODES:
        found.append(("exit code", f"{ended.code}: {_last(ended.err)}"))
    if ended.resident_bytes > limits.resident_bytes:
        found.append(("memory", f"{ended.resident_bytes >> 20} MiB"))
    found += [("touched", one) for one in sorted(set(ended.touched))[:3]]
    secret = folder / "outside" / "secret.bin"
    if secret.read_bytes() != CANARY * 400 or len(list((folder / "outside").iterdir())) != 1:
        found.append(("touched", "the folder outside has changed"))
    if any((folder / "home").iterdir()):
        found.append(("touched", "something lies in the home folder"))
    left = [path.name for path in (folder / "tmp").iterdir() if path.is_dir() or not path.name.endswith(".lock")]
    if left and not ended.late and ended.signal is None:
        found.append(("left behind", left[0]))
    if _leaked(folder, text):
        found.append(("leak", "the secret outside stands in what it wrote"))
    return [Finding(case, what, re.sub(r"0x[0-9a-f]+", "0x", detail)) for what, detail in found]


def _last(text: str) -> str:
    """The last line, with the place in the package that it comes from."""
    lines = text.strip().splitlines()
    places = re.findall(r'File "[^"]*/((?:\w+/)*\w+\.py)", line (\d+)', text)
    return f"{lines[-1][:200] if lines else ''}{f' ({places[-1][0]}:{places[-1][1]})' if places else ''}"


def _leaked(folder: Path, text: str) -> bool:
    phrase = CANARY[:20]
    if phrase in text.encode(errors="replace"):
        return True
    files = (path for path in (folder / "case").rglob("*") if path.is_file() and not path.is_symlink())
    return any(
        phrase in path.read_bytes() for path in files if "linked" not in path.parts and path.stat().st_size < 64 << 20
    )


def fuzz(
    names: Sequence[str],
    *,
    seed: str,
    subjects: Subjects,
    folder: Path,
    limits: Limits,
    keep: bool = False,
    show: bool = False,
    seconds: float = float("inf"),
) -> tuple[dict[str, Any], list[Finding]]:
    """Run cases.

    Args:
        names: Of the cases.
        seed: Of all of them.
        subjects: What is damaged.
        folder: Where cases are made, each in a folder of its own that is removed afterwards.
        limits: Of each.
        keep: Leave the folders of cases that something was found in.
        show: Print what was found as it is found.
        seconds: Begin no case after this time.

    Returns:
        Counts by kind and damage, and what was found.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    found: list[Finding] = []
    longest, largest = 0.0, 0
    begun = time.monotonic()
    for number, name in enumerate(names):
        if time.monotonic() - begun > seconds:
            break
        place = folder / name.replace("/", "-")
        case = make(name, seed, subjects, place)
        ended = call(case.command, place, limits, asks=case.asks)
        here = judge(case, ended, place, limits)
        counts[f"{case.kind}: {case.damage}"]["cases"] += 1
        counts[f"{case.kind}: {case.damage}"][f"exit {ended.code if ended.signal is None else 'by signal'}"] += 1
        longest, largest = max(longest, ended.seconds), max(largest, ended.resident_bytes)
        found += here
        if show and here:
            for one in here:
                print(f"{name} {case.damage} {' '.join(case.command)}\n    {one.what}: {one.detail}", flush=True)
        if show and number % 500 == 499:
            print(f"{number + 1} cases, {len(found)} findings", flush=True)
        if not (keep and here):
            shutil.rmtree(place, ignore_errors=True)
    totals = {"by_damage": {key: dict(value) for key, value in sorted(counts.items())}}
    return totals | {"longest_s": round(longest, 2), "most_memory_mib": largest >> 20}, found


def case_names(count: int, seed: str) -> list[str]:
    """Names of cases, kinds mixed by their shares."""
    rng = random.Random(seed)  # cases, not secrets
    kinds = rng.choices(list(_SHARES), weights=list(_SHARES.values()), k=count)
    return [f"{kind}/{number}" for number, kind in enumerate(kinds)]


def signature(finding: Finding) -> str:
    """What findings of one cause have in common."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|\b\d+\b", "_", finding.detail)
    return hashlib.sha256(f"{finding.case.kind} {finding.what} {plain}".encode()).hexdigest()[:8]


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--first", type=int, default=0, help="number of the first case to run, of those of --cases")
    parser.add_argument("--only", help="one case by its name")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no case after this time")
    parser.add_argument("--fast", action="store_true", help="without the models that come with the onnx wheel")
    parser.add_argument("--keep", type=Path, help="keep the folders of cases that something was found in here")
    parser.add_argument("--out", type=Path, help="write fuzz.json and fuzz.md here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dlbricks-fuzz-") as place:
        folder = options.keep or Path(place)
        folder.mkdir(parents=True, exist_ok=True)
        subjects = prepare(Path(place) / "subjects", corpus=not options.fast)
        preload()
        names = [options.only] if options.only else case_names(options.cases, options.seed)[options.first :]
        begun = time.monotonic()
        limits = Limits()
        totals, found = fuzz(
            names,
            seed=options.seed,
            subjects=subjects,
            folder=folder,
            limits=limits,
            keep=options.keep is not None,
            show=True,
            seconds=60 * options.minutes,
        )
        names = names[: sum(count["cases"] for count in totals["by_damage"].values())]
        wall_s = time.monotonic() - begun
    by_cause: dict[str, list[Finding]] = defaultdict(list)
    for one in found:
        by_cause[signature(one)].append(one)
    print(f"{len(names)} cases in {wall_s:.0f} s: {len(found)} findings of {len(by_cause)} causes; {totals}")
    if options.out is not None:
        _write(options.out, options.seed, names, wall_s, totals, by_cause, limits)
    sys.exit(1 if found else 0)


def _write(
    out: Path,
    seed: str,
    names: Sequence[str],
    wall_s: float,
    totals: dict[str, Any],
    by_cause: dict[str, list[Finding]],
    limits: Limits,
) -> None:
    from dlbricks.version import __version__
    from facts import write as write_figures

    causes = [
        {"what": ones[0].what, "cases": len(ones), "first": ones[0].case.name, "detail": ones[0].detail}
        for ones in by_cause.values()
    ]
    found = sum(len(ones) for ones in by_cause.values())
    lines = [
        "# Damaged models, suites and databases",
        "",
        f"`python benchmarks/fuzz.py --cases {len(names)} --seed {seed}`, dlbricks {__version__}:",
        f"{len(names)} cases in {wall_s:.0f} s, {found} findings.",
        f"The longest took {totals['longest_s']} s, the largest",
        f"{totals['most_memory_mib']} MiB (limit {limits.resident_bytes >> 20} MiB).",
        "",
        "| damage | cases | exit codes |",
        "|---|---|---|",
    ]
    for key, count in totals["by_damage"].items():
        codes = [f"{word.removeprefix('exit ')}: {number}" for word, number in sorted(count.items()) if word != "cases"]
        lines.append(f"| {key} | {count['cases']} | {', '.join(codes)} |")
    if causes:
        lines += ["", "Findings, by cause:", ""]
        lines += [f"- {one['what']} ({one['cases']}, first {one['first']}): {one['detail']}" for one in causes]
    figures = {
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dlbricks": __version__,
        "cases": len(names),
        "seed": seed,
        "wall_s": round(wall_s, 1),
        "limits": asdict(limits),
        **totals,
        "findings": causes,
    }
    write_figures(out, "fuzz", figures, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
