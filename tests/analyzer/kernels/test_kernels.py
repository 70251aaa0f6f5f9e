"""Kernels of models, summed over their bricks: shares, what fell back, what is missing, which combination."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from dlbricks.analyzer.kernels import Use, device_of, kernels, matrix_share, shares_of
from dlbricks.analyzer.shell import shell_command
from dlbricks.db import Conditions, Kernel, KernelView, Stack, Subject
from dlbricks.db.values import Identity
from dlbricks.errors import AmbiguousQuery, UsageError

TORCH = Stack("torch", "cpu", (("torch", "2.13.0"),))


def view(*found: Kernel) -> KernelView:
    return KernelView(found, 10_000, 5, "a test")


def kernel(name: str, us: float | None = 1.0, calls: int = 1, place: str = "cpu", operator: str = "op") -> Kernel:
    return Kernel(name, operator, place, calls, None if us is None else round(1000 * us))


@pytest.fixture
def put_views(lab):
    """Store a view per key; the conditions are those of plain repetition unless others are given."""

    def put(views, subject=Subject.BRICK, stack=None, **conditions):
        where = Conditions(**{"threads": 1, "cache": "hot", **conditions})
        for key, found in views.items():
            lab.store.put_kernels(Identity(subject, key, lab.system.key, (stack or lab.stack).key, where), found)

    return put


def test_kernels_of_bricks_count_as_often_as_the_model_holds_them(lab, chain, keys_of, put_views):
    relu, sigmoid = keys_of(chain)[:2]
    lab.put([(relu, 1.0), (sigmoid, 1.0)])
    put_views({relu: view(kernel("relu", 2.0)), sigmoid: view(kernel("sigmoid", 3.0, calls=2), kernel("relu", 1.0))})

    (found,) = kernels([chain], store=lab.store)
    assert found.complete
    assert found.source == "a test"
    assert [(row.kernel.name, row.kernel.calls, row.time_ms) for row in found.kernels] == [
        ("relu", 4, 0.006),
        ("sigmoid", 4, 0.006),
    ]
    assert [row.share for row in found.kernels] == [0.5, 0.5]
    assert found.time_ms == 0.012


def test_a_view_serves_bricks_of_every_cache_state_which_is_no_choice(lab, chain, keys_of, put_views):
    put_views({key: view(kernel("relu")) for key in keys_of(chain)})
    for cache in ("64MiB", "hot", "cold", "1MiB"):
        lab.put([(key, 1.0) for key in set(keys_of(chain))], conditions=Conditions(threads=1, cache=cache))
        assert kernels([chain], store=lab.store).complete


def test_several_stacks_are_never_guessed_among(lab, chain, keys_of, put_views):
    lab.store.put_stack(TORCH)
    for stack in (lab.stack, TORCH):
        lab.put([(key, 1.0) for key in set(keys_of(chain))], stack=stack.key)
        put_views({key: view(kernel(stack.backend)) for key in keys_of(chain)}, stack=stack)

    with pytest.raises(AmbiguousQuery, match="--backend torch"):
        kernels([chain], store=lab.store)
    (found,) = kernels([chain], store=lab.store, backend="torch")
    assert {row.kernel.name for row in found.kernels} == {"torch"}


def test_what_is_missing_is_named_with_the_command_that_shows_it(lab, fork, keys_of, put_views):
    keys = keys_of(fork)
    lab.put([(key, 1.0) for key in keys])
    put_views({key: view(kernel("relu")) for key in keys[:3]})

    (found,) = kernels([fork], store=lab.store)
    assert not found.complete
    assert list(found.missing) == [(keys[3], ("Exp",), 1), (keys[4], ("Add",), 1)]
    assert sum(row.kernel.calls for row in found.kernels) == 3
    assert found.remedy is not None
    generate, run = (shlex.split(part) for part in shell_command(found.remedy).split("&&"))
    assert generate[:2] == ["dlbricks", "generate"]
    assert run[:2] == ["dlbricks", "run"]
    assert "--kernels" in run


def test_the_whole_model_as_it_was_profiled(lab, chain, graph_of, put_views):
    key = graph_of(chain).key
    lab.put([(key, 5.0)], subject=Subject.MODEL)
    (found,) = kernels([chain], store=lab.store, whole=True)
    assert found.remedy is not None
    assert shlex.split(shell_command(found.remedy))[:2] == ["dlbricks", "measure"]

    put_views({key: view(kernel("fused", calls=3))}, subject=Subject.MODEL)
    (found,) = kernels([chain], store=lab.store, whole=True)
    assert found.complete
    assert [(row.kernel.name, row.kernel.calls) for row in found.kernels] == [("fused", 3)]


def test_a_time_that_is_not_known_is_never_zero(lab, chain, keys_of, put_views):
    relu, sigmoid = keys_of(chain)[:2]
    lab.put([(relu, 1.0), (sigmoid, 1.0)])
    put_views({relu: view(kernel("relu")), sigmoid: view(kernel("sigmoid", None))})

    (found,) = kernels([chain], store=lab.store)
    assert found.time_ms is None
    assert [(row.kernel.name, row.time_ms, row.share) for row in found.kernels] == [
        ("relu", 0.002, None),
        ("sigmoid", None, None),
    ]
    assert found.matrix_share(Use.NO) is None


def test_what_ran_elsewhere_is_reported(lab, chain, keys_of, put_views):
    gpu = replace(lab.stack, device="cuda")
    lab.store.put_stack(gpu)
    lab.put([(key, 1.0) for key in set(keys_of(chain))], stack=gpu.key)
    home, fallback = kernel("Gemm", place="CUDAExecutionProvider"), kernel("Relu", place="CPUExecutionProvider")
    put_views({key: view(home, fallback) for key in keys_of(chain)}, stack=gpu)

    (found,) = kernels([chain], store=lab.store)
    assert [(row.kernel.name, row.kernel.calls) for row in found.elsewhere] == [("Relu", 4)]


def test_wrong_usage(lab, chain):
    with pytest.raises(UsageError, match="granularity"):
        kernels([chain], store=lab.store, granularity=0)
    with pytest.raises(UsageError, match="float32 only"):
        kernels([chain], store=lab.store, graph="runtime", dtype="int8")
    with pytest.raises(UsageError, match="do not depend on the cache state"):
        kernels([chain], store=lab.store, cache="hot")
    with pytest.raises(UsageError, match="no stored stack"):
        kernels([chain], store=lab.store, stack="feed")


def test_shares_by_units():
    found = [kernel("nvjet_tst_1", 6.0), kernel("ampere_sgemm_2", 3.0), kernel("own", 1.0)]
    rows, time_ms = shares_of([(view(*found), 2)], "cuda")

    assert time_ms == 0.02
    assert [matrix_share(rows, use) for use in (Use.YES, Use.NO, Use.UNKNOWN)] == pytest.approx([0.6, 0.3, 0.1])
    assert matrix_share((), Use.YES) is None


@pytest.mark.parametrize(
    ("place", "device"),
    [
        ("cpu", "cpu"),
        ("CPU", "cpu"),
        ("CPUExecutionProvider", "cpu"),
        ("cuda", "cuda"),
        ("CUDAExecutionProvider", "cuda"),
        ("TensorrtExecutionProvider", "cuda"),
        ("QNNExecutionProvider", "qnn"),
    ],
)
def test_places_by_device(place, device):
    assert device_of(place) == device


def test_a_stack_without_views_is_no_choice_beside_one_with(lab, chain, keys_of, put_views):
    lab.store.put_stack(TORCH)
    for stack in (lab.stack, TORCH):
        lab.put([(key, 1.0) for key in set(keys_of(chain))], stack=stack.key)
    put_views({key: view(kernel("aten::add")) for key in keys_of(chain)}, stack=TORCH)

    (found,) = kernels([chain], store=lab.store)
    assert found.choice is not None
    assert found.choice.stack.backend == "torch"
