"""Models to suites."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import onnx
import pytest
from dlbricks.analyzer.report.answers.generation import generate_answer
from dlbricks.bricks.decomposition import Failed
from dlbricks.bricks.suite.suite import Suite
from dlbricks.errors import SuiteError, UsageError
from dlbricks.generator.decomposition import decomposer as decomposing
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decompose import decompose, decomposing_until, readable
from dlbricks.generator.decomposition.generate import generate
from dlbricks.generator.machine.lock import work_clock
from dlbricks.models import find_models

generating = import_module("dlbricks.generator.decomposition.generate")

LIGHT = ["alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
         "zfnet512"]  # fmt: skip


def _content(suite: Suite) -> dict[str, bytes]:
    return {
        str(path.relative_to(suite.path)): path.read_bytes() for path in sorted(suite.path.rglob("*")) if path.is_file()
    }


def test_counts_of_a_small_model(small_models, tmp_path):
    report = generate(small_models, granularity=1, out=tmp_path / "suite")

    (row,) = report.rows
    assert (row.layers, row.folded, row.sequences, row.unique) == (10, 0, 10, 10)
    assert row.macs == row.known_macs == 12 * 12 * 8 * 8 * 9 + 288 * 40
    assert row.weight_bytes == 4 * (8 * 8 * 9 + 8 + 288 * 40 + 40)
    assert (row.error, row.skipped, row.uncounted, row.bound) == (None, (), {}, {})
    assert (report.layers, report.sequences, report.unique, report.decoys) == (10, 10, 10, 0)
    assert report.suite.keys == tuple(sorted(report.suite.keys))
    assert report.complete


def test_jobs_and_order_change_nothing(tmp_path):
    models = find_models(["squeezenet", "alexnet", "zfnet512"])

    alone = generate(models, granularity=2, out=tmp_path / "one")
    parallel = generate(models, granularity=2, out=tmp_path / "two", jobs=3)
    reversed_ = generate(models[::-1], granularity=2, out=tmp_path / "three")

    assert alone.rows == parallel.rows == reversed_.rows[::-1]
    assert _content(alone.suite) == _content(parallel.suite) == _content(reversed_.suite)


def test_layers_behind_a_skipped_one_name_it_as_their_cause(source, tmp_path):
    nodes = "{a = Relu(x) b = Neg(a) y = Abs(b) c = Relu(x) z = Neg(c)}"
    first = source(f"(float[1,4] x) => (float[1,4] y, float[1,4] z) {nodes}")
    model = onnx.load(first.path)
    model.graph.node[0].domain = "own"
    model.opset_import.add(domain="own", version=1)
    onnx.save(model, first.path)

    report = generate([first], granularity=1, out=tmp_path / "suite", graph="source")

    assert [(layer.layer, layer.cause) for layer in report.rows[0].skipped] == [
        ("Relu_0", ""), ("Neg_1", "Relu_0"), ("Abs_2", "Relu_0"),
    ]  # fmt: skip
    (line,) = (line for line in generate_answer(report).summary if " skipped: " in line)
    assert "Relu_0 skipped: unknown operator own:Relu" in line
    assert line.endswith("; and 2 layers after it")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_broken_model_costs_only_itself_and_an_input_without_a_type_its_layers(small_models, tmp_path, source, jobs):
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07garbage")
    models = [*find_models([tmp_path / "broken.onnx", tmp_path / "absent.onnx"]), *small_models]
    undefined = source("(float[1,4] x) => (float[1,4] y) {y = Relu(x)}")
    model = onnx.load(undefined.path)
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UNDEFINED
    onnx.save(model, undefined.path)

    report = generate([*models, undefined], granularity=1, out=tmp_path / "suite", jobs=jobs)

    broken, absent, good, odd = report.rows
    assert "broken.onnx" in broken.error
    assert "absent.onnx" in absent.error
    assert (good.error, odd.error) == (None, None)
    assert broken.layers is None
    assert ([layer.layer for layer in odd.skipped], good.sequences) == (["Relu_0"], 10)
    assert odd.skipped[0].reason
    assert not report.complete
    nothing = generate(models[1:2], granularity=1, out=tmp_path / "none")
    assert nothing.suite is None
    assert not (tmp_path / "none").exists()


def test_unknown_work_is_not_zero_work(tmp_path, source):
    """A layer of a foreign domain has no cost that we know: the total is unknown, the rest is reported."""
    foreign = source(
        "(float[batch,8] x) => (float[batch,4] y) {z = Abs(x) y = MatMul(z, w)}", {"w": (8, 4)}, batches=[1]
    )
    model = onnx.load(foreign.path)
    model.graph.node[0].op_type, model.graph.node[0].domain = "Mystery", "no.such.domain"
    model.opset_import.add(domain="no.such.domain", version=1)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 8]))
    onnx.save(model, foreign.path)

    (row,) = generate([foreign], granularity=1, out=tmp_path / "suite").rows

    assert (row.error, row.macs, row.known_macs) == (None, None, 32)
    assert row.uncounted == {"Mystery": 1}
    assert row.bound == {"batch": 1}


def test_a_suite_names_no_model_unless_asked(small_models, tmp_path):
    private = generate(small_models, granularity=1, out=tmp_path / "private").suite
    annotated = generate(small_models, granularity=1, out=tmp_path / "annotated", annotate=True).suite

    assert b"small" not in b"".join(_content(private).values())
    assert private.annotations is None
    assert annotated.annotations[small_models[0].name] == dict.fromkeys(private.keys, 1)
    assert private.levels == {}
    assert annotated.levels[small_models[0].name] in {
        level for key in private.keys for level in private.footprints(key)
    }


def test_decoys_are_mixed_in_and_not_counted(small_models, tmp_path):
    plain = generate(small_models, granularity=1, out=tmp_path / "plain")
    report = generate(small_models, granularity=1, out=tmp_path / "decoys", decoys=5, decoy_seed="secret")

    assert (report.unique, report.decoys, len(report.suite.keys)) == (10, 5, 15)
    assert set(plain.suite.keys) < set(report.suite.keys)
    for key in report.suite.keys:
        report.suite.brick(key)


def test_no_variant_tells_bricks_from_decoys(model_file, tmp_path):
    cache = "float[1,1200,256]"
    path = model_file(tmp_path / "far.onnx", f"({cache} x) => ({cache} y) {{a = Relu(x) b = Sqrt(a) y = Neg(b)}}", {})
    models = find_models([path])
    plain, hidden = (
        generate(models, granularity=1, graph="fused", out=tmp_path / str(decoys), decoys=decoys, decoy_seed=seed).suite
        for decoys, seed in ((0, None), (2, "secret"))
    )

    assert plain.by_caches
    assert not hidden.by_caches
    assert not any(hidden.boundary(key, 64 << 20) for key in hidden.keys)


def test_settings_cut_as_keywords_do_and_what_is_wrong_is_refused(small_models, tmp_path):
    keywords = generate(small_models, granularity=3, connected=True, out=tmp_path / "keywords")
    settings = generate(small_models, settings=Cut(3, connected=True), out=tmp_path / "settings")

    assert _content(settings.suite) == _content(keywords.suite)
    assert settings.granularity == keywords.granularity == 3
    (tmp_path / "thesis.tex").write_text("years of work")
    for wrong, said in (
        ({"settings": Cut(3), "connected": True, "graph": "fused"}, "connected, graph beside them"),
        ({}, "no granularity is given"), ({"granularity": 0}, None), ({"granularity": 1, "jobs": 0}, None),
        ({"granularity": 1, "decoys": 3}, None),
        ({"granularity": 1, "decoys": 3, "decoy_seed": 1, "annotate": True}, None),
        ({"granularity": 1, "out": tmp_path}, None),  # a foreign folder is not overwritten
    ):  # fmt: skip
        with pytest.raises((UsageError, SuiteError), match=said):
            generate(small_models, **{"out": tmp_path / "suite", "progress": pytest.fail, **wrong})
    assert not (tmp_path / "suite").exists()
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_the_light_models_are_decomposed_leanly(tmp_path):
    """No runtime, no frames, no plots are loaded; the whole process stays small."""
    script = (
        "import json, sys\n"
        "from dlbricks.generator.decomposition.generate import generate\n"
        "from dlbricks.models import find_models\n"
        f"report = generate(find_models({LIGHT!r}), granularity=1, out={str(tmp_path / 'suite')!r})\n"
        "unwanted = ('onnxruntime', 'pandas', 'matplotlib', 'sqlalchemy', 'torch')\n"
        "heavy = [name for name in unwanted if name in sys.modules]\n"
        # VmHWM and not ru_maxrss: the latter survives exec, so that it would report the peak of pytest.
        "(peak,) = [int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM')]\n"
        "print(json.dumps([heavy, peak, [row.error for row in report.rows], report.unique]))\n"
    )

    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    heavy, peak_kib, errors, unique = json.loads(answer.stdout)
    assert heavy == []
    assert peak_kib < 400 * 1024
    assert errors == [None] * 9
    assert unique > 500


def test_a_model_that_ends_its_process_is_named(tmp_path, small_models, monkeypatch):
    """Inference is C++: what it does to its process on hostile input is not ours to choose."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "from dlbricks.generator.decomposition import decomposer as cutter\n"
        "real = cutter.build_graph\n"
        "def build_graph(skeleton, **options):\n"
        "    if skeleton.path is not None and skeleton.path.name == 'deadly.onnx':\n"
        "        os._exit(9)\n"
        "    return real(skeleton, **options)\n"
        "cutter.build_graph = build_graph\n"
    )
    deadly = tmp_path / "deadly.onnx"
    deadly.write_bytes(Path(small_models[0].path).read_bytes())
    script = (
        "from dlbricks.generator.decomposition.generate import generate\n"
        "from dlbricks.models import find_models\n"
        "if __name__ == '__main__':\n"
        f"    models = find_models([{str(deadly)!r}, {str(small_models[0].path)!r}, 'squeezenet'])\n"
        f"    report = generate(models, granularity=1, out={str(tmp_path / 'suite')!r}, jobs=2)\n"
        "    print([row.error for row in report.rows])\n"
    )
    (tmp_path / "main.py").write_text(script)

    answer = subprocess.run(
        [sys.executable, str(tmp_path / "main.py")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "DLBRICKS_CACHE": str(tmp_path / "cache")},
    )

    errors = eval(answer.stdout)
    assert "ended the process" in errors[0]
    assert errors[1:] == [None, None]


def test_an_unforeseen_exception_costs_only_its_model(small_models, tmp_path, monkeypatch):
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "cache"))
    real, calls = decomposing.sequences, []

    def sequences(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 1:
            raise KeyError("what\nis this")
        return real(*arguments, **options)

    monkeypatch.setattr(decomposing, "sequences", sequences)

    broken, good = generate([*small_models, *small_models], granularity=1, out=tmp_path / "suite").rows

    assert "KeyError: 'what\\nis this'; check the model with onnx.checker, and report" in broken.error
    assert good.sequences == 10


def test_a_result_that_does_not_come_back_costs_only_its_model(small_models, tmp_path, monkeypatch):
    monkeypatch.setenv("DLBRICKS_CACHE", str(tmp_path / "cache"))

    class Pool:
        def __init__(self, *_arguments, **_options):
            self.calls = 0

        def submit(self, work, *arguments):
            self.calls += 1
            future = Future()
            if self.calls == 1:
                future.set_exception(TypeError("cannot pickle"))
            else:
                future.set_result(work(*arguments))
            return future

        def shutdown(self, **_options):
            pass

    monkeypatch.setattr(decomposing, "ProcessPoolExecutor", Pool)

    broken, good = generate([*small_models, *small_models], granularity=1, out=tmp_path / "suite", jobs=2).rows

    assert "TypeError: cannot pickle" in broken.error
    assert good.sequences == 10


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_model_has_a_limit_of_time_without_any_budget(jobs, source, monkeypatch):
    models = [
        source(f"(float[1,{size}] x) => (float[1,{size}] y) {{a = Relu(x) y = Neg(a)}}")
        for size in (43 + jobs, 47 + jobs)
    ]
    monkeypatch.setenv("DLBRICKS_DECOMPOSE_S", "1e-9")

    late = decompose(models, Cut(1), jobs=jobs)
    monkeypatch.setenv("DLBRICKS_DECOMPOSE_S", "inf")
    done = decompose(models, Cut(1), jobs=jobs)

    assert all("one model may take 1e-09 s to decompose" in model.reason for model in late)
    assert all(len(model.keys) == 2 for model in done)


@pytest.mark.parametrize("wrong", ["soon", "-1", "nan", "0"])
def test_a_wrong_limit_of_time_is_told(wrong, source, monkeypatch):
    monkeypatch.setenv("DLBRICKS_DECOMPOSE_S", wrong)

    with pytest.raises(UsageError, match=f"DLBRICKS_DECOMPOSE_S cannot be '{wrong}'"):
        decompose([source("(float[1,53] x) => (float[1,53] y) {y = Relu(x)}")], Cut(1))


def test_a_model_that_is_not_decomposed_in_time_has_a_reason_and_is_decomposed_later(source, monkeypatch):
    decomposing_module = import_module("dlbricks.generator.decomposition.decompose")
    monkeypatch.setattr(decomposing_module, "_LEAST_S", 0.0)
    cut, models = Cut(1), [source("(float[1,41] x) => (float[1,41] y) {a = Relu(x) y = Neg(a)}")]

    with decomposing_until(work_clock()):
        (late,) = decompose(models, cut)
    (done,) = decompose(models, cut)
    with decomposing_until(work_clock()):
        (kept,) = decompose(models, cut)

    assert "the budget ended before anything was measured" in late.reason
    assert done.keys == kept.keys


def test_a_dimension_of_a_model_that_failed_is_nobody_s_mistake(branches: Path) -> None:
    (made,) = decompose(find_models([branches]), Cut(1))
    late = Failed(replace(made.source, name="late", dims=(("past_length", 3),)), "the time was up")

    assert readable([made, late]) == [made]
