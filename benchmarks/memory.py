"""Peak memory of models as dlbricks measures it, against a hand-written script under ``/usr/bin/time``.

    python benchmarks/memory.py MODEL... | --list FILES.tsv

The script loads a model in ONNX Runtime with default options on one thread and executes it fifty times; the system
reports its largest resident memory. Inputs are NumPy arrays of ones. Written under ``--out``: ``memory.json``.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from dlbricks.generator.measurement.alone import Alone, run_alone
from dlbricks.generator.measurement.settings import MeasurementSettings
from dlbricks.models import find_models
from figures import parser, percent, write
from improved import add_files, files

_SCRIPT = """
import sys
import numpy as np
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
kinds = {"float": "float32", "int64": "int64", "int32": "int32", "bool": "bool", "double": "float64"}
feeds = {value.name: np.ones(value.shape, kinds[value.type[7:-1]]) for value in session.get_inputs()}
for _ in range(50):
    session.run(None, feeds)
"""

_REPEATS = 3


def main() -> None:
    """Measure each model both ways."""
    arguments = parser(__doc__)
    add_files(arguments)
    options = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="dlbricks-memory-") as name:
        for number, (model, dims, _) in enumerate(files(options)):
            (source,) = find_models([model], dims=dims or None)
            path = Path(name) / f"{number}.onnx"
            onnx.save(onnx.load(source.runnable(Path(name)).path), path)
            (fixed,) = find_models([path])
            (ours,) = run_alone([fixed], MeasurementSettings())
            if not isinstance(ours, Alone):
                raise ours
            theirs = statistics.median(_by_time(path) for _ in range(_REPEATS))
            peak = ours.peak_bytes
            rows.append(
                {"model": source.name, "peak_mb": peak / 1e6, "by_time_mb": theirs / 1e6, "ratio": peak / theirs}
            )
            path.unlink()
    apart = [abs(row["ratio"] - 1) for row in rows]
    text = "\n".join(
        f"{row['model']:40} {row['peak_mb']:8.1f} {row['by_time_mb']:8.1f} {row['ratio']:.3f}" for row in rows
    )
    write(options.out / "memory.json", {"rows": rows}, f"{text}\nat most {percent(max(apart))} apart")


def _by_time(path: Path) -> float:
    """Return the largest resident memory of the script in bytes."""
    command = ["/usr/bin/time", "-v", sys.executable, "-c", _SCRIPT, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (kilobytes,) = re.findall(r"Maximum resident set size \(kbytes\): (\d+)", said)
    return int(kilobytes) * 1024.0


if __name__ == "__main__":
    main()
