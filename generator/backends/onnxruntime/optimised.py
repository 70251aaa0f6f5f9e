"""A network as an ONNX Runtime session has optimised it, with its weights, to be run as it stands."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ...network.network import Network
from .provider import Provider
from .stored import take_weights

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = ["is_left", "left_to_session", "optimised_network"]

_INLINE_BYTES = 1024

_LEFT = "dlbricks.left_to_session"
"""Key of the metadata of a network that its own session has to optimise."""


def optimised_network(
    network: Network,
    weights: Mapping[str, ort.OrtValue],
    make_options: Callable[[], ort.SessionOptions],
    providers: Sequence[Provider],
) -> Network:
    """Create the session of a network, and read back what it made of it.

    Args:
        network: A brick, or a whole model.
        weights: Values of its external initializers.
        make_options: Makes the session's options.
        providers: Of the session.

    Returns:
        The same computation; its operators are those that the session executes.
    """
    import onnxruntime as ort

    source = str(network.path) if network.model is None else network.model.SerializeToString()
    with tempfile.TemporaryDirectory(prefix="dlbricks-optimised-") as place:
        target = Path(place) / "optimised.onnx"
        options = make_options()
        options.optimized_model_filepath = str(target)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_min_size_in_bytes", str(_INLINE_BYTES)
        )
        if weights:
            options.add_external_initializers(list(weights), list(weights.values()))
        ort.InferenceSession(source, options, providers=providers, enable_fallback=0)
        model = onnx.load(str(target), load_external_data=False)
        found = take_weights(model, place)
    read = {value.name for value in model.graph.input}
    return replace(
        network,
        model=model,
        path=None,
        weights=found,
        feeds={name: array for name, array in network.feeds.items() if name in read},
        outputs=tuple(value.name for value in model.graph.output),
        overrides={},
        file_bytes=0,
        as_is=True,
    )


def left_to_session(network: Network) -> Network:
    """The network itself, which each session is to optimise anew, although it is said to run as it stands."""
    model = deepcopy(network.brick)
    model.metadata_props.add(key=_LEFT, value="1")
    return replace(network, model=model, as_is=True)


def is_left(network: Network) -> bool:
    """Whether a network is one of ``left_to_session``."""
    return network.model is not None and any(entry.key == _LEFT for entry in network.model.metadata_props)
