"""How much longer a decoder's token takes in memory of small pieces: ``docs/results/pieces.json``.

    python benchmarks/pieces.py FILE... [--times 8] [--out FOLDER]     # files of benchmarks/decoders.py

Its loop runs in fresh processes, in turn as the machine's free memory is, and with ``whole_pieces``. The time is that
of a token behind none, the median of one visit. The pages of earlier processes are free again for the next.
"""

from __future__ import annotations

import statistics
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

_WAYS = ("as it is", "whole")


def main() -> None:
    """Measure, print and write."""
    arguments = parser(__doc__)
    arguments.add_argument("files", nargs="+", type=Path)
    arguments.add_argument("--times", type=int, default=8)
    options = arguments.parse_args()
    rows = []
    for file in options.files:
        _, side = sides_of(find_models([file])[0], None)
        name = file.parent.name if file.name == "model.onnx" else file.stem
        rows.append({"name": name, **_measured(side, options.times)})
    result = {"cpu": probe_system().cpu, "threads": 1, "models": rows}
    lines = [[row["name"], *(number(statistics.median(row["ms"][way])) for way in _WAYS)] for row in rows]
    write(options.out / "pieces.json", result, table(("file", *_WAYS), lines))


def _measured(side: Side, times: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {way: [] for way in _WAYS}
    scattered = small_pieces().total
    for _ in range(times):
        for way in _WAYS:
            with whole_pieces() if way == "whole" else nullcontext():
                found[way].append(_token_ms(side))
    return {"scattered_bytes": scattered, "ms": found}


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
