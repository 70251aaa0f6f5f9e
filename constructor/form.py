"""What a sequence of a model is called and looks like: the same words wherever a layer is named."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, fields

from ..bricks.sequence import LayerSequence
from ..bricks.suite.signature import Signature, signature_in
from .decomposition import Decomposition

__all__ = ["Form", "form_of"]


_SIGNATURE = tuple(field.name for field in fields(Signature))


@dataclass(frozen=True, slots=True)
class Form(Signature):
    """The signature of a sequence (``bricks.suite.signature``), and the layers of the model that it stands for.

    Attributes:
        source_layers: Their names in the model's own graph, in its order; of a node that a runtime executes, those that
            it came from, and none where the runtime put it in (changes of layout).
        kernels: Those that ran for it under a profiler, the longest first; empty where none is stored.
    """

    source_layers: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()


def form_of(
    model: Decomposition,
    part: LayerSequence,
    *,
    kernels: Mapping[str, tuple[str, ...]] | None = None,
    known: MutableMapping[str, Signature] | None = None,
) -> Form:
    """What a sequence of a model is.

    Args:
        model: The model.
        part: The sequence, of the graph that was cut.
        kernels: Those that are stored, by brick.
        known: Signatures by brick, of sequences that were asked for before; added to.
    """
    sources = part.layers
    if model.executed is not None and model.graph is model.executed.graph:
        sources = tuple(sorted(frozenset[int]().union(*(model.executed.origins[index] for index in part.layers))))
    names = tuple(model.own.layers[index].name for index in sources)
    signature = (known or {}).get(part.key) or signature_in(model.graph, part)
    if known is not None:
        known[part.key] = signature
    described = {name: getattr(signature, name) for name in _SIGNATURE}
    return Form(**described, source_layers=names, kernels=(kernels or {}).get(part.key, ()))
