"""A rate means work per time of what was measured."""

from __future__ import annotations

import dataclasses
import math

import pytest
from dlbricks.bricks.reference import COPY, GEMM, STREAM, built_in
from dlbricks.db import Conditions, Measurement, Stop, Subject, System
from dlbricks.db.samples.rates import (
    STREAM_SIZES,
    ceiling_names,
    ceiling_work,
    gemm_sizes_on,
    level_of_cache,
    node_ns,
    rate_of,
    stream_sizes,
)
from dlbricks.db.values import Identity
from dlbricks.generator.network.network import synthetic_network
from lab import summary_of

MIB = 1 << 20
XEON = System("Xeon", "x86_64", 2, 2, (("L1d", 48 << 10), ("L2", 2 * MIB), ("L3", 260 * MIB)), 24)


def measured(median_ns: float, *, min_ns: float | None = None, half_ns: float = 0.0) -> Measurement:
    summary = dataclasses.replace(
        summary_of(median_ns),
        min_ns=median_ns if min_ns is None else min_ns,
        ci95_ns=(median_ns - half_ns, median_ns + half_ns),
    )
    return Measurement("1", "1", Identity(Subject.REFERENCE, "k", "s", "t", Conditions(1)), 1, summary, Stop.VISITS)


@pytest.mark.parametrize("name", [f"{GEMM}24", f"{STREAM}1200", f"{STREAM}1", f"{COPY}1600", f"{COPY}1"])
def test_work_is_that_of_the_network(name):
    network = synthetic_network(built_in(name))
    shapes = [array.shape for array in network.feeds.values()]
    out = [dim.dim_value for dim in network.model.graph.output[0].type.tensor_type.shape.dim]

    moved = 4 * (sum(map(math.prod, shapes)) + math.prod(out)) + network.weight_bytes

    assert ceiling_work(name)[1] == moved
    assert ceiling_work(name)[0] == (2 * 24**3 if name.startswith(GEMM) else 0)


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
