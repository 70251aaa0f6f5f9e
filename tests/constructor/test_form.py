"""A layer has one name, whichever graph is cut: that of the model's own graph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from dlbricks import estimate
from dlbricks.db import Store
from dlbricks.models import find_models


@pytest.mark.parametrize("graph", ["source", "fused", "runtime"])
def test_layers_have_the_names_of_their_source(
    graph: str, tmp_path: Path, write_branches: Callable[[Path], Path]
) -> None:
    models = find_models([str(write_branches(tmp_path / "branches.onnx"))])
    with Store.open("sqlite://") as store:
        own = estimate(models, store=store).rows[0].parts.sequences
        (found,) = estimate(models, store=store, graph=graph)

    layers = [name for part in found.parts.sequences if part.form is not None for name in part.form.source_layers]
    assert sorted(layers) == sorted(name for part in own for name in part.names)
    assert len(layers) == 6
    convolutions = [part.form for part in found.parts.sequences if any("Conv" in name for name in part.op_types)]
    assert [form.kernel for form in convolutions if form is not None] == ["3x3", "3x3"]
    assert [(one.form and one.form.source_layers) for one in found.parts.missing if one.key is not None]


def test_what_a_runtime_put_in_stands_for_no_layer() -> None:
    with Store.open("sqlite://") as store:
        (found,) = estimate(find_models(["shufflenet"]), store=store, graph="runtime")

    put_in = [part.form for part in found.parts.sequences if part.op_types == ("ReorderOutput",)]
    fused = [part.form for part in found.parts.sequences if part.op_types == ("FusedConv",)]
    assert not any(form.source_layers for form in put_in if form is not None)
    assert all(len(form.source_layers) > 1 for form in fused if form is not None)
    assert put_in or fused or not found.error  # a runtime may lay out otherwise on another machine
