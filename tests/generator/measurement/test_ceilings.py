"""Ceilings are measured like anything else, and a rate means work per time of what was measured."""

from __future__ import annotations

import dataclasses
import math

import pytest
from dlbricks.db import Conditions, Measurement, Stop, Store, Subject, System, Verdict
from dlbricks.errors import UsageError
from dlbricks.generator.measurement.ceilings.ceilings import measure_ceilings
from dlbricks.generator.measurement.ceilings.rates import (
    STREAM_SIZES,
    ceiling_names,
    ceiling_work,
    gemm_sizes_on,
    level_of_cache,
    node_ns,
    rate_of,
    stream_sizes,
)
from dlbricks.generator.measurement.ceilings.whole import Whole
from dlbricks.generator.network.network import synthetic_network
from dlbricks.generator.network.reference import (
    CHAIN,
    COPY,
    GEMM,
    OVERHEAD,
    STREAM,
    built_in,
    built_in_key,
)
from dlbricks.generator.progress import Progress, Stage

MIB = 1 << 20
XEON = System("Xeon", "x86_64", 2, 2, (("L1d", 48 << 10), ("L2", 2 * MIB), ("L3", 260 * MIB)), 24)


def measured(median_ns: float, *, min_ns: float | None = None, half_ns: float = 0.0) -> Measurement:
    return Measurement(
        id="1", run="1", subject=Subject.REFERENCE, key="k", system="s", stack="t", conditions=Conditions(1), unroll=1,
        median_ns=median_ns, mean_ns=median_ns, trimmed_mean_ns=median_ns,
        min_ns=median_ns if min_ns is None else min_ns, p90_ns=median_ns, p99_ns=median_ns,
        ci95_ns=(median_ns - half_ns, median_ns + half_ns), samples=10, block_medians_ns=(median_ns,),
        verdict=Verdict.STABLE, stop=Stop.VISITS,
    )  # fmt: skip


def test_ceilings_are_measured_and_stored(tmp_path):
    sizes = (1 * MIB, 2 * MIB)
    with Store.open(tmp_path / "ceilings.db") as store:
        report = measure_ceilings(
            store=store, backend="onnxruntime", options={"optimization": "basic"}, dtype="float32",
            gemm_sizes=(64, 128), sizes=sizes, visits=10, sessions=1, processes=2,
        )  # fmt: skip

        names = [f"{GEMM}64", f"{GEMM}128", *(f"{kind}{size}" for size in sizes for kind in (STREAM, COPY))]
        assert [row.network for row in report.rows] == names
        assert [row.error for row in report.rows] == [None] * 6
        stored = store.measurements(
            subject=Subject.REFERENCE, keys=[built_in_key(name) for name in (*names, OVERHEAD, CHAIN)],
            system=report.system.key, conditions=Conditions(1, "hot", "float32"),
        )  # fmt: skip
        assert len(stored) == 8
        (run,) = store.runs()
        (stack,) = store.stacks().values()
    assert dict(stack.options)["optimization"] == "basic"
    assert {row.stack for row in report.rows} == {stack.key}
    assert (run.id,) == report.runs
    assert run.finished
    for row in report.rows:
        rate, other = (row.flops_s, row.bytes_s) if row.network.startswith(GEMM) else (row.bytes_s, row.flops_s)
        assert other is None
        assert rate is not None
        # Between what no processor is below and what none reaches.
        assert 1e7 < rate.usual <= rate.best < 1e14
        assert rate.ci95[0] <= rate.usual <= rate.ci95[1]


def test_a_precision_that_a_backend_has_not_is_refused(tmp_path):
    with Store.open(tmp_path / "x.db") as store, pytest.raises(UsageError, match="float7"):
        measure_ceilings(store=store, backend="onnxruntime", dtype="float7")


def test_options_without_a_backend_are_refused(tmp_path):
    with Store.open(tmp_path / "x.db") as store, pytest.raises(UsageError, match="--backend"):
        measure_ceilings(store=store, options={"pinning": "off"})


@pytest.mark.parametrize("name", [f"{GEMM}24", f"{STREAM}1200", f"{STREAM}1", f"{COPY}1600", f"{COPY}1"])
def test_work_is_that_of_the_network(name):
    network = synthetic_network(built_in(name))
    shapes = [array.shape for array in network.feeds.values()]
    out = [dim.dim_value for dim in network.model.graph.output[0].type.tensor_type.shape.dim]

    moved = 4 * (sum(map(math.prod, shapes)) + math.prod(out)) + network.weight_bytes

    assert ceiling_work(name)[1] == moved
    assert ceiling_work(name)[0] == (2 * 24**3 if name.startswith(GEMM) else 0)


def test_names_that_no_network_has():
    assert [built_in(name) for name in (GEMM, f"{GEMM}x", f"{STREAM}-1", "@ceiling", "gemm-64")] == [None] * 5


def test_networks_of_other_sizes_have_other_keys():
    names = [CHAIN, OVERHEAD, *ceiling_names(stream_sizes(XEON))]

    assert len({built_in_key(name) for name in names}) == len(names)


def test_streams_go_well_beyond_the_caches_and_not_beyond_the_memory():
    assert stream_sizes(XEON)[0] == 32 << 10
    assert stream_sizes(XEON)[-1] == 1024 * MIB
    assert stream_sizes(dataclasses.replace(XEON, memory_gib=2))[-1] == 128 * MIB
    assert stream_sizes(dataclasses.replace(XEON, cache_bytes=()))[-1] == 256 * MIB
    assert stream_sizes(dataclasses.replace(XEON, memory_gib=0)) == (32 << 10,)


def test_on_a_gpu_sizes_are_the_same_whatever_the_host():
    sizes = stream_sizes(XEON, "cuda")

    assert sizes == tuple(MIB << power for power in range(10))
    assert sizes == stream_sizes(dataclasses.replace(XEON, cache_bytes=(), memory_gib=0), "cuda")
    assert {*sizes} <= {*STREAM_SIZES}  # what is stored is looked up under these
    assert gemm_sizes_on("cpu") == (512, 1024, 2048)
    assert min(gemm_sizes_on("cuda")) >= max(gemm_sizes_on("cpu"))  # smaller ones do not fill it


@pytest.mark.parametrize("kind", [STREAM, COPY])
def test_on_a_gpu_working_sets_are_named_by_their_size(kind):
    named = {
        size: level_of_cache(ceiling_work(f"{kind}{size}")[1], XEON, 1, "cuda") for size in stream_sizes(XEON, "cuda")
    }

    assert named == {size: f"{size // MIB} MiB" for size in named}
    assert level_of_cache(1000, XEON, 1, "cuda") == "1 MiB"


def test_other_precisions_have_products_only():
    assert ceiling_names((MIB,), dtype="bfloat16", gemm_sizes=(64,)) == [f"{GEMM}64"]


def test_private_caches_count_as_often_as_there_are_threads():
    assert [level_of_cache(size, XEON, 1) for size in (1, 48 << 10, 3 * MIB, 261 * MIB)] == [
        "L1d",
        "L1d",
        "L3",
        "memory",
    ]
    assert level_of_cache(3 * MIB, XEON, 2) == "L2"
    assert level_of_cache(261 * MIB, XEON, 2) == "memory"
    assert level_of_cache(1, dataclasses.replace(XEON, cache_bytes=()), 1) == "memory"


def test_a_rate_is_of_the_fastest_sample_and_beside_it_of_the_median():
    rate = rate_of(f"{GEMM}10", measured(2000, min_ns=1000, half_ns=500), None)

    assert rate.best == 2.0e9  # 2 x 10 x 10 x 10 FLOPs in 1000 ns
    assert rate.usual == 1.0e9
    assert rate.ci95 == (0.8e9, pytest.approx(2000 / 1500 * 1e9))


def test_a_stream_is_free_of_its_call():
    rate = rate_of(f"{STREAM}12000", measured(3000, min_ns=2500), measured(1000, min_ns=500))

    assert (rate.best, rate.usual) == (6e9, 6e9)


def test_what_a_call_hides_has_no_rate():
    call = measured(1000)

    assert rate_of(f"{STREAM}12000", measured(1100), call) is None
    assert rate_of(f"{STREAM}12000", measured(900), call) is None
    assert rate_of(f"{STREAM}12000", measured(9000), None) is None


def test_a_node_is_what_a_chain_takes_beyond_a_call():
    assert node_ns(measured(2100), measured(1000)) == 100
    assert node_ns(measured(900), measured(1000)) == 0
    assert node_ns(None, measured(1000)) is None


def test_several_measurements_are_counted_as_one() -> None:
    told: list[Progress] = []
    whole = Whole(told.append, [10.0, 20.0, 30.0])

    for number in range(3):
        part = whole.part(number)
        assert part is not None
        part(Progress(Stage.SAMPLE, 24, 48, "gemm", 5.0, 4.0))

    assert [(step.done, step.total, step.label) for step in told] == [
        (24, 144, "1/3 gemm"), (72, 144, "2/3 gemm"), (120, 144, "3/3 gemm"),
    ]  # fmt: skip
    assert [step.remaining_s for step in told] == [54.0, 34.0, 4.0]
    assert Whole(None, [1.0]).part(0) is None
