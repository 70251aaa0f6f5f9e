"""dlbricks: decompose a zoo of ONNX models into bricks, measure each once, reconstruct every model's latency.

The names below are the public API. Each is imported when it is first used, so that ``import dlbricks`` costs nothing::

    import dlbricks

    models = dlbricks.find_models(["squeezenet", "resnet50"])
    report = dlbricks.generate(models, granularity=1, out="suite")
    with dlbricks.Store.open("dlbricks.db") as store:
        dlbricks.run(dlbricks.Suite.open("suite"), store=store, models=models)
        for estimate in dlbricks.estimate(models, store=store):
            print(estimate.name, estimate.sequential_ms, estimate.measured_ms)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy
from .version import __version__

if TYPE_CHECKING:
    from .analyzer.advice import Advice, advise
    from .analyzer.comparison.compare import Comparison, compare
    from .analyzer.estimation.estimate import estimate
    from .analyzer.estimation.selection import Query
    from .analyzer.findings.analyze import AnalyzeReport, analyze
    from .analyzer.findings.finding import Finding
    from .analyzer.frames import frame, to_json, to_markdown
    from .analyzer.kernels.kernels import ModelKernels, kernels
    from .analyzer.reporting import Report, report
    from .analyzer.tokens.tokens import Tokens, tokens
    from .bricks.cutting.split import split
    from .bricks.cutting.wiring import make_sequence, sequences
    from .bricks.graph.graph import ModelGraph, build_graph
    from .bricks.layer import Layer
    from .bricks.sequence import LayerSequence
    from .bricks.suite.brick import Brick, build_brick, load_brick
    from .bricks.suite.suite import Suite
    from .bricks.suite.writing import write_suite
    from .constructor.result import Estimate
    from .db.store import Store
    from .db.values import Conditions, Failure, Measurement, Run, Stack, System
    from .errors import DlbricksError
    from .generator.decomposition.generate import GenerateReport, generate
    from .generator.measurement.agreement import AgreementReport, check_agreement
    from .generator.measurement.measure import MeasureReport, measure
    from .generator.measurement.run import RunReport, run
    from .generator.planning.library_plans import PlanReport, library_plans
    from .models.source import ModelSource, find_models

__all__ = [
    "Advice",
    "AgreementReport",
    "AnalyzeReport",
    "Brick",
    "Comparison",
    "Conditions",
    "DlbricksError",
    "Estimate",
    "Failure",
    "Finding",
    "GenerateReport",
    "Layer",
    "LayerSequence",
    "MeasureReport",
    "Measurement",
    "ModelGraph",
    "ModelKernels",
    "ModelSource",
    "PlanReport",
    "Query",
    "Report",
    "Run",
    "RunReport",
    "Stack",
    "Store",
    "Suite",
    "System",
    "Tokens",
    "__version__",
    "advise",
    "analyze",
    "build_brick",
    "build_graph",
    "check_agreement",
    "compare",
    "estimate",
    "find_models",
    "frame",
    "generate",
    "kernels",
    "library_plans",
    "load_brick",
    "make_sequence",
    "measure",
    "report",
    "run",
    "sequences",
    "split",
    "to_json",
    "to_markdown",
    "tokens",
    "write_suite",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Advice": "analyzer.advice",
        "AgreementReport": "generator.measurement.agreement",
        "AnalyzeReport": "analyzer.findings.analyze",
        "Brick": "bricks.suite.brick",
        "Comparison": "analyzer.comparison.compare",
        "Conditions": "db.values",
        "DlbricksError": "errors",
        "Estimate": "constructor.result",
        "Failure": "db.values",
        "Finding": "analyzer.findings.finding",
        "GenerateReport": "generator.decomposition.generate",
        "Layer": "bricks.layer",
        "LayerSequence": "bricks.sequence",
        "MeasureReport": "generator.measurement.measure",
        "Measurement": "db.values",
        "ModelGraph": "bricks.graph.graph",
        "ModelKernels": "analyzer.kernels.kernels",
        "ModelSource": "models.source",
        "PlanReport": "generator.planning.library_plans",
        "Query": "analyzer.estimation.selection",
        "Report": "analyzer.reporting",
        "Run": "db.values",
        "RunReport": "generator.measurement.run",
        "Stack": "db.values",
        "Store": "db.store",
        "Suite": "bricks.suite.suite",
        "System": "db.values",
        "Tokens": "analyzer.tokens.tokens",
        "advise": "analyzer.advice",
        "analyze": "analyzer.findings.analyze",
        "build_brick": "bricks.suite.brick",
        "build_graph": "bricks.graph.graph",
        "check_agreement": "generator.measurement.agreement",
        "compare": "analyzer.comparison.compare",
        "estimate": "analyzer.estimation.estimate",
        "find_models": "models.source",
        "frame": "analyzer.frames",
        "generate": "generator.decomposition.generate",
        "kernels": "analyzer.kernels.kernels",
        "library_plans": "generator.planning.library_plans",
        "load_brick": "bricks.suite.brick",
        "make_sequence": "bricks.cutting.wiring",
        "measure": "generator.measurement.measure",
        "report": "analyzer.reporting",
        "run": "generator.measurement.run",
        "sequences": "bricks.cutting.wiring",
        "split": "bricks.cutting.split",
        "to_json": "analyzer.frames",
        "to_markdown": "analyzer.frames",
        "tokens": "analyzer.tokens.tokens",
        "write_suite": "bricks.suite.writing",
    },
)
