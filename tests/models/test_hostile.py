"""Small files that ask for terabytes or hours: each is bounded before the work begins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnx.parser
import pytest
from dlbricks.errors import BrokenModel, UnsupportedModel
from dlbricks.models import runnable, subgraphs
from dlbricks.models.normal import normalise
from dlbricks.models.runnable import load_skeleton
from dlbricks.models.subgraphs import infer_shapes

_LIST = {
    "Range": "<int64 a = {0}, int64 b = {1099511627776}, int64 c = {1}> { q = Range(a, b, c)",
    "Expand": "<int64[1] a = {1}, int64[1] b = {1099511627776}> { q = Expand(a, b)",
    "ConstantOfShape": "<int64[1] b = {1099511627776}> { q = ConstantOfShape(b)",
}


_HEAD = '<ir_version: 8, opset_import: ["": 17, "local": 1]> '

_READ = "<int64 a = {0}, int64 b = {1099511627776}, int64 c = {1}> { q = Range(a, b, c) m = Gather(q, a)"
"""A list of terabytes whose values inference follows, since a Gather reads it."""


def parse(body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(_HEAD + body)


@pytest.mark.parametrize("operator", _LIST)
def test_a_list_of_terabytes_is_not_followed_element_by_element(operator):
    """In a process of its own, since the limit on memory is one of the process."""
    text = f"g (float[1] x) => (float y) {_LIST[operator]} f = Cast<to=1>(q) y = Add(x, f) }}"
    model = f"<ir_version: 8, opset_import: ['': 17]> {text}".replace("'", '"')
    code = (
        "import resource, onnx.parser\n"
        "from dlbricks.models.subgraphs import infer_shapes\n"
        "before = resource.getrlimit(resource.RLIMIT_AS)\n"
        f"inferred = infer_shapes(onnx.parser.parse_model({model!r}))\n"
        "shapes = {value.name: value.type.tensor_type.shape for value in inferred.graph.value_info}\n"
        "print([dim.dim_value for dim in shapes['f'].dim], resource.getrlimit(resource.RLIMIT_AS) == before)\n"
    )

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == (f"[{1 << 40}] True\n", 0), done.stderr


def test_one_inference_after_the_other_takes_no_more_memory_than_one():
    text = f"g (float[1] x) => (float[1] y) {_READ} f = Cast<to=1>(m) y = Add(x, f) }}"
    code = (
        "import pathlib, re, onnx.parser\n"
        "from dlbricks.models.subgraphs import infer_shapes\n"
        f"model = onnx.parser.parse_model({_HEAD + text!r})\n"
        "for _ in range(5):\n"
        "    infer_shapes(model)\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
    )

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)

    assert int(done.stdout) < 600 << 10  # KiB: one inference may take 256 MiB beyond the interpreter


def test_inference_answers_in_a_process_that_has_no_memory_left():
    """A thread could not be started there: its creator waited for ever, or the model was called broken."""
    code = (
        "import pathlib, re, resource, onnx.parser\n"
        "from dlbricks.models.subgraphs import infer_shapes\n"
        f"model = onnx.parser.parse_model({_HEAD + 'g (float[1] x) => (float y) { y = Relu(x) }'!r})\n"
        "infer_shapes(model)\n"
        "kib = int(re.search(r'VmData:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (kib << 10, resource.getrlimit(resource.RLIMIT_DATA)[1]))\n"
        "try:\n"
        "    print(infer_shapes(model).graph.name)\n"
        "except MemoryError:\n"
        "    print('no memory')\n"
    )

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, timeout=60)

    assert done.stdout in {"g\n", "no memory\n"}, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_inference_answers_in_a_forked_process():
    """It has no thread but the one that forked."""
    code = (
        "import os, onnx.parser\n"
        "from dlbricks.models.subgraphs import infer_shapes\n"
        f"model = onnx.parser.parse_model({_HEAD + 'g (float[1] x) => (float y) { y = Relu(x) }'!r})\n"
        "infer_shapes(model)\n"
        "if (child := os.fork()):\n"
        "    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "print(infer_shapes(model).graph.name)\n"
    )

    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "g\n"


def test_inference_that_does_not_fit_without_values_either_is_refused(monkeypatch):
    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(subgraphs.shape_inference, "infer_shapes", exhausted)
    model = parse("g (float[1] x) => (float y) { y = Relu(x) }")

    with pytest.raises(UnsupportedModel, match="more memory"):
        infer_shapes(model)


def _branches(count: int) -> onnx.ModelProto:
    """A branch with many Ifs: inference copies for each the names before it."""
    inner = (
        "If(c)<then_branch = t () => (float[1] o) { o = Relu(x) }, else_branch = e () => (float[1] o) { o = Neg(x) }>"
    )
    nodes = " ".join(f"v{index} = {inner}" for index in range(count))
    outer = f"then_branch = b () => (float[1] v0) {{ {nodes} }}, else_branch = z () => (float[1] o) {{ o = Abs(x) }}"
    return parse(f"g (float[1] x, bool c) => (float[1] y) {{ y = If(c)<{outer}> }}")


def test_control_flow_that_takes_quadratic_time_is_refused(monkeypatch):
    monkeypatch.setattr(subgraphs, "_MOST_SCOPE", 5_000)

    infer_shapes(_branches(40))
    with pytest.raises(UnsupportedModel, match="control flow is too large"):
        infer_shapes(_branches(80))


def test_functions_that_multiply_a_large_attribute_are_refused():
    text = "a" * 100_000
    calls = " ".join(f"y{index} = local.f(x)" for index in range(20_000))
    model = parse(
        f"g (float[1] x) => (float[1] y0) {{ {calls} }} "
        f'<domain: "local", opset_import: ["": 17, "local": 1]> f (x) => (y) {{ y = local.g<s="{text}">(x) }}'
    )

    with pytest.raises(UnsupportedModel, match="expand to 20000 nodes of"):
        normalise(model)


def test_a_sparse_constant_of_strings_is_refused():
    model = parse("g (float[1] x) => (float[1] y) { y = Relu(x) }")
    sparse = model.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(onnx.helper.make_tensor("s", onnx.TensorProto.STRING, [1], ["a"]))
    sparse.indices.CopyFrom(onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0]))

    with pytest.raises(BrokenModel, match="'s' is of strings"):
        normalise(model)


def test_whatever_breaks_while_a_file_is_read_names_the_file(tmp_path: Path, monkeypatch):
    def broken(_: object) -> None:
        raise NotImplementedError("a new kind")

    path = tmp_path / "model.onnx"
    onnx.save(parse("g (float[1] x) => (float[1] y) { y = Relu(x) }"), path)
    monkeypatch.setattr(runnable, "normalise", broken)

    with pytest.raises(BrokenModel, match=r"model\.onnx could not be read: NotImplementedError: a new kind"):
        load_skeleton(path)
