"""Packed networks beside the models that their bricks come from, in one run: a trial of how the next core will measure.

Per model all unique bricks stand once in a packed network (``dlbricks.generator.network.packed``); pack and model are
executed in turn, and the runtime's profile tells the time of each node. Printed are the sum over the model's bricks
against the model, by means without the slowest twentieth and at low quantiles of both, what a pass costs, and how long
it took to build. Nothing is stored.

    python benchmarks/packed.py --graph fused squeezenet resnet50 bert_base
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from dlbricks.bricks.suite.suite import Suite
from dlbricks.generator.backends.base import Executable, Settings
from dlbricks.generator.backends.onnxruntime.backend import OrtBackend
from dlbricks.generator.backends.onnxruntime.profile import node_times_us, read_profile
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.system import probe_system
from dlbricks.generator.network.export import export_model
from dlbricks.generator.network.network import Network, file_network, read_network, synthetic_network
from dlbricks.generator.network.packed import Member, Packed, grouped, pack, parted, united
from dlbricks.models import find_models

BACKEND = OrtBackend()
EDGES = {"ReorderInput", "ReorderOutput"}
STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: float(np.mean(np.sort(values)[: max(1, int(0.95 * len(values)))])),
    "p10": lambda values: float(np.quantile(values, 0.1)),
    "p25": lambda values: float(np.quantile(values, 0.25)),
}


def main() -> None:
    """Read the command line, and print a line per model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="models of the zoo")
    parser.add_argument("--graph", choices=("source", "fused", "runtime"), default="fused")
    parser.add_argument("--rounds", type=int, default=12, help="of two executions of the model and two passes")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    settings = Settings("cpu", 1, BACKEND.resolve("cpu", {}), (0,))
    BACKEND.setup(settings)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            rows.append(compared(name, options.graph, options.rounds, settings, Path(folder)))
            print(" ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    errors = [abs(row["ratio_mean"] - 1) for row in rows]
    print(f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, {len(rows)} models")
    if options.json:
        machine, stack = probe_system(), BACKEND.stack("cpu", settings.options)
        facts = {
            "graph": options.graph,
            "cpu": machine.cpu,
            "versions": dict(stack.versions),
            "threads": settings.threads,
            "rounds": options.rounds,
            "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        }
        options.json.write_text(json.dumps({**facts, "results": rows}, indent=1) + "\n")


def compared(name: str, graph: str, rounds: int, settings: Settings, folder: Path) -> dict[str, Any]:
    """One model beside the packs of its bricks."""
    sources = find_models([name])
    suite = generate(sources, granularity=1, out=folder / "suite", graph=graph, annotate=True).suite
    assert suite is not None
    export_model(sources[0], folder / "model.onnx", force=True)
    begin = time.perf_counter()
    networks = executed(suite, graph, settings)
    keys = list(networks)
    packs: list[tuple[list[str], Packed, Executable]] = []
    for number, places in enumerate(grouped([networks[key] for key in keys])):
        random.Random(number).shuffle(places)
        chosen = [keys[place] for place in places]
        packed = pack([Member(networks[key], uncounted=edges(networks[key], graph)) for key in chosen])
        packs.append((chosen, packed, profiled(packed, settings, folder / f"pack{number}")))
    build_s = time.perf_counter() - begin
    model = BACKEND.prepare(file_network(folder / "model.onnx", overrides={}), settings)
    executions, passes = interleaved(model, [executable for _, _, executable in packs], rounds)
    model.close()
    occurrences = next(iter((suite.annotations or {}).values()))
    sums = dict.fromkeys(STATISTICS, 0.0)
    for number, (chosen, packed, executable) in enumerate(packs):
        executable.close()
        times = node_times_us(read_profile(folder / f"pack{number}"))[2:]
        for file in (folder / f"pack{number}").iterdir():
            file.unlink()
        for statistic, of in STATISTICS.items():
            clock = of([one[idle] for one in times for idle in packed.idle])
            sums[statistic] += sum(
                max(0.0, of([one[node] for one in times]) - clock) * occurrences.get(chosen[member], 0) / 1e3
                for node, member in packed.nodes.items()
            )
    missing = set(keys).difference(*(chosen for chosen, _, _ in packs))
    return {
        "name": name,
        "bricks": len(keys),
        "alone": len(missing),
        "model_ms": round(statistics.median(executions), 2),
        "pass_ms": round(statistics.median(passes), 2),
        "build_s": round(build_s, 2),
        **{f"ratio_{statistic}": round(sums[statistic] / of(executions), 3) for statistic, of in STATISTICS.items()},
    }


def executed(suite: Suite, graph: str, settings: Settings) -> dict[str, Network]:
    """The bricks of a suite in the form that the runtime executes, optimised together."""
    networks = {key: synthetic_network(read_network(suite.brick_path(key))) for key in suite.keys}
    if graph == "runtime":
        return {key: replace(network, as_is=True) for key, network in networks.items()}
    keys = list(networks)
    for places in grouped([networks[key] for key in keys]):
        chosen = [networks[keys[place]] for place in places]
        found = parted(BACKEND.optimised(united(chosen), settings), chosen)
        networks.update(zip((keys[place] for place in places), found, strict=True))
    return networks


def edges(network: Network, graph: str) -> list[int]:
    """Places of the layout changes that a brick has at its edges and a model has not."""
    assert network.model is not None
    outside = {*network.feeds, *network.outputs}
    return [
        place
        for place, node in enumerate(network.model.graph.node)
        if graph != "runtime" and node.op_type in EDGES and outside.intersection((node.input[0], node.output[0]))
    ]


def profiled(packed: Packed, settings: Settings, folder: Path) -> Executable:
    """A session that profiles itself into a folder."""
    folder.mkdir(exist_ok=True)
    return BACKEND.prepare_profiled(packed.network, settings, folder)


def interleaved(model: Executable, packs: Sequence[Executable], rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each execution of the model, and of each pass over all packs, in turn."""
    executions, passes = [], []
    for turn in range(rounds + 1):
        for _ in range(2):
            begin = time.perf_counter_ns()
            model.run()
            between = time.perf_counter_ns()
            for executable in packs:
                executable.run()
            if turn:  # the first round warms up
                executions.append((between - begin) / 1e6)
                passes.append((time.perf_counter_ns() - between) / 1e6)
    return executions, passes


if __name__ == "__main__":
    main()
