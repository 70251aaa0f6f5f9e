from __future__ import annotations

import doctest
import math
import sys

import pytest
from dlbricks import estimate
from dlbricks.analyzer.estimation.estimates import estimate_record
from dlbricks.analyzer.shell import shell_command
from dlbricks.constructor.result import SequenceLatency
from dlbricks.constructor.uncertainty.calibration import NORMAL
from dlbricks.db import Conditions, Stack, Subject, System, Verdict
from dlbricks.errors import UsageError
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose
from dlbricks.models import find_models

MS = (1.0, 2.0, 4.0, 8.0, 16.0)  # Relu, Sigmoid, Tanh, Exp, Add


@pytest.fixture
def measured(lab, fork, keys_of):
    """The fork with all bricks measured."""
    lab.put(zip(keys_of(fork), MS, strict=True))
    return lab


def one(lab, source, **options):
    (answer,) = estimate([source], store=lab.store, **options)
    return answer


def test_sums_and_path_of_a_fork(measured, fork):
    answer = one(measured, fork)
    assert answer.error is None
    assert answer.complete
    assert answer.sums.sequential_ms == answer.latency.ms == answer.sums.known_ms == 31.0
    assert answer.sums.critical_path_ms == 25.0  # Relu, Exp, Add
    assert [row.op_types for row in answer.parts.path] == [("Relu",), ("Exp",), ("Add",)]
    assert [row.on_path for row in answer.parts.sequences] == [True, False, False, True, True]
    assert [row.latency_ms for row in answer.parts.sequences] == list(MS)
    single = math.hypot(*(0.01 * ms for ms in MS))  # without blocks each has its own interval, of 1 %
    assert answer.latency.calibrated is False, "hot bricks of the source were compared with no models"
    half = math.hypot(single, NORMAL * 31.0 * answer.latency.method.sd)
    assert answer.latency.ci95_ms == pytest.approx((31.0 - half, 31.0 + half), rel=1e-3)
    assert (answer.parts.coverage.sequences, answer.parts.coverage.macs, answer.parts.missing) == (1.0, None, ())
    assert (answer.model.layers, answer.model.folded, answer.parts.unique) == (5, 0, 5)
    assert (answer.place.system, answer.place.stack, answer.place.backend, answer.place.device) == (
        measured.system.key, measured.stack.key, "onnxruntime", "cpu",
    )  # fmt: skip
    assert (answer.place.threads, answer.place.cache, answer.place.dtype) == (1, "hot", "float32")


def test_a_repeated_brick_counts_as_often_as_it_occurs(lab, chain, keys_of):
    keys = keys_of(chain)
    assert keys[:2] == keys[2:]
    lab.put([(keys[0], 1.5), (keys[1], 2.5)])
    answer = one(lab, chain)
    assert (answer.parts.unique, len(answer.parts.sequences)) == (2, 4)
    assert answer.sums.sequential_ms == answer.sums.critical_path_ms == 8.0
    assert len(answer.parts.path) == 4


def test_what_is_missing_makes_totals_null(lab, fork, keys_of):
    keys = keys_of(fork)
    lab.put(list(zip(keys, MS, strict=True))[:3])
    lab.fail(keys[3], "timeout", "no answer within 30 s")
    answer = one(lab, fork)
    assert not answer.complete
    record = estimate_record(answer)
    for name in (
        "estimate_ms", "ci95_ms", "sequential_ms", "critical_path_ms", "lower_bound_sequential_ms",
        "lower_bound_critical_path_ms", "ratio",
    ):  # fmt: skip
        assert record[name] is None, name
    assert answer.attribution is answer.attribution_absolute_ms is None
    assert answer.sums.known_ms == 7.0
    assert answer.parts.coverage.sequences == pytest.approx(3 / 5)
    assert answer.parts.path == ()
    failed, absent = answer.parts.missing
    assert (failed.key, failed.op_types, failed.count) == (keys[3], ("Exp",), 1)
    assert failed.reason == "timeout: no answer within 30 s"
    assert shell_command(failed.remedy).endswith("--again failed")
    assert (absent.key, absent.reason) == (keys[4], "not measured")
    command = shell_command(absent.remedy)  # written out in test_shell.py
    assert command.startswith(f"dlbricks generate {fork.path} -g 1 --graph source -o suite-g1-")
    assert command.endswith(f"--threads 1 --cache hot --db {lab.store.place}")


def test_commands_name_what_was_asked_for_or_measured_and_is_no_default(lab, fork, keys_of):
    def command(**asked):
        return shell_command(one(lab, fork, **asked).parts.missing[0].remedy)

    stack = Stack("onnxruntime", "cpu", (), (("optimization", "basic"),))
    lab.store.put_stack(stack)
    lab.put([(keys_of(fork)[0], 1.0)], stack=stack.key, conditions=Conditions(threads=1, dtype="int8"))
    assert "--option optimization=basic" in command()
    assert "--cache hot --dtype int8 --db" in command()
    assert "--option optimization=basic --cache cold" in command(stack=stack.key[:8], cache="cold")  # nothing stored so
    assert "--dtype int8" in command(dtype="int8", threads=2)
    assert "--dtype" not in command(dtype="float32")
    assert {missing.remedy for missing in one(lab, fork, dtype="float16").parts.missing} == {None}  # run has not that


def test_the_executed_graph_is_that_of_the_model_s_own_precision(lab, fork):
    with pytest.raises(UsageError, match="float32 only, not in int8"):
        one(lab, fork, graph="runtime", dtype="int8")


def test_the_share_of_unstable_latencies_and_what_is_doubtful(lab, fork, keys_of):
    keys = keys_of(fork)
    lab.put(list(zip(keys, MS, strict=True))[:3])
    lab.put([(keys[3], MS[3])], verdict=Verdict.UNSTABLE)
    lab.put([(keys[4], MS[4])])
    answer = one(lab, fork)
    assert (answer.unstable_share, answer.doubtful) == (pytest.approx(8 / 31), False)
    lab.put([(keys[4], MS[4])], verdict=Verdict.UNSTABLE)
    answer = one(lab, fork)
    assert (answer.unstable_share, answer.doubtful) == (pytest.approx(24 / 31), True)
    assert one(lab, fork, threads=3).unstable_share is None


@pytest.mark.parametrize(("half_ms", "unstable"), [(0.05, False), (0.4, True)])
def test_few_visits_are_unstable_by_their_interval(half_ms, unstable):
    """They have a verdict of their own, which says nothing of how much they differ."""
    few = SequenceLatency(0, "key", (0,), ("a",), ("Relu",), 1.0, (1.0 - half_ms, 1.0 + half_ms), Verdict.TIMED_OUT)

    assert few.unstable is unstable


def test_nothing_is_stored_at_all(lab, fork):
    answer = one(lab, fork, backend="openvino", threads=4)
    assert (answer.place.system, answer.place.stack, answer.place.backend, answer.place.threads) == (
        None,
        None,
        "openvino",
        4,
    )
    assert (answer.parts.coverage.sequences, answer.sums.known_ms, answer.sums.sequential_ms) == (0.0, 0.0, None)
    assert len(answer.parts.missing) == 5
    command = shell_command(answer.parts.missing[0].remedy)
    assert "--backend openvino --threads 4" in command
    assert "--graph fused" in command, "the default of generate"


def test_a_measured_model_is_known_without_any_brick(lab, fork):
    (model,) = decompose([fork], Cut(1))
    lab.put([(model.own.key, 5.0)], subject=Subject.MODEL, conditions=Conditions(1, "model"))

    answer = one(lab, fork)

    assert (answer.truth.ms, answer.place.stack) == (pytest.approx(5.0), lab.stack.key)
    assert (answer.latency.ms, answer.parts.coverage.sequences) == (None, 0.0)
    lab.put([(model.own.key, 6.0)], subject=Subject.MODEL, conditions=Conditions(2, "model"))
    assert one(lab, fork).truth.ms is None, "two combinations match, and none is a brick's"
    assert one(lab, fork, threads=2).truth.ms == pytest.approx(6.0)


def test_the_graph_of_which_most_is_stored_is_taken(lab, keys_of):
    """A unit of one layer is the same brick along fusions and in the model's own graph."""
    ones = ", ".join(["1.0"] * 8)
    model = lab.source(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        biased (float[4, 8] x) => (float[4, 1] y) <float[8, 1] w = {{{ones}}}, float[1] b = {{1.0}}> {{
            a = Sigmoid(x)
            p = MatMul(a, w)
            c = Add(p, b)
            y = Tanh(c)
        }}
    """)
    (along,) = decompose([model], Cut(1).of("fused"))
    fused = [part.key for part in along.sequences]
    shared = [key for key in fused if key in keys_of(model)]
    assert len(shared) < len(fused) < len(keys_of(model))

    lab.put([(key, 1.0) for key in shared])
    answer = one(lab, model)
    assert answer.model.cutting.graph == "fused", "two of three, in place of two of four"
    lab.put([(key, 1.0) for key in fused])
    assert one(lab, model).complete
    lab.put([(key, 1.0) for key in keys_of(model)])
    assert one(lab, model).model.cutting.graph == "source"


def test_failures_are_reported_where_nothing_was_measured(lab, fork, keys_of):
    for key in keys_of(fork):
        lab.fail(key)
    assert {entry.reason for entry in one(lab, fork).parts.missing} == {"crashed: signal 11"}


def test_coverage_in_work(lab, keys_of):
    source = lab.source(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        two (float[4, 8] x, float[8, 8] v, float[8, 24] w) => (float[4, 24] z) {
            y = MatMul(x, v)
            z = MatMul(y, w)
        }
        """
    )
    lab.put([(keys_of(source)[1], 1.0)])
    coverage = one(lab, source).parts.coverage
    assert (coverage.sequences, coverage.macs) == (0.5, 0.75)


def test_a_layer_that_cannot_be_a_brick_is_missing_and_not_free(lab, keys_of):
    source = lab.source(
        """
        <ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        odd (float[4] x) => (float[n] z) {
            y = Relu(x)
            z = com.example.Odd(y)
        }
        """
    )
    lab.put([(key, 1.0) for key in keys_of(source)])
    (answer,) = estimate([source], store=lab.store)
    assert answer.parts.coverage.sequences == pytest.approx(1 / 2)
    assert answer.sums.sequential_ms is None
    (skipped,) = answer.parts.missing
    assert (skipped.key, skipped.op_types, skipped.remedy) == (None, ("Odd",), None)
    assert "cannot be a brick" in skipped.reason


def test_longer_sequences_are_other_bricks(lab, fork, keys_of):
    keys = keys_of(fork, 2)
    lab.put([(key, 3.0) for key in keys])
    answer = one(lab, fork, granularity=2)
    assert answer.sums.sequential_ms == 3.0 * len(keys)
    assert max(len(row.layers) for row in answer.parts.sequences) == 2
    assert "-g 3" in shell_command(one(lab, fork, granularity=3).parts.missing[0].remedy)


def test_overlapping_sequences_give_the_cheapest_cover(lab, chain, keys_of):
    relu, sigmoid = keys_of(chain)[:2]
    windows = keys_of(chain, 2, overlap=True)
    pair, inner = windows[1], windows[3]  # Relu Sigmoid, and Sigmoid Relu
    assert len({relu, sigmoid, pair, inner}) == 4
    lab.put([(relu, 10.0), (sigmoid, 10.0), (pair, 18.0), (inner, 1.0)])
    assert one(lab, chain, granularity=2).sums.sequential_ms == 36.0  # two pairs
    answer = one(lab, chain, granularity=2, overlap=True)
    assert answer.sums.sequential_ms == 21.0
    assert [len(row.layers) for row in answer.parts.sequences] == [1, 2, 1]
    assert [layer for row in answer.parts.sequences for layer in row.layers] == [0, 1, 2, 3]


def test_connected_windows(lab, fork, keys_of):
    keys = keys_of(fork, 5, connected=True)
    assert len(keys) == 1
    lab.put([(keys[0], 9.0)])
    answer = one(lab, fork, granularity=5, connected=True)
    assert answer.sums.sequential_ms == answer.sums.critical_path_ms == 9.0


VIEWS = """
<ir_version: 8, opset_import: ["" : 17]>
views (float[4, 8] x) => (float[4, 8] y) {
    a = Transpose(x)
    b = Relu(a)
    y = Transpose(b)
}
"""


def test_a_view_is_no_bound_for_a_copy_but_a_bound_for_what_it_is_read_by(lab, keys_of):
    """An eager Transpose moves nothing: whoever reads it pays, and that is not the stored brick."""
    model = lab.source(VIEWS)
    transposed, relu, back = keys_of(model)
    eager = Stack("torch", "cpu", (("torch", "2.13"),), (("mode", "eager"),))
    compiled = Stack("torch", "cpu", (("torch", "2.13"),), (("mode", "compile"),))
    for stack in (eager, compiled):
        lab.store.put_stack(stack)
    lab.put([(transposed, 2.0), (relu, 3.0), (back, 2.0)])
    lab.put([(transposed, 0.001), (relu, 1.0), (back, 0.001)], stack=eager.key)
    lab.put([(transposed, 1.5)], stack=compiled.key)

    answer = one(lab, model, backend="onnxruntime")

    assert [row.lower_bound_ms for row in answer.parts.sequences] == [1.5, 1.0, 2.0]
    assert one(lab, model, stack=eager.key).sums.sequential_ms == pytest.approx(1.002)


def test_where_no_other_stack_measured_it_a_view_bounds_itself(lab, keys_of):
    model = lab.source(VIEWS)
    transposed, relu, back = keys_of(model)
    eager = Stack("torch", "cpu", (("torch", "2.13"),), (("mode", "eager"),))
    lab.store.put_stack(eager)
    lab.put([(transposed, 0.001), (relu, 1.0), (back, 0.001)], stack=eager.key)

    answer = one(lab, model, backend="torch")

    assert answer.bounds.sequential.ms == pytest.approx(1.002)


def test_the_lower_bound_stays_on_system_device_and_conditions(measured, fork, keys_of):
    keys = keys_of(fork)
    gpu, machine = Stack("onnxruntime", "cuda", ()), System("Other", "x86_64", 64, 128, (), 512)
    measured.store.put_stack(gpu)
    measured.store.put_system(machine)
    cheap = [(key, 0.001) for key in keys]
    measured.put(cheap, stack=gpu.key)
    measured.put(cheap, system=machine.key)
    measured.put(cheap, conditions=Conditions(threads=2))
    measured.put(cheap, conditions=Conditions(threads=1, cache="cold"))
    measured.put(cheap, conditions=Conditions(threads=1, dtype="float16"))
    options = {"system": measured.system.key, "device": "cpu", "threads": 1, "cache": "hot", "dtype": "float32"}
    answer = one(measured, fork, **options)
    assert answer.bounds.sequential.ms == 31.0


def test_tf32_is_no_bound_for_exact_float32_but_exact_float32_is_one_for_tf32(lab, chain, keys_of):
    exact, narrow = (Stack("torch", "cuda", (("torch", "2.11"),), (("tf32", tf32),)) for tf32 in ("off", "on"))
    keys = {*keys_of(chain)}
    for stack, ms in ((exact, 2.0), (narrow, 0.5)):
        lab.store.put_stack(stack)
        lab.put([(key, ms) for key in keys], stack=stack.key)
    lab.put([(min(keys), 0.25)], stack=exact.key, variant="plan-1")

    bounds = {row.key: row.lower_bound_ms for row in one(lab, chain, stack=exact.key).parts.sequences}
    narrower = {row.key: row.lower_bound_ms for row in one(lab, chain, stack=narrow.key).parts.sequences}

    assert bounds == {key: 0.25 if key == min(keys) else 2.0 for key in keys}
    assert narrower == {key: 0.25 if key == min(keys) else 0.5 for key in keys}


@pytest.mark.parametrize(("host_ms", "slower"), [(3.0, "host"), (1.0, "device")])
def test_what_the_slower_of_processor_and_device_takes_is_estimated(lab, chain, keys_of, host_ms, slower):
    gpu = Stack("torch", "cuda", (("torch", "2.11"),), (("mode", "eager"),))
    lab.store.put_stack(gpu)
    keys = keys_of(chain)
    place = {"stack": gpu.key, "conditions": Conditions(threads=1, cache="8MiB")}
    lab.put([(key, 2.0) for key in {*keys}], **place)
    lab.put([(key, host_ms) for key in {*keys}], variant="host", **place)

    answer = one(lab, chain, stack=gpu.key, cache="8MiB")

    assert answer.sums.sequential_ms == 2.0 * len(keys)
    assert answer.sums.host_ms == host_ms * len(keys)
    assert answer.latency.ms == pytest.approx({"host": host_ms, "device": 2.0}[slower] * len(keys))
    assert answer.bounds.sequential.ms == answer.sums.sequential_ms


def test_ground_truth_and_ratios(measured, fork, graph_of):
    measured.put([(graph_of(fork).key, 62.0)], subject=Subject.MODEL)
    answer = one(measured, fork)
    assert answer.truth.ms == 62.0
    assert answer.truth.ci95_ms == pytest.approx((62.0 * 0.99, 62.0 * 1.01))
    assert answer.truth.ratio == 0.5
    assert answer.truth.paired is False  # nothing says that they were visited in turn
    assert answer.truth.ratio_ci95[0] < 0.5 < answer.truth.ratio_ci95[1]
    assert (answer.bounds.sequential.ratio, answer.bounds.critical_path.ratio) == (0.5, 25.0 / 62.0)
    assert answer.truth.reason is None
    assert answer.bounds.reason is None


def test_without_ground_truth_or_a_brick_there_is_no_ratio_and_it_is_said_why(lab, fork, keys_of, graph_of):
    truth = graph_of(fork).key
    lab.put(zip(keys_of(fork), MS, strict=True))
    lab.put([(truth, 62.0)], subject=Subject.MODEL, conditions=Conditions(threads=2))
    answer = one(lab, fork, threads=1)
    assert answer.truth.ms is answer.truth.ratio is None
    assert answer.truth.remedy.kind == "model"
    lab.fail(truth, "memory", "bad allocation", subject=Subject.MODEL)
    answer = one(lab, fork, threads=1)
    assert answer.truth.ratio is None
    assert answer.truth.reason == "the model itself could not be measured: memory: bad allocation"
    lab.put([(keys_of(fork)[0], 1.0)], conditions=Conditions(threads=2))
    answer = one(lab, fork, threads=2)
    assert (answer.truth.ms, answer.truth.ratio) == (62.0, None)
    assert "not every brick" in answer.truth.reason


def test_the_whole_built_in_zoo_from_one_database(lab):
    """Real models: invariants that hold whatever the latencies are."""
    from dlbricks.bricks.cutting.sequences import sequences
    from dlbricks.bricks.graph.model_graph import build_graph

    sources = find_models(["squeezenet", "inception_v1", "bert_base"])
    latencies = {
        sequence.key: 1e-3 * (1 + int(sequence.key[:4], 16))
        for source in sources
        for sequence in sequences(build_graph(source.skeleton()), 1)
    }
    lab.put(latencies.items())
    for answer in estimate(sources, store=lab.store):
        assert answer.complete
        assert answer.sums.critical_path_ms < answer.sums.sequential_ms
        assert answer.bounds.sequential.ms == answer.sums.sequential_ms
        assert answer.latency.ci95_ms[0] < answer.sums.sequential_ms < answer.latency.ci95_ms[1]
        assert answer.parts.coverage.macs == 1.0
        assert answer.parts.path[0].layers[0] < answer.parts.path[-1].layers[-1]


@pytest.mark.parametrize("module", ["analyzer.estimation.estimate", "db.store"])
def test_the_examples_run(module):
    import dlbricks.analyzer.estimation.estimate
    import dlbricks.db.store  # noqa: F401

    result = doctest.testmod(sys.modules[f"dlbricks.{module}"])
    assert result.attempted
    assert not result.failed
