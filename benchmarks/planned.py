"""How many bricks of the H100's twelve models cuDNN plans, without a GPU: ``docs/results/gpu/planned.json``.

    python benchmarks/planned.py [--batch 1 16] [--out FOLDER]

It needs cuDNN's wheels and gcc: a stand-in for the driver is compiled (``tests/plugins/stub_driver.py``), and the
script starts itself again with it. Counted are bricks, those that can be translated, and those with a plan in any
layout, with the reason of the others: of the translation (``not translated``) or of cuDNN.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.planning.library_plans import BrickPlans, library_plans
from dlbricks.models import find_models
from dlbricks.models.zoo import names
from figures import parser, write

_STARTED = "DLBRICKS_STAND_IN"
_DTYPES = ("float16", "float32")


def main() -> None:
    """Plan all bricks."""
    arguments = parser(__doc__)
    arguments.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    options = arguments.parse_args()
    if _STARTED not in os.environ:
        sys.exit(_with_stand_in())
    models = [entry.name for entry in names() if entry.extra is None]
    rows, versions = [], {}
    for batch in options.batch:
        with tempfile.TemporaryDirectory(prefix="dlbricks-planned-") as folder:
            suite = generate(find_models(models, batches=[batch]), out=Path(folder) / "suite", granularity=1).suite
            assert suite is not None
            report = library_plans(suite, gpu="h100", dtypes=_DTYPES)
        versions = dict(report.versions)
        rows += [
            {"batch": batch, "dtype": dtype, **_counted(row for row in report.rows if row.dtype == dtype)}
            for dtype in _DTYPES
        ]
    told = "; ".join(f"{row['dtype']}, batch {row['batch']}: {row['planned']} of {row['translated']}" for row in rows)
    write(options.out / "gpu/planned.json", {"models": models, "versions": versions, "rows": rows}, told)


def _counted(rows: Iterable[BrickPlans]) -> dict[str, Any]:
    """Count the bricks of a precision; a brick is planned if it is in any layout."""
    by_brick: dict[str, list[BrickPlans]] = {}
    for row in rows:
        by_brick.setdefault(row.key, []).append(row)
    planned = [key for key, mine in by_brick.items() if any(row.plans for row in mine)]
    known = [key for key, mine in by_brick.items() if any(row.offer.operations for row in mine)]
    refused: Counter[str] = Counter()
    for key in by_brick.keys() - {*planned}:
        first = by_brick[key][0]
        refused[f"{'+'.join(first.operators)}: {first.offer.reason}"] += 1
    return {
        "bricks": len(by_brick),
        "translated": len(known),
        "planned": len(planned),
        "failed": sum(any(row.failed for row in mine) for mine in by_brick.values()),
        "refused": dict(refused.most_common()),
    }


def _with_stand_in() -> int:
    """Start again with a stand-in for NVIDIA's driver; return the exit code."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests/plugins"))
    from stub_driver import build, library_folder

    libraries = library_folder()
    if libraries is None:
        raise SystemExit("cuDNN is not installed: pip install nvidia-cudnn-cu12 nvidia-cudnn-frontend")
    with tempfile.TemporaryDirectory(prefix="dlbricks-driver-") as folder:
        paths = [build(Path(folder)).parent, *libraries.parents[1].glob("cu*/lib"), os.environ.get("LD_LIBRARY_PATH")]
        environment = {**os.environ, _STARTED: "yes", "LD_LIBRARY_PATH": ":".join(map(str, filter(None, paths)))}
        return subprocess.run([sys.executable, __file__, *sys.argv[1:]], env=environment, check=False).returncode


if __name__ == "__main__":
    main()
