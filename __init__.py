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
    from .analyzer.comparison import Comparison, compare
    from .bricks.brick import Brick, build_brick, load_brick
    from .bricks.graph import ModelGraph, build_graph
    from .bricks.layer import Layer
    from .bricks.sequence import Sequence
    from .bricks.split import split
    from .bricks.suite import Suite, write_suite
    from .bricks.wiring import make_sequence, sequences
    from .constructor.estimate import Estimate, estimate
    from .constructor.kernels import ModelKernels, kernels
    from .db.store import Store
    from .db.values import Conditions, Failure, Measurement, Run, Stack, System
    from .errors import DlbricksError
    from .generator.agreement import AgreementReport, check_agreement
    from .generator.generate import GenerateReport, generate
    from .generator.measure import MeasureReport, measure
    from .generator.plans import PlanReport, library_plans
    from .generator.run import RunReport, run
    from .models.source import ModelSource, find_models

__all__ = [
    "Advice",
    "AgreementReport",
    "Brick",
    "Comparison",
    "Conditions",
    "DlbricksError",
    "Estimate",
    "Failure",
    "GenerateReport",
    "Layer",
    "MeasureReport",
    "Measurement",
    "ModelGraph",
    "ModelKernels",
    "ModelSource",
    "PlanReport",
    "Run",
    "RunReport",
    "Sequence",
    "Stack",
    "Store",
    "Suite",
    "System",
    "__version__",
    "advise",
    "build_brick",
    "build_graph",
    "check_agreement",
    "compare",
    "estimate",
    "find_models",
    "generate",
    "kernels",
    "library_plans",
    "load_brick",
    "make_sequence",
    "measure",
    "run",
    "sequences",
    "split",
    "write_suite",
]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Advice": "analyzer.advice",
        "AgreementReport": "generator.agreement",
        "Brick": "bricks.brick",
        "Comparison": "analyzer.comparison",
        "Conditions": "db.values",
        "DlbricksError": "errors",
        "Estimate": "constructor.estimate",
        "Failure": "db.values",
        "GenerateReport": "generator.generate",
        "Layer": "bricks.layer",
        "MeasureReport": "generator.measure",
        "Measurement": "db.values",
        "ModelGraph": "bricks.graph",
        "ModelKernels": "constructor.kernels",
        "ModelSource": "models.source",
        "PlanReport": "generator.plans",
        "Run": "db.values",
        "RunReport": "generator.run",
        "Sequence": "bricks.sequence",
        "Stack": "db.values",
        "Store": "db.store",
        "Suite": "bricks.suite",
        "System": "db.values",
        "advise": "analyzer.advice",
        "build_brick": "bricks.brick",
        "build_graph": "bricks.graph",
        "check_agreement": "generator.agreement",
        "compare": "analyzer.comparison",
        "estimate": "constructor.estimate",
        "find_models": "models.source",
        "generate": "generator.generate",
        "kernels": "constructor.kernels",
        "library_plans": "generator.plans",
        "load_brick": "bricks.brick",
        "make_sequence": "bricks.wiring",
        "measure": "generator.measure",
        "run": "generator.run",
        "sequences": "bricks.wiring",
        "split": "bricks.split",
        "write_suite": "bricks.suite",
    },
)
