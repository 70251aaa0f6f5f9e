"""Many processes that bring the same and other measurements into one database at once."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys

import pytest
from dlbricks.db import Store, Transferred, merge

from .conftest import content

_MERGE = """
import dataclasses, json, sys
from dlbricks.db import Store, merge
target, *sources = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
done = []
for source in sources:
    with Store.open(target) as store:
        done.append(dataclasses.asdict(merge(store, source)))
print(json.dumps(done), flush=True)
"""

_MEASURE = """
import dataclasses, json, sys, uuid
from dlbricks.db import Block, Store
from dlbricks.db.values import Identity
from dlbricks.db.store import OpenedMeasurement
target, source, node = sys.argv[1:]
with Store.open(source, read_only=True) as given:
    ours, systems, stacks = given.measurements(variant=None), given.systems(), given.stacks()
    run = dataclasses.replace(given.runs()[0], id=str(uuid.uuid4()), node=node)
print("ready", flush=True)
sys.stdin.readline()
with Store.open(target) as store:
    store.put_system(systems[run.system])
    store.put_stack(stacks[run.stack])
    store.begin_run(run)
    for start in range(0, len(ours), 20):
        made = [dataclasses.replace(one, id=str(uuid.uuid4()), run=run.id) for one in ours[start:start + 20][::-1]]
        opened = [OpenedMeasurement(one.id, one.run, one.identity, one.unroll) for one in made]
        store.add_session(opened, [(one.id, Block(0, 0, ((1000, 1),) * 24)) for one in made])
        store.finish(*made)
print(json.dumps(len(ours)), flush=True)
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that waits for ``go`` when it has loaded everything."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", script, *map(str, arguments)], text=True, **pipes)


def go(*processes: subprocess.Popen[str]) -> list[object]:
    """Let them run all at once; what each said at its end."""
    for process in processes:
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return [json.loads(out) for out, _ in said]


@pytest.fixture
def sources(tmp_path, furnish, block):
    """Databases of three equal machines: each measured the same bricks, and holds what the one before had by then."""
    made = []
    for number in range(3):
        bench = furnish(tmp_path / f"source{number}.db")
        if made:
            merge(bench.store, made[-1].path)
        names = list(range(120))
        random.Random(number).shuffle(names)
        bench.store.add((bench.measurement(name), (block(0, 0), block(1, 0))) for name in names)
        bench.store.add_failure(bench.failure(f"failed{number}"))
        bench.store.end_run(bench.run.id, after={"load_1m": 1.0}, finished="2026-11-21T04:00:00Z")
        made.append(bench)
    return [bench.path for bench in made]


@pytest.fixture
def expected(tmp_path, sources) -> tuple[object, ...]:
    """What a target holds after one process merged one source after the other."""
    with Store.open(tmp_path / "expected.db") as store:
        for source in sources:
            merge(store, source)
        return content(store)


@pytest.mark.slow
def test_processes_that_merge_at_once_lose_and_double_nothing(home, sources, expected, tmp_path):
    target = home(tmp_path / "target.db")

    done = go(*[start(_MERGE, target, *random.Random(i).sample(sources * 2, 6)) for i in range(4)])

    with Store.open(target) as store:
        assert content(store) == expected
        assert store.info()["counts"] | {"measurements": 360, "blocks": 720, "failures": 3} == store.info()["counts"]
    # Each row was new to one of them.
    together = [sum(one[field.name] for each in done for one in each) for field in dataclasses.fields(Transferred)]
    assert together == [1, 1, 3, 360, 720, 3, 0, 0]


def test_nodes_that_measure_the_same_bricks_at_once(home, sources, tmp_path):
    """Equal machines with names: each has open samples of its own, and neither waits for the other in a circle."""
    target = home(tmp_path / "target.db")

    done = go(*[start(_MEASURE, target, sources[0], node) for node in ("alpha", "beta", "gamma")])

    assert done == [120] * 3
    with Store.open(target) as store:
        assert [len(store.measurements(node=node)) for node in ("alpha", "beta", "gamma")] == [120] * 3
        assert store.info()["counts"] | {"measurements": 360, "blocks": 360, "open": 0} == store.info()["counts"]
