"""dlbricks: decompose a zoo of ONNX models into bricks, measure each once, reconstruct every model's latency.

The names below are the public API. Each is imported when it is first used, so that ``import dlbricks`` costs nothing::

    import dlbricks

    models = dlbricks.find_models(["squeezenet", "resnet50"])
    report = dlbricks.generate(models, granularity=1, out="suite")
    with dlbricks.Store.open("dlbricks.db") as store:
        dlbricks.run(dlbricks.Suite.open("suite"), store=store, models=models)
        estimates = dlbricks.estimate(models, store=store)
    print(estimates.frame()[["name", "sequential_ms", "measured_ms"]])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import lazy
from .version import __version__

if TYPE_CHECKING:
    from .analyzer.advice import Advice, advise
    from .analyzer.comparison.compare import Comparison, compare
    from .analyzer.comparison.gate import Gate, gate
    from .analyzer.comparison.runtime_versions import VersionComparison, compare_versions
    from .analyzer.decoding.tokens import Tokens, tokens
    from .analyzer.estimation.estimate import estimate, estimate_between
    from .analyzer.estimation.estimates import Estimates
    from .analyzer.findings.analyze import AnalyzeReport, analyze
    from .analyzer.findings.finding import Finding
    from .analyzer.findings.improve import Improvement, improve
    from .analyzer.history.confirm import confirm
    from .analyzer.history.history import History, history
    from .analyzer.kernels import Kernels, ModelKernels, kernels
    from .analyzer.manifests.manifest import Manifest, manifest
    from .analyzer.manifests.reproduce import Reproduction, reproduce
    from .analyzer.predicting import Predictions, predict
    from .analyzer.report.drawing import Plots, plots
    from .analyzer.report.reported import Report
    from .analyzer.report.tables import to_markdown
    from .analyzer.reporting import report
    from .analyzer.shell import shell_command
    from .bricks.cutting.sequences import make_sequence, sequences, split
    from .bricks.graph.model_graph import ModelGraph, build_graph
    from .bricks.layer import Layer, LayerSequence
    from .bricks.suite.brick import Brick, build_brick, load_brick
    from .bricks.suite.suite import Suite
    from .bricks.suite.writing import write_suite
    from .constructor.choice import Query
    from .constructor.remedies import Task
    from .constructor.result import Estimate
    from .db.store import Store
    from .db.values import Conditions, Failure, Measurement, Run, Stack, System
    from .errors import DlbricksError
    from .generator.backends.custom_ops import register_custom_ops
    from .generator.decomposition.cut import Cut
    from .generator.decomposition.generate import GenerateReport, generate
    from .generator.measurement.agreement import AgreementReport, check_agreement
    from .generator.measurement.measure import MeasureReport, measure
    from .generator.measurement.run import RunReport, run
    from .generator.measurement.settings import MeasurementSettings
    from .generator.network.export import to_graphsurgeon
    from .generator.planning.library_plans import PlanReport, library_plans
    from .models.source import ModelSource, find_models
    from .tabular import Tabular

__all__ = [
    "Advice", "AgreementReport", "AnalyzeReport", "Brick", "Comparison", "Conditions", "Cut", "DlbricksError",
    "Estimate", "Estimates", "Failure", "Finding", "Gate", "GenerateReport", "History", "Improvement", "Kernels",
    "Layer", "LayerSequence", "Manifest", "MeasureReport", "Measurement", "MeasurementSettings", "ModelGraph",
    "ModelKernels", "ModelSource", "PlanReport", "Plots", "Predictions", "Query", "Report", "Reproduction", "Run",
    "RunReport", "Stack", "Store", "Suite", "System", "Tabular", "Task", "Tokens", "VersionComparison", "__version__",
    "advise", "analyze", "build_brick", "build_graph", "check_agreement", "compare", "compare_versions", "confirm",
    "estimate", "estimate_between", "find_models", "gate", "generate", "history", "improve", "kernels", "library_plans",
    "load_brick", "make_sequence", "manifest", "measure", "plots", "predict", "register_custom_ops", "report",
    "reproduce", "run", "sequences", "shell_command", "split", "to_graphsurgeon", "to_markdown", "tokens",
    "write_suite",
]  # fmt: skip

__getattr__, __dir__ = lazy(
    __name__,
    {
        "analyzer.advice": ("Advice", "advise"),
        "analyzer.comparison.compare": ("Comparison", "compare"),
        "analyzer.comparison.gate": ("Gate", "gate"),
        "analyzer.comparison.runtime_versions": ("VersionComparison", "compare_versions"),
        "analyzer.decoding.tokens": ("Tokens", "tokens"),
        "analyzer.estimation.estimate": ("estimate", "estimate_between"),
        "analyzer.estimation.estimates": ("Estimates",),
        "analyzer.findings.analyze": ("AnalyzeReport", "analyze"),
        "analyzer.findings.finding": ("Finding",),
        "analyzer.findings.improve": ("Improvement", "improve"),
        "analyzer.history.confirm": ("confirm",),
        "analyzer.history.history": ("History", "history"),
        "analyzer.kernels": ("Kernels", "ModelKernels", "kernels"),
        "analyzer.manifests.manifest": ("Manifest", "manifest"),
        "analyzer.manifests.reproduce": ("Reproduction", "reproduce"),
        "analyzer.predicting": ("Predictions", "predict"),
        "analyzer.report.drawing": ("Plots", "plots"),
        "analyzer.report.reported": ("Report",),
        "analyzer.report.tables": ("to_markdown",),
        "analyzer.reporting": ("report",),
        "analyzer.shell": ("shell_command",),
        "bricks.cutting.sequences": ("make_sequence", "sequences", "split"),
        "bricks.graph.model_graph": ("ModelGraph", "build_graph"),
        "bricks.layer": ("Layer", "LayerSequence"),
        "bricks.suite.brick": ("Brick", "build_brick", "load_brick"),
        "bricks.suite.suite": ("Suite",),
        "bricks.suite.writing": ("write_suite",),
        "constructor.choice": ("Query",),
        "constructor.remedies": ("Task",),
        "constructor.result": ("Estimate",),
        "db.store": ("Store",),
        "db.values": ("Conditions", "Failure", "Measurement", "Run", "Stack", "System"),
        "errors": ("DlbricksError",),
        "generator.backends.custom_ops": ("register_custom_ops",),
        "generator.decomposition.cut": ("Cut",),
        "generator.decomposition.generate": ("GenerateReport", "generate"),
        "generator.measurement.agreement": ("AgreementReport", "check_agreement"),
        "generator.measurement.measure": ("MeasureReport", "measure"),
        "generator.measurement.run": ("RunReport", "run"),
        "generator.measurement.settings": ("MeasurementSettings",),
        "generator.network.export": ("to_graphsurgeon",),
        "generator.planning.library_plans": ("PlanReport", "library_plans"),
        "models.source": ("ModelSource", "find_models"),
        "tabular": ("Tabular",),
    },
)
