"""How fast and how lean `dlbricks generate` is (issue 2, 'It must show' 3).

    python benchmarks/generation.py [--repeat 5] [--parts light,peer,start,big,scale] [--json FILE]

Five parts, each of whole processes or of interleaved repetitions, medians with ranges:

light   the nine light models of the onnx wheel, G = 1, process start included: wall time and peak memory
peer    per light model: ours (read, shapes, graph, bricks) beside onnx-tool's shape inference and profile of the
        same file, alternating in one process each
start   per light model: a whole process of ours beside a whole process of onnx-tool, alternating
big     a 4 GB model with external data and a 1.9 GB model with embedded weights (both sparse on disk)
scale   27, 54 and 108 models (the light ones at several batch sizes) with one and with two jobs
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))
MIB = 2**20


def process(arguments: list[str]) -> tuple[float, float]:
    """Run ``dlbricks`` as a whole process; wall seconds and peak MiB (the largest of it and its children)."""
    start = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "dlbricks", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    if status:
        raise SystemExit(f"dlbricks {' '.join(arguments)} ended with status {status}")
    return wall, usage.ru_maxrss / 1024


def spread(values: list[float]) -> dict[str, float]:
    """Median and range."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def light(repeat: int) -> dict[str, Any]:
    """The nine light models as one process."""
    runs = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(process(["generate", *map(str, LIGHT), "-g", "1", "-o", f"{folder}/suite", "--json"]))
    return {"wall_s": spread([wall for wall, _ in runs]), "peak_mib": spread([peak for _, peak in runs])}


def ours(path: Path) -> None:
    """What `generate` does with one model, bricks included."""
    from dlbricks import build_brick, build_graph, sequences
    from dlbricks.models import find_models

    (source,) = find_models([str(path)])
    graph = build_graph(source.skeleton())
    unique = {sequence.key: sequence for sequence in sequences(graph, 1)}
    for sequence in unique.values():
        build_brick(graph, sequence)


def onnx_tool_profile(path: Path) -> None:
    """onnx-tool's shape inference and profile."""
    import onnx_tool

    with contextlib.redirect_stdout(io.StringIO()):
        model = onnx_tool.Model(str(path))
        model.graph.shape_infer()
        model.graph.profile()


def peer(repeat: int) -> dict[str, Any]:
    """Ours beside onnx-tool, alternating; the first round is not counted."""
    result = {}
    for path in LIGHT:
        times: dict[str, list[float]] = {"dlbricks_ms": [], "onnx_tool_ms": []}
        tasks: list[tuple[str, Callable[[Path], None]]] = [("dlbricks_ms", ours), ("onnx_tool_ms", onnx_tool_profile)]
        for turn in range(repeat + 1):
            for name, task in tasks:
                start = time.perf_counter()
                task(path)
                if turn:
                    times[name].append((time.perf_counter() - start) * 1e3)
        ratios = [a / b for a, b in zip(times["dlbricks_ms"], times["onnx_tool_ms"], strict=True)]
        result[path.stem] = {name: spread(values) for name, values in times.items()} | {"ratio": spread(ratios)}
    return result


def start(repeat: int) -> dict[str, Any]:
    """One model as a whole process, alternating with a whole process of onnx-tool."""
    script = (
        "import contextlib, io, sys, onnx_tool\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    model = onnx_tool.Model(sys.argv[1]); model.graph.shape_infer(); model.graph.profile()"
    )
    result = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in LIGHT:
            times: dict[str, list[float]] = {"dlbricks_s": [], "onnx_tool_s": []}
            for _ in range(repeat):
                times["dlbricks_s"].append(process(["generate", str(path), "-o", f"{folder}/s", "--json"])[0])
                begun = time.perf_counter()
                subprocess.run([sys.executable, "-c", script, str(path)], check=True)
                times["onnx_tool_s"].append(time.perf_counter() - begun)
            ratios = [a / b for a, b in zip(*times.values(), strict=True)]
            result[path.stem] = {name: spread(values) for name, values in times.items()} | {"ratio": spread(ratios)}
    return result


def chain(layers: int, width: int) -> tuple[onnx.ModelProto, list[TensorProto]]:
    """A chain of MatMul and Relu with square weights, and its weights without payload."""
    nodes, weights = [], []
    for index in range(layers):
        weight = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[width, width])
        weights.append(weight)
        nodes.append(helper.make_node("MatMul", [f"a{index}", f"w{index}"], [f"m{index}"]))
        nodes.append(helper.make_node("Relu", [f"m{index}"], [f"a{index + 1}"]))
    shape = [1, 128, width]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("a0", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(f"a{layers}", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), weights


def write_external(folder: Path, layers: int, width: int) -> Path:
    """The chain with its weights in one external file (sparse)."""
    model, weights = chain(layers, width)
    size = width * width * 4
    for index, weight in enumerate(weights):
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", str(index * size)), ("length", str(size))):
            weight.external_data.add(key=key, value=value)
        model.graph.initializer.append(weight)
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(size * layers)
    path = folder / "external.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def varint(value: int) -> bytes:
    """A protobuf base-128 varint."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


def write_embedded(folder: Path, layers: int, width: int) -> Path:
    """The chain with embedded weights, written on the wire so that the payload stays a hole in the file."""
    model, weights = chain(layers, width)
    size = width * width * 4
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    parts: list[bytes | int] = []  # an int is a hole of that many bytes
    for weight in weights:
        head = weight.SerializeToString() + b"\x4a" + varint(size)  # raw_data = 9
        parts += [b"\x2a" + varint(len(head) + size) + head, size]  # graph.initializer = 5
    total = len(graph) + sum(part if isinstance(part, int) else len(part) for part in parts)
    path = folder / "embedded.onnx"
    with path.open("wb") as file:
        file.write(model.SerializeToString() + b"\x3a" + varint(total) + graph)  # model.graph = 7
        for part in parts:
            if isinstance(part, int):
                file.truncate(file.seek(part, os.SEEK_CUR))
            else:
                file.write(part)
    return path


def big(repeat: int) -> dict[str, Any]:
    """Large models: time and memory of `generate`."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for write, layers in ((write_external, 64), (write_embedded, 30)):
            place = Path(folder) / write.__name__
            place.mkdir()
            path = write(place, layers, 4096)
            runs = [
                process(["generate", str(path), "-g", "1", "-o", f"{folder}/{path.stem}-{turn}", "--json"])
                for turn in range(repeat)
            ]
            result[path.stem] = {
                "weights_gb": layers * 4096 * 4096 * 4 / 1e9,
                "wall_s": spread([wall for wall, _ in runs]),
                "peak_mib": spread([peak for _, peak in runs]),
            }
            shutil.rmtree(place)
    return result


def scale(repeat: int) -> dict[str, Any]:
    """Wall time over the number of models, one and two jobs; every batch size makes bricks of its own."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for batches in (3, 6, 12):
            sizes = ",".join(str(size) for size in range(1, batches + 1))
            walls: dict[int, list[float]] = {1: [], 2: []}
            for _ in range(repeat):
                for jobs, found in walls.items():
                    command = ["generate", *map(str, LIGHT), "--batch", sizes, "-o", f"{folder}/s", "--jobs", str(jobs)]
                    found.append(process([*command, "--json"])[0])
            for jobs, found in walls.items():
                result[f"{batches * len(LIGHT)} models, {jobs} job{'s' * (jobs > 1)}"] = spread(found)
    return result


def main() -> None:
    """Run the parts and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--parts", default="light,peer,start,big,scale")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts: dict[str, Callable[[int], dict[str, Any]]] = {
        "light": light,
        "peer": peer,
        "start": start,
        "big": big,
        "scale": scale,
    }
    figures = {}
    for name in options.parts.split(","):
        figures[name] = parts[name](options.repeat)
        print(f"## {name}")
        for key, value in figures[name].items():
            print(f"{key:32} {json.dumps(value)}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
