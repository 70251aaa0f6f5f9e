"""Ceilings as they are stored: which stacks they are taken over, and which networks count on a device."""

from __future__ import annotations

import pytest
from dlbricks.analyzer.estimation.lookup import find_ceilings
from dlbricks.bricks.reference import COPY, GEMM, OVERHEAD, STREAM, built_in_key
from dlbricks.constructor.choice import Choice
from dlbricks.constructor.roofline.ceilings import Ceilings
from dlbricks.db import Conditions, Stack, Subject
from dlbricks.db.samples.rates import ceiling_work

MIB = 1 << 20
FLOPS = 2 * 4096**3


def stack(backend: str, device: str = "cuda", **options: str) -> Stack:
    return Stack(backend, device, ((backend, "1.0"),), tuple(sorted(options.items())))


EXACT, NARROW = stack("torch", tf32="off"), stack("torch", tf32="on")
LIBRARY = stack("cublas")


def put(lab, where: Stack, latencies: dict[str, float], dtype: str = "float32") -> None:
    lab.store.put_stack(where)
    lab.put(
        ((built_in_key(name), ms) for name, ms in latencies.items()),
        subject=Subject.REFERENCE, stack=where.key, conditions=Conditions(1, dtype=dtype),
    )  # fmt: skip


def found(lab, where: Stack, dtype: str = "float32") -> Ceilings:
    lab.store.put_stack(where)
    return find_ceilings(lab.store, Choice(lab.system.key, where.key, lab.system, where, Conditions(1, dtype=dtype), 0))


def test_rates_of_tf32_are_none_of_exact_float32_and_the_other_way_round(lab):
    put(lab, EXACT, {f"{GEMM}4096": 4.0})
    put(lab, LIBRARY, {f"{GEMM}4096": 3.0})
    put(lab, NARROW, {f"{GEMM}4096": 0.5})

    for where in (EXACT, LIBRARY):
        best = found(lab, where).compute
        assert (best.backend, best.stack, best.rate.best) == ("cublas", LIBRARY.key, FLOPS / 3e-3)
    best = found(lab, NARROW).compute
    assert (best.backend, best.stack, best.rate.best) == ("torch", NARROW.key, FLOPS / 0.5e-3)


def test_where_only_tf32_was_measured_exact_float32_has_no_ceiling(lab):
    put(lab, NARROW, {f"{GEMM}4096": 0.5})
    put(lab, NARROW, {f"{GEMM}4096": 0.25}, "float16")

    assert found(lab, EXACT).compute is None
    assert found(lab, EXACT, "float16").single is None
    assert found(lab, NARROW, "float16").single.rate.best == FLOPS / 0.5e-3
    assert found(lab, NARROW, "float16").compute.rate.best == FLOPS / 0.25e-3


def test_on_a_gpu_the_larger_products_count_and_working_sets_are_reported_by_size(lab):
    put(lab, EXACT, {
        OVERHEAD: 0.001, f"{GEMM}512": 0.000001, f"{GEMM}4096": 4.0,
        f"{STREAM}{2 * MIB}": 0.01, f"{COPY}{2 * MIB}": 0.005, f"{STREAM}{512 * MIB}": 5.0,
    })  # fmt: skip

    ceilings = found(lab, EXACT)

    assert ceilings.compute.network == f"{GEMM}4096"
    assert [name for name, _ in ceilings.levels] == ["2 MiB", "512 MiB"]
    moved = ceiling_work(f"{COPY}{2 * MIB}")[1]
    assert dict(ceilings.levels)["2 MiB"].rate.best == pytest.approx(moved / 5e-6)  # nothing is taken off
    assert found(lab, stack("torch", "cpu")).compute is None  # another device
