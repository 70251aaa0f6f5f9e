from __future__ import annotations

import dataclasses

import pytest
from dlbricks.analyzer.estimation.query import QueryFields, asked, choose
from dlbricks.analyzer.estimation.reading import find_ceilings
from dlbricks.bricks.reference import COPY, GEMM, OVERHEAD, STREAM, built_in_key
from dlbricks.constructor.choice import Choice, Query
from dlbricks.constructor.evidence import ends_in_view
from dlbricks.constructor.roofline import Ceilings
from dlbricks.db import Conditions, Stack, Subject, System
from dlbricks.db.samples.rates import ceiling_work
from dlbricks.errors import AmbiguousQuery, UsageError

KEYS = ["a" * 64, "b" * 64]


@pytest.fixture
def filled(lab):
    lab.put([(KEYS[0], 1.0), (KEYS[1], 1.0)])
    return lab


def add_stack(lab, stack: Stack) -> Stack:
    lab.store.put_stack(stack)
    lab.put([(KEYS[0], 1.0)], stack=stack.key)
    return stack


def test_the_only_match_is_used(filled):
    choice = choose(filled.store, KEYS, Query())
    assert (choice.system, choice.stack, choice.conditions) == (filled.system, filled.stack, filled.conditions)
    assert choice.count == 2


def test_nothing_matches(filled):
    assert choose(filled.store, KEYS, Query(backend="openvino")) is None
    assert choose(filled.store, KEYS, Query(threads=7)) is None
    assert choose(filled.store, ["c" * 64], Query()) is None


def test_several_matches_are_listed_with_what_shows_them_apart(filled):
    add_stack(filled, Stack("openvino", "cpu", (("openvino", "2026.1"),)))
    filled.put([(KEYS[0], 1.0)], conditions=Conditions(threads=4, cache="cold"))
    with pytest.raises(AmbiguousQuery) as error:
        choose(filled.store, KEYS, Query())
    text = str(error.value)
    assert error.value.exit_code == 2
    assert "\n" not in text
    assert "3 stored combinations match" in text
    assert "--backend onnxruntime --threads 1 --cache hot (Xeon Example; onnxruntime 1.31.0; 2 of these bricks)" in text
    assert "--backend onnxruntime --threads 4 --cache cold" in text
    assert "--backend openvino --threads 1 --cache hot" in text
    assert "--device" not in text
    assert choose(filled.store, KEYS, Query(backend="openvino")).stack.backend == "openvino"
    assert choose(filled.store, KEYS, Query(threads=4)).conditions.cache == "cold"


def test_options_that_differ_are_reported(filled):
    common = ("torch", "cuda", (("torch", "2.11.0"),))
    for tf32 in ("off", "on"):
        add_stack(filled, Stack(*common, (("mode", "eager"), ("tf32", tf32))))
    with pytest.raises(AmbiguousQuery) as error:
        choose(filled.store, KEYS, Query(device="cuda"))
    assert "(Xeon Example; torch 2.11.0 tf32=on; 1 of these bricks)" in str(error.value)
    assert "torch 2.11.0 tf32=off;" in str(error.value)


def test_versions_and_options_are_kept_apart_by_the_stack(filled):
    newer = add_stack(filled, Stack("onnxruntime", "cpu", (("onnxruntime", "1.32.0"),)))
    with pytest.raises(AmbiguousQuery, match=f"--stack {newer.key[:8]}"):
        choose(filled.store, KEYS, Query())
    assert choose(filled.store, KEYS, Query(stack=newer.key[:8])).stack == newer


def test_systems_by_the_beginning_of_their_key(filled):
    other = System("EPYC Example", "x86_64", 64, 128, (), 512)
    filled.store.put_system(other)
    filled.put([(KEYS[0], 1.0)], system=other.key)
    with pytest.raises(AmbiguousQuery, match=f"--system {other.key[:8]}"):
        choose(filled.store, KEYS, Query())
    assert choose(filled.store, KEYS, Query(system=other.key[:6])).system == other
    with pytest.raises(UsageError, match="no stored system") as error:
        choose(filled.store, KEYS, Query(system="zzz"))
    assert other.key[:8] in str(error.value)
    with pytest.raises(UsageError, match="no stored stack"):
        choose(filled.store, KEYS, Query(stack="zzz"))


def test_no_threads_means_all_physical_cores(filled):
    filled.put([(KEYS[0], 1.0)], conditions=Conditions(threads=filled.system.physical_cores))
    assert choose(filled.store, KEYS, Query(threads=0)).conditions.threads == 2


def test_no_threads_means_all_cores_that_the_run_could_use(filled):
    """A process that is confined to one core of two takes one thread; more threads than cores are not all cores."""
    filled.put([(KEYS[0], 1.0)], conditions=Conditions(threads=filled.system.physical_cores + 1))

    assert choose(filled.store, KEYS, Query(threads=0)).conditions.threads == 1


def test_a_query_is_the_same_as_keywords_which_come_first():
    assert asked(None, {"threads": 2}) == Query(threads=2)
    assert asked(Query(backend="torch", threads=1), {"threads": None, "dtype": "int8"}) == Query(
        backend="torch", dtype="int8"
    )
    with pytest.raises(TypeError, match="'thread'"):
        asked(None, {"thread": 2})


def test_every_field_of_a_query_is_a_keyword():
    assert list(QueryFields.__annotations__) == [field.name for field in dataclasses.fields(Query)]


# Ceilings as they are stored: which stacks they are taken over, and which networks count on a device ---------------

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
    choice = Choice(lab.system.key, where.key, lab.system, where, Conditions(1, dtype=dtype), 0)
    return find_ceilings(lab.store, choice, lab.store.stacks())


def test_rates_of_tf32_are_none_of_exact_float32_and_the_other_way_round(lab):
    put(lab, EXACT, {f"{GEMM}4096": 4.0})
    put(lab, LIBRARY, {f"{GEMM}4096": 3.0})
    put(lab, NARROW, {f"{GEMM}4096": 0.5})

    for where in (EXACT, LIBRARY):
        best = found(lab, where).compute
        assert (best.backend, best.stack, best.rate.best) == ("cublas", LIBRARY.key, FLOPS / 3e-3)
    best = found(lab, NARROW).compute
    assert (best.backend, best.stack, best.rate.best) == ("torch", NARROW.key, FLOPS / 0.5e-3)


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


# Bricks that an eager runtime answers with a view ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        (["Transpose"], True),
        (["Conv", "Split"], True),
        (["Transpose", "Unsqueeze", "Squeeze"], True),
        (["Transpose", "MatMul"], False),
        (["Transpose", "Reshape"], False),  # the copy is made inside
        (["Reshape"], False),
        (["Squeeze"], False),
        ([], False),
    ],
)
def test_what_rearranges_last_is_a_view(operators, expected):
    assert ends_in_view(operators) is expected


def test_where_only_tf32_was_measured_exact_float32_has_no_ceiling(lab):
    put(lab, NARROW, {f"{GEMM}4096": 0.5})
    put(lab, NARROW, {f"{GEMM}4096": 0.25}, "float16")

    assert found(lab, EXACT).compute is None
    assert found(lab, EXACT, "float16").single is None
    assert found(lab, NARROW, "float16").single.rate.best == FLOPS / 0.5e-3
    assert found(lab, NARROW, "float16").compute.rate.best == FLOPS / 0.25e-3
