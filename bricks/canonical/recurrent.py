"""Rules of recurrent operators."""

from __future__ import annotations

from .draft import Draft
from .registry import rule

_ACTIVATIONS = {"RNN": (b"Tanh",), "GRU": (b"Sigmoid", b"Tanh"), "LSTM": (b"Sigmoid", b"Tanh", b"Tanh")}


@rule("RNN", "GRU", "LSTM")
def recurrent(draft: Draft) -> None:
    """Hidden size and activations are given; the outputs show which of them there are."""
    draft.pop("output_sequence")
    directions, _, hidden = draft.shape(2)
    if draft.attributes.get("direction") == b"foward":  # the default of opset 1, as printed there
        draft.attributes["direction"] = b"forward"
    draft.attributes["hidden_size"] = hidden
    draft.attributes["activations"] = tuple(
        draft.attributes.get("activations") or _ACTIVATIONS[draft.op_type] * directions
    )
