"""Files with which anyone can repeat that a brick became slower: for the bug report to a runtime."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from ...bricks.suite.suite import Suite
from ...errors import UsageError
from ...generator.machine.system import probe_system
from ...generator.network.export import export_brick
from .difference import Relation

if TYPE_CHECKING:
    from .runtime_versions import BrickVersions, VersionComparison

_SCRIPT = Path(__file__).with_name("reproduce.py.txt")
"""The script; it is no module, since users run it by itself, with two other Pythons."""

_ENDS = 8
"""Characters of a key in the name of a folder."""


def write_bug_reports(comparison: VersionComparison, folder: Path) -> list[Path]:
    """Write a folder for each brick that is slower in the other version.

    A folder has the brick with seeded weights and its inputs, a script that needs only ONNX Runtime and NumPy, and a
    report. The name of no model is in it.

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
    slower: dict[str, BrickVersions] = {}
    for row in comparison.rows:
        for brick in row.bricks:
            if brick.verdict is Relation.SLOWER:
                slower.setdefault(brick.brick.key, brick)
    ordered = sorted(slower.values(), key=lambda brick: -brick.effect_ms)
    return [_write(brick, comparison, comparison.suite, folder) for brick in ordered]


def _write(brick: BrickVersions, comparison: VersionComparison, suite: Suite, folder: Path) -> Path:
    key = brick.brick.key
    own = folder / f"{'-'.join(brick.brick.operators)[:40]}-{key[:_ENDS]}"
    own.mkdir(parents=True, exist_ok=True)
    export_brick(suite.brick(key), own / "brick.onnx", inputs=own / "inputs.npz")
    shutil.copyfile(_SCRIPT, own / "reproduce.py")
    (own / "REPORT.md").write_text(_report(brick, comparison))
    return own


def _report(brick: BrickVersions, comparison: VersionComparison) -> str:
    seen, levels, form = brick.levels.difference, brick.levels, brick.brick.form
    base, other = comparison.base.name, comparison.other.name
    operators = " + ".join(brick.brick.operators)
    low, high = seen.ci95
    script = f"reproduce.py old/bin/python new/bin/python 6 {comparison.threads}"
    return f"""# {operators}: {seen.ratio - 1:.0%} slower in {other} than in {base}

| | |
|---|---|
| processor | {probe_system().cpu} |
| threads | {comparison.threads} |
| {base} | {levels.before_ms:.4f} ms |
| {other} | {levels.after_ms:.4f} ms |
| ratio | {seen.ratio:.3f}, 95 % interval {low:.3f} to {high:.3f}, over fresh pairs of processes |
| inputs | {form.inputs} |
| weights | {form.weights or "none"} |
| outputs | {form.outputs} |

`brick.onnx` has random weights. To repeat it:

    python -m venv old && old/bin/pip install '{base}' numpy
    python -m venv new && new/bin/pip install '{other}' numpy
    python {script}
"""
