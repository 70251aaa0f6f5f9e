"""What the commands answer on the committed database of a GPU, number by number.

A change of an answer that is meant is written by running the test with DLBRICKS_WRITE_GOLDENS=1, and read in the diff.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATABASE = ROOT / "docs/results/gpu/measurements-1.db.xz"
GOLDENS = Path(__file__).with_name("goldens")
HERE = ("--system", "47bc9b", "--stack", "8cfbf7", "--dtype", "float32")

COMMANDS = {
    "info": ("db", "info"),
    "estimate": ("estimate", "squeezenet", *HERE, "--cache", "model", "--explain"),
    "estimate-half": (
        "estimate",
        "squeezenet",
        "--stack",
        "11b78d",
        "--dtype",
        "float16",
        "--cache",
        "hot",
        "--layers",
    ),
    "ambiguous": ("estimate", "squeezenet"),
    "compare": ("compare", "squeezenet", "alexnet", "--system", "47bc9b"),
    "advise": ("advise", "alexnet", "--system", "47bc9b", "--device", "cuda", "--backend", "torch"),
    "history": ("history", "squeezenet", "alexnet", *HERE),
    "kernels": ("kernels", "squeezenet", *HERE),
    "analyze": ("analyze", "squeezenet", "alexnet", *HERE),
}
ELSEWHERE = {"wall_s", "path", "page", "database", "dlbricks"}
"""What says when and where an answer was made."""
PROGRESS = re.compile(r"analysing: \d+ of \d+\n")
"""What is said of an analysis that takes longer than a moment."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("goldens")
    (made / "gpu.db").write_bytes(lzma.decompress(DATABASE.read_bytes()))
    return made


@pytest.mark.parametrize("name", COMMANDS)
def test_answers_stay_what_they_are(name, folder, cli, monkeypatch):
    monkeypatch.chdir(folder)
    done = cli(*COMMANDS[name], "--db", "gpu.db", "--json")
    found = {
        "code": done.code,
        "answer": json.loads(done.out) if done.out else None,
        "said": PROGRESS.sub("", done.err),
    }
    golden = GOLDENS / f"{name}.json"

    if "DLBRICKS_WRITE_GOLDENS" in os.environ:
        golden.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")

    assert list(differences(json.loads(golden.read_text()), found)) == []


def differences(golden: Any, found: Any, place: str = "") -> Any:
    """Places where an answer is another one: numbers by more than 1e-9 of themselves."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in sorted(golden.keys() | found.keys()):
            if key not in ELSEWHERE:
                yield from differences(golden.get(key, "absent"), found.get(key, "absent"), f"{place}.{key}")
    elif isinstance(golden, list) and isinstance(found, list) and len(golden) == len(found):
        for number, (one, other) in enumerate(zip(golden, found, strict=True)):
            yield from differences(one, other, f"{place}[{number}]")
    elif isinstance(golden, float) and isinstance(found, float):
        if not math.isclose(golden, found, rel_tol=1e-9):
            yield place, golden, found
    elif golden != found:
        yield place, golden, found
