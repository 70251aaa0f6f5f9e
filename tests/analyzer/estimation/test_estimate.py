from __future__ import annotations

import dataclasses
import doctest
import json
import math
import re
import shlex
import sys
import uuid

import pytest
from dlbricks import estimate
from dlbricks.analyzer.estimation.estimates import estimate_record
from dlbricks.analyzer.shell import shell_command
from dlbricks.db import Conditions, Run, Stack, Store, Subject, System
from dlbricks.errors import UsageError
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
    assert answer.sequential_ms == answer.estimate_ms == answer.known_ms == 31.0
    assert answer.critical_path_ms == 25.0  # Relu, Exp, Add
    assert [row.op_types for row in answer.path] == [("Relu",), ("Exp",), ("Add",)]
    assert [row.on_path for row in answer.sequences] == [True, False, False, True, True]
    assert [row.latency_ms for row in answer.sequences] == list(MS)
    single = math.hypot(*(0.01 * ms for ms in MS))  # without blocks each has its own interval, of 1 %
    assert answer.ci95_ms == pytest.approx((31.0 - single, 31.0 + single), rel=1e-3)
    assert answer.calibrated is False, "hot bricks of the source were held against no models"
    assert (answer.coverage.sequences, answer.coverage.macs, answer.missing) == (1.0, None, ())
    assert (answer.layers, answer.folded, answer.unique) == (5, 0, 5)
    assert (answer.system, answer.stack, answer.backend, answer.device) == (
        measured.system.key, measured.stack.key, "onnxruntime", "cpu",
    )  # fmt: skip
    assert (answer.threads, answer.cache, answer.dtype) == (1, "hot", "float32")


def test_a_repeated_brick_counts_as_often_as_it_occurs(lab, chain, keys_of):
    keys = keys_of(chain)
    assert keys[:2] == keys[2:]
    lab.put([(keys[0], 1.5), (keys[1], 2.5)])
    answer = one(lab, chain)
    assert (answer.unique, len(answer.sequences)) == (2, 4)
    assert answer.sequential_ms == answer.critical_path_ms == 8.0
    assert len(answer.path) == 4


def test_what_is_missing_makes_totals_null(lab, fork, keys_of):
    keys = keys_of(fork)
    lab.put(list(zip(keys, MS, strict=True))[:3])
    lab.fail(keys[3], "timeout", "no answer within 30 s")
    answer = one(lab, fork)
    assert not answer.complete
    for name in (
        "estimate_ms", "ci95_ms", "sequential_ms", "critical_path_ms", "lower_bound_sequential_ms",
        "lower_bound_critical_path_ms", "ratio",
    ):  # fmt: skip
        assert getattr(answer, name) is None, name
    assert answer.known_ms == 7.0
    assert answer.coverage.sequences == pytest.approx(3 / 5)
    assert answer.path == ()
    failed, absent = answer.missing
    assert (failed.key, failed.op_types, failed.count) == (keys[3], ("Exp",), 1)
    assert failed.reason == "timeout: no answer within 30 s"
    assert shell_command(failed.remedy).endswith("--again failed")
    assert (absent.key, absent.reason) == (keys[4], "not measured")
    generate, run = shell_command(absent.remedy).split(" && ")
    suite = shlex.split(generate)[-1]
    assert re.fullmatch("suite-g1-[0-9a-f]{8}", suite)  # never a suite that the user has
    assert shlex.split(generate) == ["dlbricks", "generate", str(fork.path), "-g", "1", "-o", suite]
    assert shlex.split(run) == [
        "dlbricks", "run", suite, "--backend", "onnxruntime", "--device", "cpu", "--threads", "1", "--cache", "hot",
        "--db", str(lab.store.place),
    ]  # fmt: skip


def test_commands_name_options_that_are_not_the_default(lab, fork, keys_of):
    stack = Stack("onnxruntime", "cpu", (), (("optimization", "basic"),))
    lab.store.put_stack(stack)
    lab.put([(keys_of(fork)[0], 1.0)], stack=stack.key)
    assert "--option optimization=basic" in shell_command(one(lab, fork).missing[0].remedy)
    asked = shell_command(one(lab, fork, stack=stack.key[:8], cache="cold").missing[0].remedy)  # nothing is stored so
    assert "--option optimization=basic --cache cold" in asked


def test_no_command_measures_in_a_precision_that_run_has_not(lab, fork):
    assert {missing.remedy for missing in one(lab, fork, dtype="float16").missing} == {None}


def test_commands_measure_in_the_precision_that_was_asked_for(lab, fork, keys_of):
    lab.put([(keys_of(fork)[0], 1.0)], conditions=Conditions(threads=1, dtype="int8"))
    assert "--cache hot --dtype int8 --db" in shell_command(one(lab, fork).missing[0].remedy)
    assert "--dtype int8" in shell_command(
        one(lab, fork, dtype="int8", threads=2).missing[0].remedy
    )  # nothing is stored so
    assert "--dtype" not in shell_command(one(lab, fork, dtype="float32").missing[0].remedy)


def test_the_executed_graph_is_that_of_the_model_s_own_precision(lab, fork):
    with pytest.raises(UsageError, match="float32 only, not in int8"):
        one(lab, fork, graph="runtime", dtype="int8")


def test_nothing_is_stored_at_all(lab, fork):
    answer = one(lab, fork, backend="openvino", threads=4)
    assert (answer.system, answer.stack, answer.backend, answer.threads) == (None, None, "openvino", 4)
    assert (answer.coverage.sequences, answer.known_ms, answer.sequential_ms) == (0.0, 0.0, None)
    assert len(answer.missing) == 5
    assert "--backend openvino --threads 4" in shell_command(answer.missing[0].remedy)


def test_failures_are_reported_where_nothing_was_measured(lab, fork, keys_of):
    for key in keys_of(fork):
        lab.fail(key)
    assert {entry.reason for entry in one(lab, fork).missing} == {"crashed: signal 11"}


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
    coverage = one(lab, source).coverage
    assert (coverage.sequences, coverage.macs) == (0.5, 0.75)


def test_a_layer_that_cannot_be_a_brick_is_missing_and_not_free(lab, keys_of):
    source = lab.source(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        odd (float[4] x) => (int64[1, n] z) {
            y = Relu(x)
            z = NonZero(y)
        }
        """
    )
    lab.put([(key, 1.0) for key in keys_of(source)])
    (answer,) = estimate([source], store=lab.store, oracle=lambda model, names: {})
    assert answer.coverage.sequences == pytest.approx(1 / 2)
    assert answer.sequential_ms is None
    (skipped,) = answer.missing
    assert (skipped.key, skipped.op_types, skipped.remedy) == (None, ("NonZero",), None)
    assert "cannot be a brick" in skipped.reason


def test_longer_sequences_are_other_bricks(lab, fork, keys_of):
    keys = keys_of(fork, 2)
    lab.put([(key, 3.0) for key in keys])
    answer = one(lab, fork, granularity=2)
    assert answer.sequential_ms == 3.0 * len(keys)
    assert max(len(row.layers) for row in answer.sequences) == 2
    assert "-g 3" in shell_command(one(lab, fork, granularity=3).missing[0].remedy)


def test_overlapping_sequences_give_the_cheapest_cover(lab, chain, keys_of):
    relu, sigmoid = keys_of(chain)[:2]
    windows = keys_of(chain, 2, overlap=True)
    pair, inner = windows[1], windows[3]  # Relu Sigmoid, and Sigmoid Relu
    assert len({relu, sigmoid, pair, inner}) == 4
    lab.put([(relu, 10.0), (sigmoid, 10.0), (pair, 18.0), (inner, 1.0)])
    assert one(lab, chain, granularity=2).sequential_ms == 36.0  # two pairs
    answer = one(lab, chain, granularity=2, overlap=True)
    assert answer.sequential_ms == 21.0
    assert [len(row.layers) for row in answer.sequences] == [1, 2, 1]
    assert [layer for row in answer.sequences for layer in row.layers] == [0, 1, 2, 3]


def test_connected_windows(lab, fork, keys_of):
    keys = keys_of(fork, 5, connected=True)
    assert len(keys) == 1
    lab.put([(keys[0], 9.0)])
    answer = one(lab, fork, granularity=5, connected=True)
    assert answer.sequential_ms == answer.critical_path_ms == 9.0


def test_the_lower_bound_takes_the_best_of_each_brick(measured, fork, keys_of):
    keys = keys_of(fork)
    other = Stack("openvino", "cpu", (("openvino", "2026.1"),))
    measured.store.put_stack(other)
    measured.put([(keys[0], 0.5), (keys[3], 9.0), (keys[4], 6.0)], stack=other.key)
    measured.put([(keys[1], 1.0)], variant="winograd")
    answer = one(measured, fork, backend="onnxruntime")
    assert answer.sequential_ms == 31.0
    assert answer.lower_bound_sequential_ms == 0.5 + 1.0 + 4.0 + 8.0 + 6.0
    assert answer.lower_bound_critical_path_ms == 0.5 + 8.0 + 6.0
    assert [row.lower_bound_ms for row in answer.sequences] == [0.5, 1.0, 4.0, 8.0, 6.0]


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

    assert [row.lower_bound_ms for row in answer.sequences] == [1.5, 1.0, 2.0]
    assert one(lab, model, stack=eager.key).sequential_ms == pytest.approx(1.002)


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
    assert answer.lower_bound_sequential_ms == 31.0


def test_tf32_is_no_bound_for_exact_float32_but_exact_float32_is_one_for_tf32(lab, chain, keys_of):
    exact, narrow = (Stack("torch", "cuda", (("torch", "2.11"),), (("tf32", tf32),)) for tf32 in ("off", "on"))
    keys = {*keys_of(chain)}
    for stack, ms in ((exact, 2.0), (narrow, 0.5)):
        lab.store.put_stack(stack)
        lab.put([(key, ms) for key in keys], stack=stack.key)
    lab.put([(min(keys), 0.25)], stack=exact.key, variant="plan-1")

    bounds = {row.key: row.lower_bound_ms for row in one(lab, chain, stack=exact.key).sequences}
    narrower = {row.key: row.lower_bound_ms for row in one(lab, chain, stack=narrow.key).sequences}

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

    assert answer.sequential_ms == 2.0 * len(keys)
    assert answer.host_ms == host_ms * len(keys)
    assert answer.estimate_ms == pytest.approx({"host": host_ms, "device": 2.0}[slower] * len(keys))
    assert answer.lower_bound_sequential_ms == answer.sequential_ms


def test_ground_truth_and_ratios(measured, fork, graph_of):
    measured.put([(graph_of(fork).key, 62.0)], subject=Subject.MODEL)
    answer = one(measured, fork)
    assert answer.measured_ms == 62.0
    assert answer.measured_ci95_ms == pytest.approx((62.0 * 0.99, 62.0 * 1.01))
    assert answer.ratio == 0.5
    assert answer.paired is False  # nothing says that they were visited in turn
    assert answer.ratio_ci95[0] < 0.5 < answer.ratio_ci95[1]
    assert (answer.benanza_ratio_sequential, answer.benanza_ratio_critical_path) == (0.5, 25.0 / 62.0)
    assert answer.ratio_reason is None
    assert answer.benanza_ratio_reason is None


def test_a_model_that_was_not_measured_has_no_ratio(measured, fork, graph_of):
    measured.put([(graph_of(fork).key, 62.0)], subject=Subject.MODEL, conditions=Conditions(threads=2))
    answer = one(measured, fork)
    assert answer.measured_ms is answer.ratio is None
    assert answer.ratio_remedy.kind == "model"


def test_a_model_that_could_not_be_measured_says_why(measured, fork, graph_of):
    measured.fail(graph_of(fork).key, "memory", "bad allocation", subject=Subject.MODEL)
    answer = one(measured, fork)
    assert answer.ratio is None
    assert answer.ratio_reason == "the model itself could not be measured: memory: bad allocation"


def test_ground_truth_is_reported_where_bricks_are_missing(lab, fork, keys_of, graph_of):
    lab.put([(keys_of(fork)[0], 1.0)])
    lab.put([(graph_of(fork).key, 62.0)], subject=Subject.MODEL)
    answer = one(lab, fork)
    assert (answer.measured_ms, answer.ratio) == (62.0, None)
    assert "not every brick" in answer.ratio_reason


def test_a_broken_model_does_not_stop_the_others(measured, fork, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model at all")
    sources = find_models([tmp_path / "broken.onnx", fork.path, tmp_path / "absent.onnx"])
    broken, good, absent = estimate(sources, store=measured.store)
    assert good.sequential_ms == 31.0
    for answer in (broken, absent):
        assert answer.error
        assert not answer.complete
        assert answer.coverage is answer.estimate_ms is None
    assert "broken" in broken.name


def test_the_record_is_json_with_the_documented_keys(measured, fork):
    record = json.loads(json.dumps(estimate_record(one(measured, fork))))
    documented = (
        "name system stack backend device threads cache dtype granularity graph batch dims estimate_ms ci95_ms "
        "sequential_ms critical_path_ms lower_bound_sequential_ms lower_bound_critical_path_ms "
        "benanza_ratio_sequential benanza_ratio_critical_path measured_ms ratio ratio_ci95 paired disturbed "
        "undisturbed_ms coverage known_ms missing error"
    )
    assert set(documented.split()) <= record.keys()
    assert record["coverage"] == {"sequences": 1.0, "macs": None}
    assert record["sequences"] == 5
    assert [row["op_types"] for row in record["path"]] == [["Relu"], ["Exp"], ["Add"]]


def test_granularity_below_one_is_wrong_usage(lab, fork):
    with pytest.raises(UsageError, match="granularity cannot be 0"):
        estimate([fork], store=lab.store, granularity=0)


def test_the_private_round_trip(lab, fork, keys_of, tmp_path):
    """The model stays at home; latencies measured elsewhere come back in a file and serve the same estimate."""
    from dlbricks.db import export, merge

    lab.put(zip(keys_of(fork), MS, strict=True))
    export(lab.store, tmp_path / "latencies.db", measurements_only=True)
    with Store.open(tmp_path / "home.db") as home:
        merge(home, tmp_path / "latencies.db")
        (answer,) = estimate([fork], store=home)
    here = one(lab, fork)
    places = dict.fromkeys(("attribution", "ratio_remedy", "roofline_remedy"))  # they name the database
    assert dataclasses.replace(answer, **places) == dataclasses.replace(here, **places)
    for name, term in answer.attribution.items():  # the remedies name the database
        assert dataclasses.replace(term, remedy=None) == dataclasses.replace(here.attribution[name], remedy=None)


def test_the_whole_built_in_zoo_from_one_database(lab):
    """Real models: invariants that hold whatever the latencies are."""
    from dlbricks.bricks.cutting.wiring import sequences
    from dlbricks.bricks.graph.graph import build_graph

    sources = find_models(["squeezenet", "inception_v1", "bert_base"])
    latencies = {
        sequence.key: 1e-3 * (1 + int(sequence.key[:4], 16))
        for source in sources
        for sequence in sequences(build_graph(source.skeleton()), 1)
    }
    lab.put(latencies.items())
    for answer in estimate(sources, store=lab.store):
        assert answer.complete
        assert answer.critical_path_ms < answer.sequential_ms
        assert answer.lower_bound_sequential_ms == answer.sequential_ms
        assert answer.ci95_ms[0] < answer.sequential_ms < answer.ci95_ms[1]
        assert answer.coverage.macs == 1.0
        assert answer.path[0].layers[0] < answer.path[-1].layers[-1]


@pytest.mark.parametrize("module", ["analyzer.estimation.estimate", "db.store"])
def test_the_examples_run(module):
    import dlbricks.analyzer.estimation.estimate
    import dlbricks.db.store  # noqa: F401

    result = doctest.testmod(sys.modules[f"dlbricks.{module}"])
    assert result.attempted
    assert not result.failed


def test_a_run_of_another_day_does_not_widen_the_search(measured, fork, keys_of):
    """Newer measurements of a brick replace older ones, run by run."""
    run = str(uuid.uuid4())
    measured.store.begin_run(
        Run(run, "2026-11-22T00:00:00Z", "0", "run", None, measured.system.key, measured.stack.key)
    )
    key = keys_of(fork)[0]
    measured.store.add([(dataclasses.replace(measured.measurement(key, 2.0), run=run), ())])
    assert one(measured, fork).sequential_ms == 32.0
