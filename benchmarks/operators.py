"""Write the table of operators by domain: decomposition, formula for the work, and measurement, per backend.

    python benchmarks/operators.py [--run] [--check]

``--run`` decomposes every model of the onnx wheel's node tests at G=1, and the graphs that ONNX Runtime executes for
quantised files. It measures each brick with ONNX Runtime and writes the result by operator to
``docs/results/operators.json``; it needs the ``zoo`` extra. docs/reference/operators.md comes from that file, from
``docs/results/classes.json`` (shares by class of files) and from the code: operators with a formula, and operators of
PyTorch, MXNet, cuDNN and CuPy. ``--check`` writes nothing and fails if the page would change; a test does the same.

Quantised files have seeded weights. Common tools make them: ``onnxruntime.quantization`` and the conversion of
``onnxruntime.transformers`` to float16; bfloat16 is cast here. Calibration gets random inputs, because types and
structure matter here and values do not.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import blocks
import numpy as np
import onnx
import onnxruntime as ort
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.operators import OPERATORS
from dlbricks.bricks.suite.brick import Brick, build_brick
from dlbricks.bricks.suite.writing import write_suite
from dlbricks.db import Store, Subject
from dlbricks.errors import DlbricksError
from dlbricks.generator.decomposition.cut import Cut
from dlbricks.generator.decomposition.decomposer import Decomposer
from dlbricks.generator.measurement.run import run
from dlbricks.generator.network.export import export_model
from dlbricks.models import ModelSource, find_models
from dlbricks.models.subgraphs import plain_domain
from node_bricks import write_node_tests
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

PAGES = (Path("docs/reference/operators.md"),)

_RESULT, _CLASSES = Path("docs/results/operators.json"), Path("docs/results/classes.json")
_COSTED = {key for key, row in OPERATORS.items() if row.work or row.each}
"""Operators whose work is known."""

_ONNX = "ai.onnx"
_QUANTISED = ("squeezenet", "minilm_l6")
"""Models with quantised files that contain the runtime's operators."""

_OPSET = 21
_SAMPLES = 2
"""Inputs of a calibration."""

Counts = dict[str, dict[str, int]]


def main() -> None:
    """Run if requested; then write the page, or check it."""
    if "--run" in sys.argv:
        sys.argv.remove("--run")
        result = experiment()
        (blocks.TOP / _RESULT).write_text(json.dumps(result, indent=1) + "\n")
    blocks.write(PAGES, lambda text: rendered(text, blocks.TOP), __doc__ or "", "run python benchmarks/operators.py")


def rendered(text: str, top: Path) -> str:
    """Return the page with new tables.

    Args:
        text: The page.
        top: Folder of the project.
    """
    result = {**json.loads((top / _RESULT).read_text()), **_found(top)}
    return blocks.rendered(text, lambda name: _BLOCKS[name](result))


def _found(top: Path) -> dict[str, Any]:
    """Return the decomposed shares by class of files, with the versions of both runs."""
    found = json.loads((top / _CLASSES).read_text())
    return {"classes": found["classes"], "class_versions": found["versions"]}


def experiment() -> dict[str, Any]:
    """Decompose, measure, and count by operator."""
    logging.disable(logging.CRITICAL)  # the quantizer writes to the root logger
    counts: Counts = defaultdict(Counter)  # type: ignore[assignment]
    with tempfile.TemporaryDirectory(prefix="dlbricks-operators-") as place:
        folder = Path(place)
        with Store.open(folder / "operators.db") as store:
            stack = ""
            for graph, sources in (("source", _node_tests(folder / "nodes")), ("runtime", _quantised(folder))):
                with Decomposer(Cut(1, graph=graph)) as cutter:
                    bricks, of = _decomposed(sources, cutter, counts)
                    bound = Cut(1, graph=graph).bound_to()
                suite = write_suite(folder / graph, bricks, granularity=1, graph=graph, bound_to=bound)
                done = run(suite, store=store, visits=10, processes=1, sessions=1)
                failed = {one.key for one in store.failures(subject=Subject.BRICK)} | {key for key, _ in done.failures}
                for key, operator in of.items():
                    counts[operator]["bricks"] += 1
                    counts[operator]["measured"] += key not in failed
                stack = done.stack
            versions = dict(store.stacks()[stack].versions)
    return {"versions": versions, "operators": {name: dict(counts[name]) for name in sorted(counts)}}


def _decomposed(
    sources: Sequence[ModelSource], cutter: Decomposer, counts: Counts
) -> tuple[dict[str, Brick], dict[str, str]]:
    """Return the bricks of models by key, the operator of each, and the number of layers by outcome."""
    bricks: dict[str, Brick] = {}
    of: dict[str, str] = {}
    for source in sources:
        try:
            cut = cutter(source)
        except DlbricksError:
            continue  # a test that is no model on its own, or that the runtime cannot load
        for layer in cut.graph.layers:
            name = _name(plain_domain(layer.domain), layer.op_type)
            counts[name]["layers"] += 1
            counts[name]["decomposed"] += layer.state is not LayerState.SKIPPED
        for part in cut.sequences:
            (index,) = part.layers
            layer = cut.graph.layers[index]
            if part.key not in bricks:
                bricks[part.key] = build_brick(cut.graph, part)
                of[part.key] = _name(plain_domain(layer.domain), layer.op_type)
    return bricks, of


def _name(domain: str, operator: str) -> str:
    return f"{domain or _ONNX}.{operator}"


def _node_tests(folder: Path) -> list[ModelSource]:
    write_node_tests(folder)
    return find_models([folder])


# Quantised files. ----------------------------------------------------------------------------------------------------


class _Inputs(CalibrationDataReader):
    """Random inputs of a model, with legal indices."""

    def __init__(self, path: Path) -> None:
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        draws = np.random.default_rng(0)
        self._left = [
            {one.name: _drawn(draws, one.shape, one.type) for one in session.get_inputs()} for _ in range(_SAMPLES)
        ]

    def get_next(self) -> dict[str, Any] | None:
        """As the calibration asks for it."""
        return self._left.pop() if self._left else None


def _drawn(draws: np.random.Generator, shape: Sequence[int], kind: str) -> Any:
    if "int64" in kind:
        return draws.integers(0, 2, shape)
    return draws.standard_normal(shape).astype(np.float32)


def _static(style: QuantFormat, activations: QuantType, *, per_channel: bool = False) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        quantize_static(
            source, target, _Inputs(source), quant_format=style, activation_type=activations,
            weight_type=QuantType.QInt8, per_channel=per_channel,
        )  # fmt: skip

    return make


def _dynamic(source: Path, target: Path) -> None:
    quantize_dynamic(source, target, weight_type=QuantType.QInt8)


def _four_bits(style: QuantFormat) -> Callable[[Path, Path], None]:
    def make(source: Path, target: Path) -> None:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            onnx.load(str(source)), block_size=32, is_symmetric=False, accuracy_level=4, quant_format=style
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(target), use_external_data_format=False)

    return make


def _float16(source: Path, target: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(str(source))), str(target))


def _bfloat16(source: Path, target: Path) -> None:
    """Every float of a model as bfloat16, its inputs and outputs too."""
    model = onnx.load(str(source))
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            wide = numpy_helper.to_array(tensor)
            narrow = helper.make_tensor(tensor.name, TensorProto.BFLOAT16, wide.shape, wide.ravel())
            tensor.CopyFrom(narrow)
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.BFLOAT16
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.FLOAT:
                wide = numpy_helper.to_array(attribute.t)
                attribute.t.CopyFrom(helper.make_tensor("", TensorProto.BFLOAT16, wide.shape, wide.ravel()))
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    onnx.save(model, str(target))


_FORMS: Mapping[str, Callable[[Path, Path], None]] = {
    "qdq-u8": _static(QuantFormat.QDQ, QuantType.QUInt8),
    "qdq-u8-channel": _static(QuantFormat.QDQ, QuantType.QUInt8, per_channel=True),
    "qdq-s8": _static(QuantFormat.QDQ, QuantType.QInt8),
    "qdq-u16": _static(QuantFormat.QDQ, QuantType.QUInt16),
    "qoperator": _static(QuantFormat.QOperator, QuantType.QUInt8),
    "dynamic": _dynamic,
    "int4-nbits": _four_bits(QuantFormat.QOperator),
    "int4-qdq": _four_bits(QuantFormat.QDQ),
    "float16": _float16,
    "bfloat16": _bfloat16,
}


def _quantised(folder: Path) -> list[ModelSource]:
    """Return each model in each form that the tools can make; name the others on stderr."""
    found: list[ModelSource] = []
    for name in _QUANTISED:
        plain = folder / f"{name}.onnx"
        export_model(find_models([name])[0], plain)
        # Conversions per channel and by blocks came with opsets 13 and 21; the tools write them into any.
        onnx.save(version_converter.convert_version(onnx.load(plain), _OPSET), plain)
        for form, make in _FORMS.items():
            target = folder / f"{name}-{form}.onnx"
            try:
                make(plain, target)
            except Exception as error:  # noqa: BLE001  # the quantizer raises whatever its parts raise
                print(f"{target.name}: {type(error).__name__}: {error}"[:200], file=sys.stderr)
            else:
                found += find_models([target])
    return found


# The page. -----------------------------------------------------------------------------------------------------------


def _torch() -> set[str]:
    from dlbricks.generator.backends.torch.operators.arguments import operators

    return set(operators())


def _mxnet() -> set[str]:
    from dlbricks.generator.backends.mxnet.operators.translation import translations

    return set(translations())


def _cudnn() -> set[str]:
    from dlbricks.generator.backends.cudnn.lowering import OPERATORS

    return set(OPERATORS)


def _cupy() -> set[str]:
    from dlbricks.generator.backends.cupy.kernel_call import POINTWISE
    from dlbricks.generator.backends.cupy.raw_kernels import MOVERS, POOLINGS

    return {*MOVERS, *POINTWISE, *POOLINGS}


_BACKENDS = {"PyTorch": _torch, "MXNet": _mxnet, "cuDNN": _cudnn, "CuPy": _cupy}
"""ONNX operators of the backends that have a function per operator."""


def _domains(result: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Return each domain with the operators of the run and the operators with a formula."""
    names = {*result["operators"], *(_name(*key) for key in _COSTED)}
    domains: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        domain, _, operator = name.rpartition(".")
        domains[domain].append(operator)
    yield from sorted(domains.items())


def _tables(result: Mapping[str, Any]) -> str:
    known = {name: find() for name, find in _BACKENDS.items()}
    lines = [""]
    for domain, operators in _domains(result):
        others = ["other backends"] if domain == _ONNX else []
        titles = ["operator", "layers decomposed", "work", "ONNX Runtime", *others]
        lines += [f"### {domain}", "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        for operator in operators:
            counts = result["operators"].get(f"{domain}.{operator}", {})
            cost = (("" if domain == _ONNX else domain), operator) in _COSTED
            cells = [
                operator,
                _of(counts.get("decomposed"), counts.get("layers")),
                "yes" if cost else "-",
                _of(counts.get("measured"), counts.get("bricks")),
                *(", ".join(name for name in known if operator in known[name]) for _ in others),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _of(some: int | None, among: int | None) -> str:
    """Format a count; empty without a trial."""
    return "" if not among else f"{some or 0}/{among}"


def _summary(result: Mapping[str, Any]) -> str:
    lines = ["", "| domain | operators seen | layers that decompose | bricks measured | operators with a formula |"]
    lines.append("|---|---:|---:|---:|---:|")
    for domain, operators in _domains(result):
        counts = [result["operators"].get(f"{domain}.{one}", {}) for one in operators]
        total: Counter[str] = Counter()
        for one in counts:
            total.update(one)
        costed = sum((("" if domain == _ONNX else domain), one) in _COSTED for one in operators)
        seen = sum(bool(one) for one in counts)
        lines.append(
            f"| {domain} | {seen} | {_of(total['decomposed'], total['layers'])} "
            f"| {_of(total['measured'], total['bricks'])} | {costed}/{len(operators)} |"
        )
    return "\n".join([*lines, ""])


def _classes(result: Mapping[str, Any]) -> str:
    """Layers that decompose by class of files; names are left out of the reasons."""
    lines = ["", "| class | graph | files | layers that decompose | | the others |", "|---|---|---:|---:|---:|---|"]
    for name, rows in result["classes"].items():
        for row in rows:
            done, layers = row["decomposed"], row["layers"]
            rest = Counter[str]()
            for reason, count in (*row["reasons"].items(), *row["unreadable"].items()):
                rest[re.sub("^(input|output) … ", "", reason)] += count
            lines.append(
                f"| {name} | `{row['graph']}` | {row['files']} | {_of(done, layers)} | {100 * done / layers:.1f} % "
                f"| {'; '.join(f'{count} x {reason}' for reason, count in rest.most_common())} |"
            )
    return "\n".join([*lines, ""])


def _versions(result: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in result["versions"].items())


def _class_versions(result: Mapping[str, Any]) -> str:
    return _versions({"versions": result["class_versions"]})


_BLOCKS = {
    "classes": _classes,
    "class-versions": _class_versions,
    "operators": _tables,
    "summary": _summary,
    "versions": _versions,
}


if __name__ == "__main__":
    main()
