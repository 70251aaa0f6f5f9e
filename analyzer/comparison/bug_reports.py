"""Files with which anyone can repeat that a brick became slower: for the bug report to a runtime."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...bricks.suite.brick import signature_of
from ...bricks.suite.suite import Suite
from ...errors import UsageError
from ...generator.machine.system import probe_system
from ...generator.network.export import export_brick
from .difference import Levels, Relation

if TYPE_CHECKING:
    from .runtime_versions import VersionComparison

_SCRIPT = Path(__file__).with_name("reproduce.py.txt")
"""The script; it is no module, since users run it by itself, with two other Pythons."""

_ENDS = 8
"""Characters of a key in the name of a folder."""


@dataclass(frozen=True, slots=True)
class SlowerBrick:
    """A brick that is slower in the other of two versions of ONNX Runtime.

    Attributes:
        key: The brick.
        versions: Requirements of the base and of the other version.
        levels: Latencies and their ratio.
        threads: Threads of the runtime.
    """

    key: str
    versions: tuple[str, str]
    levels: Levels
    threads: int = 1


def write_bug_reports(comparison: VersionComparison, folder: Path) -> list[Path]:
    """Write a folder for each brick that is slower in the other version (``write_bug_report``).

    Args:
        comparison: Result of ``compare_versions``; its suite must exist.
        folder: Folder of the folders; it is created if missing.

    Returns:
        The folders, the largest effect first.

    Raises:
        UsageError: The versions are not those of ONNX Runtime on the CPU.
        SuiteError: A brick is missing.
        OSError: A file cannot be written.
    """
    base, other = comparison.base, comparison.other
    if {base.backend, other.backend} != {"onnxruntime"}:
        raise UsageError("files to reproduce are written for versions of onnxruntime", remedy="leave out --write")
    if comparison.suite is None:
        return []
    slower = [brick for row in comparison.rows for brick in row.bricks if brick.verdict is Relation.SLOWER]
    slower.sort(key=lambda brick: -brick.effect_ms)
    versions, threads = (base.name, other.name), comparison.threads
    unique = {brick.brick.key: SlowerBrick(brick.brick.key, versions, brick.levels, threads) for brick in slower}
    return [write_bug_report(comparison.suite, brick, folder) for brick in unique.values()]


def write_bug_report(suite: Suite, brick: SlowerBrick, folder: Path) -> Path:
    """Write the folder of a brick, and return it.

    It has the brick with seeded weights and its inputs, a script that needs only ONNX Runtime and NumPy, and a report.
    The name of no model is in it.

    Args:
        suite: Suite with the brick.
        brick: The brick.
        folder: Folder of the folder; it is created if missing.

    Raises:
        SuiteError: The brick is missing.
        OSError: A file cannot be written.
    """
    slower = suite.brick(brick.key)
    own = folder / f"{'-'.join(slower.operators)[:40]}-{brick.key[:_ENDS]}"
    own.mkdir(parents=True, exist_ok=True)
    export_brick(slower, own / "brick.onnx", inputs=own / "inputs.npz")
    shutil.copyfile(_SCRIPT, own / "reproduce.py")
    seen, form = brick.levels.difference, signature_of(slower)
    base, other = brick.versions
    low, high = seen.ci95
    report = f"""# {" + ".join(slower.operators)}: {seen.ratio - 1:.0%} slower in {other} than in {base}

| | |
|---|---|
| processor | {probe_system().cpu} |
| threads | {brick.threads} |
| {base} | {brick.levels.before_ms:.4f} ms |
| {other} | {brick.levels.after_ms:.4f} ms |
| ratio | {seen.ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}, over fresh pairs of processes |
| inputs | {form.inputs} |
| weights | {form.weights or "none"} |
| outputs | {form.outputs} |

`brick.onnx` has random weights. To repeat it:

    python -m venv old && old/bin/pip install '{base}' numpy
    python -m venv new && new/bin/pip install '{other}' numpy
    python reproduce.py old/bin/python new/bin/python 6 {brick.threads}
"""
    (own / "REPORT.md").write_text(report)
    return own
