"""Quantised and low-precision files: which of their layers decompose, and estimates beside measured latency.

    python benchmarks/quantised.py [--models NAME ...] [--classes NAME ...] [--visits N] [--out DIR] [--no-measure]

Each model of the zoo is written as a file with seeded weights, and brought into each class by the tools that people
use: ``onnxruntime.quantization`` (QDQ and QOperator, signed and unsigned activations, per tensor and per channel,
dynamic, 4-bit weights) and ``onnxruntime.transformers``' conversion to float16; bfloat16 is cast here. Calibration sees
random inputs: values do not matter here, types and structure do.

1. Layers that decompose, per class and graph (``source``, ``fused``, ``runtime``), with the reasons of the others.
2. Operators that the model executes and its fused bricks do not, or the other way round: none where every brick runs
   what its layers run in the model. Changes of layout at the edges of bricks are left out; they are measured apart.
3. Estimates from bricks of the fused graph beside the models, visited in turn.

Written under ``--out``: ``quantised.json`` and ``quantised.md``.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from dlbricks import estimate, generate, run
from dlbricks.bricks.layer import LayerState
from dlbricks.bricks.suite.brick import build_brick
from dlbricks.db import Store
from dlbricks.errors import DlbricksError
from dlbricks.generator.decomposition.cutter import Cut, CutModel, Cutter
from dlbricks.generator.decomposition.oracle import WorkerOracle
from dlbricks.generator.network.export import export_model
from dlbricks.generator.network.network import synthetic_network
from dlbricks.models import ModelSource, find_models
from facts import number, percent, provenance, share, write
from onnx import TensorProto, helper, numpy_helper, version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

_MODELS = ("squeezenet", "resnet18", "mobilenet_v2", "minilm_l6")
__all__ = ["CLASSES", "files"]

_GRAPHS = ("source", "fused", "runtime")
_LAYOUTS = frozenset({"Reshape", "ReorderInput", "ReorderOutput", "Transpose"})
_SILENT = 4
_SAMPLES = 2
_OPSET = 21


class _Inputs(CalibrationDataReader):
    """Random inputs of a model, legal where they are indices."""

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


CLASSES: Mapping[str, Callable[[Path, Path], None]] = {
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
"""By what they are called in tables."""


def main() -> None:
    """Make files, decompose, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(_MODELS))
    parser.add_argument("--classes", nargs="+", default=list(CLASSES), choices=list(CLASSES))
    parser.add_argument("--visits", type=int, default=24)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--no-measure", action="store_true", help="decompose only")
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)  # the quantizer writes to the root logger
    with tempfile.TemporaryDirectory(prefix="dlbricks-quantised-") as place:
        folder = Path(place)
        made, refused = files(folder, options.models, options.classes)
        with Store.open(folder / "quantised.db") as store, WorkerOracle() as oracle:
            shares = [row for name, one in made for row in _shares(name, one, oracle)]
            measured: dict[str, Any] = {}
            if not options.no_measure:
                measured = _measured([one for _, one in made], store, folder, options)
    result = {"models": options.models, "not_made": refused, "decomposed": shares, **measured}
    write(options.out, "quantised", result, report(result))


def files(
    folder: Path, models: Sequence[str], classes: Sequence[str]
) -> tuple[list[tuple[str, ModelSource]], list[dict[str, str]]]:
    """The files that could be made, each with its class; and why others could not."""
    found: list[tuple[str, ModelSource]] = []
    refused: list[dict[str, str]] = []
    for name in models:
        plain = folder / f"{name}.onnx"
        export_model(find_models([name])[0], plain)
        # Conversions per channel and by blocks came with opsets 13 and 21; the tools write them into any.
        onnx.save(version_converter.convert_version(onnx.load(plain), _OPSET), plain)
        for kind in classes:
            target = folder / f"{name}-{kind}.onnx"
            try:
                CLASSES[kind](plain, target)
            except Exception as error:  # noqa: BLE001  # the quantizer raises whatever its parts raise
                refused.append({"model": name, "class": kind, "reason": f"{type(error).__name__}: {error}"[:200]})
            else:
                found.append((kind, find_models([target])[0]))
    return found, refused


def _shares(kind: str, source: ModelSource, oracle: WorkerOracle) -> Iterator[dict[str, Any]]:
    """Of each graph the layers by what became of them."""
    for graph in _GRAPHS:
        row: dict[str, Any] = {"model": source.name, "class": kind, "graph": graph}
        try:
            with Cutter(Cut(1, graph=graph), oracle=oracle) as cutter:
                cut = cutter(source)
        except DlbricksError as error:
            yield row | {"error": str(error)}
            continue
        layers = cut.graph.layers
        states = Counter(str(layer.state) for layer in layers)
        reasons = Counter(layer.reason.partition(":")[0] for layer in layers if layer.state is LayerState.SKIPPED)
        uncounted = Counter(layer.kind for layer in layers if layer.state is LayerState.LIVE and layer.cost is None)
        row |= {"layers": len(layers), "states": dict(states), "reasons": dict(reasons), "uncounted": dict(uncounted)}
        row |= {"sequences": len(cut.sequences), "macs": sum(one.cost.macs for one in layers if one.cost is not None)}
        yield row | ({"differences": _differences(cut)} if graph == "fused" else {})


def _differences(cut: CutModel) -> dict[str, tuple[int, int]]:
    """Operators of which the model executes another number than its bricks: that of the model, that of the bricks."""
    assert cut.executed is not None  # a fused cut
    model = Counter(layer.op_type for layer in cut.executed.graph.layers)
    bricks = Counter[str]()
    kept: dict[str, Counter[str]] = {}
    for part in cut.sequences:
        if part.key not in kept:
            network = synthetic_network(onnx.load_model_from_string(build_brick(cut.graph, part).model))
            kept[part.key] = _executed(network.self_contained())
        bricks += kept[part.key]
    kinds = sorted({*model, *bricks} - _LAYOUTS)
    return {kind: (model[kind], bricks[kind]) for kind in kinds if model[kind] != bricks[kind]}


def _executed(model: onnx.ModelProto) -> Counter[str]:
    with tempfile.TemporaryDirectory() as place:
        options = ort.SessionOptions()
        options.log_severity_level = _SILENT
        options.optimized_model_filepath = str(Path(place) / "executed.onnx")
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return Counter(node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node)


def _measured(
    sources: Sequence[ModelSource], store: Store, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Estimates beside measured latency, of bricks and models that were visited in turn."""
    made = generate(sources, granularity=1, graph="fused", out=folder / "suite")
    usable = [source for source, row in zip(sources, made.rows, strict=True) if row.error is None]
    if made.suite is None:
        raise SystemExit("no model can be decomposed")
    done = run(made.suite, store=store, models=usable, visits=options.visits, processes=options.processes)
    found = estimate(usable, store=store, graph="fused", stack=done.stack, system=done.system)
    rows = [
        {
            "model": one.name, "estimate_ms": one.estimate_ms, "measured_ms": one.measured_ms, "ratio": one.ratio,
            "ratio_ci95": one.ratio_ci95, "paired": one.paired, "disturbed": one.disturbed,
            "coverage": one.coverage and one.coverage.sequences,
            "reason": one.error or "; ".join(missing.reason for missing in one.missing[:1]),
        }
        for one in found
    ]  # fmt: skip
    errors = [abs(row["ratio"] - 1) for row in rows if row["ratio"] is not None]
    return {
        **provenance(store, done.system, done.stack),
        "visits": options.visits,
        "processes": options.processes,
        "bricks": {"unique": made.unique, "measured": done.measured, "failed": done.failed},
        "failures": dict(done.failures),
        "estimates": rows,
        "median_error": statistics.median(errors) if errors else None,
        "within_10_percent": share(sum(error <= 0.1 for error in errors), len(errors)),
    }


def report(result: Mapping[str, Any]) -> str:
    """The tables as Markdown."""
    lines = ["# Quantised and low-precision files\n", "Written by `benchmarks/quantised.py` (docs/quantised.md).\n"]
    lines += ["Layers that decompose (live or folded), over all models of a class:\n"]
    lines += ["| class | source | fused | runtime | the others |", "|---|---:|---:|---:|---|"]
    rows = result["decomposed"]
    for kind in dict.fromkeys(row["class"] for row in rows):
        cells, reasons = [], Counter[str]()
        for graph in _GRAPHS:
            own = [row for row in rows if (row["class"], row["graph"]) == (kind, graph)]
            known = [row for row in own if "error" not in row]
            done = sum(sum(row["states"].values()) - row["states"].get("skipped", 0) for row in known)
            cells.append(percent(share(done, sum(row["layers"] for row in known))))
            for row in known:
                reasons.update(row["reasons"])
            reasons.update(row["error"][:120] for row in own if "error" in row)
        text = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(2)).replace("|", " ")
        lines.append(f"| {kind} | {' | '.join(cells)} | {text} |")
    apart = [row for row in rows if row.get("differences")]
    lines += [
        "\nOperators that fused bricks execute otherwise than the model (model, bricks), before poolings of bytes are"
    ]
    lines += ["brought to channels last, as they are where they are measured:\n"]
    lines += [f"- {row['model']}: {row['differences']}" for row in apart] or ["None."]
    if result.get("estimates"):
        versions = " ".join(f"{name} {version}" for name, version in result["stack"]["versions"].items())
        lines += [f"\nEstimates from fused bricks, one thread, {versions}, {result['date']}:\n"]
        lines += [f"Median error {percent(result['median_error'])}; "]
        lines[-1] += f"{percent(result['within_10_percent'])} within 10 %; {result['visits']} visits of each.\n"
        disturbed = sum(bool(row["disturbed"]) for row in result["estimates"])
        lines += [
            f"Disturbed: {disturbed} of {len(result['estimates'])}. `int4-nbits` of a model without matrix products "
        ]
        lines[-1] += "is that model as it was: its ratio shows what the machine did.\n"
        lines += ["| model | estimate ms | measured ms | ratio | 95 % | |", "|---|---:|---:|---:|---|---|"]
        lines += [
            f"| {row['model']} | {number(row['estimate_ms'])} | {number(row['measured_ms'])} | {number(row['ratio'])} "
            f"| {' to '.join(map(number, row['ratio_ci95'] or ()))} "
            f"| {(row['reason'] or '')[:120].replace('|', ' ')} |"
            for row in result["estimates"]
        ]
    if result["not_made"]:
        lines += ["\nFiles that the tools could not make:\n"]
        lines += [f"- {one['model']} {one['class']}: {one['reason']}" for one in result["not_made"]]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
