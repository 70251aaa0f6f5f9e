"""How much longer a decoder's token takes in memory of small pieces: ``docs/results/pieces.json``.

    python benchmarks/pieces.py FILE... [--times 6] [--out FOLDER]     # files of benchmarks/decoders.py

Another program leaves 1.5 GiB of free memory in single pages: it touches them in random order, and ends. Then the loop
of the decoder runs in a fresh process, on memory as it is or within ``whole_pieces``, in turn. The time is that of a
token behind none.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dlbricks.analyzer.decoding.beside import Loop, LoopTask, running_loop
from dlbricks.analyzer.decoding.lengths import Side, sides_of
from dlbricks.analyzer.setups import set_up
from dlbricks.generator.machine.free_memory import small_pieces, whole_pieces
from dlbricks.generator.machine.system import probe_system
from dlbricks.models import find_models
from figures import number, parser, table, write
from tokens import named

_SCATTERING = """
import mmap, numpy
size = 3 << 29
memory = mmap.mmap(-1, size)
memory.madvise(mmap.MADV_NOHUGEPAGE)
numpy.frombuffer(memory, numpy.uint8)[4096 * numpy.random.default_rng(0).permutation(size // 4096)] = 1
"""
"""Another program."""

_WAYS = ("scattered", "whole")


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("files", nargs="+", type=Path)
    arguments.add_argument("--times", type=int, default=6)
    options = arguments.parse_args()
    rows = []
    for file in options.files:
        _, side = sides_of(find_models([file])[0], None)
        rows.append({"name": named(file), **_measured(side, options.times)})
    result = {"cpu": probe_system().cpu, "threads": 1, "models": rows}
    lines = [[row["name"], *(number(statistics.median(row["ms"][way])) for way in _WAYS)] for row in rows]
    write(options.out / "pieces.json", result, table(("file", *_WAYS), lines))


def _measured(side: Side, times: int) -> dict[str, Any]:
    weights = 0 if side.decoder is None else side.decoder.weight_bytes
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    small: list[int] = []
    for number_of_time in range(times):
        for way in _WAYS if number_of_time % 2 else _WAYS[::-1]:
            subprocess.run([sys.executable, "-c", _SCATTERING], check=True)
            small.append(small_pieces().total)
            with whole_pieces(weights) if way == "whole" else nullcontext():
                found[way].append(_token_ms(side))
    return {"weight_bytes": weights, "small_bytes": small, "ms": found}


def _token_ms(side: Side) -> float:
    """Return the time of a token in a new process."""
    task = LoopTask(0, prompt=False)
    with running_loop(side, set_up(threads=1), [task], None) as loop:
        if not isinstance(loop, Loop):
            raise SystemExit(loop.reason)
        loop.finish(float("inf"))
        return loop.report().times[task].ms


if __name__ == "__main__":
    main()
