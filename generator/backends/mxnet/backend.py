"""MXNet, in an environment of its own.

Inside a model a brick reads channels in blocks: oneDNN lays them out so, and MXNet keeps them there. Alone, a brick
would find its inputs in order, and change their layout first, which takes as long as a small convolution. What oneDNN
computes for a convolution of each channel by itself is in the layout that it gives there.
"""

from __future__ import annotations

import json
import os
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, TensorProto, helper

from ....bricks.constants import element_name
from ....errors import BackendUnavailable, UnsupportedBrick
from ...network.network import Network
from ..base import MADE_OF, Backend, Executable, ExecutedGraph, Option, Settings, ValueType, bind, node_name, released
from ..environments import Environment
from ..reports import Wording
from .operators.translation import MxnetNetwork, Symbol, labelled, translate

if TYPE_CHECKING:
    import mxnet as mx

# Which layers MXNet executes together: the names that its optimised symbol keeps of what it fused.
#
# oneDNN's subgraphs hold the operators that they were made of, with their names. While a network is translated, every
# operator is named after its node in ONNX (``translation.label``), so that each is known again.
#
# Operators of this graph are MXNet's own (``_sg_mkldnn_conv``), and have no form that runs in parts.


_DOMAIN = "mxnet"

_IR_VERSION = 10

_VARIABLE = "null"
"""What MXNet writes for the operator of what is bound: inputs, weights and states."""


def executed_graph(translated: MxnetNetwork, symbol: Symbol) -> ExecutedGraph:
    """What MXNet executes, each node with the values of ONNX that it was made of (``MADE_OF``).

    Values have names of their own, but for the inputs.

    Args:
        translated: The network in MXNet's terms.
        symbol: Its symbol as it is bound, optimised or not.
    """
    written = json.loads(symbol.tojson())
    known = _types(translated, symbol)
    model = onnx.ModelProto(ir_version=_IR_VERSION)
    model.opset_import.extend([helper.make_opsetid("", 21), helper.make_opsetid(_DOMAIN, 1)])
    graph = model.graph
    graph.input.extend(onnx.ValueInfoProto(name=name) for name in translated.feeds.values())
    names: dict[tuple[int, int], str] = {}
    types: dict[str, ValueType] = {}
    for number, entry in enumerate(written["nodes"]):
        name = str(entry["name"])
        if entry["op"] == _VARIABLE:
            names[number, 0] = translated.feeds.get(name, name)
            if name not in translated.feeds:
                graph.initializer.append(_constant(name, translated.arrays[name]))
            continue
        found = known.get(name, ())
        given = [f"{name}.{place}" for place in range(max(len(found), 1))]
        names |= {(number, place): value for place, value in enumerate(given)}
        types |= dict(zip(given, found, strict=False))
        read = [names[source, place] for source, place, *_ in entry["inputs"]]
        node = graph.node.add(op_type=entry["op"], domain=_DOMAIN, input=read, output=given)
        node.name = node_name(node)
        values = {value for name in _inside(entry) for value in translated.labels.get(labelled(name), ())}
        node.attribute.append(helper.make_attribute(MADE_OF, sorted(values), attr_type=AttributeProto.STRINGS))
    graph.output.extend(onnx.ValueInfoProto(name=names[source, place]) for source, place, *_ in written["heads"])
    return ExecutedGraph(model, types)


def _inside(entry: Mapping[str, Any]) -> Iterator[str]:
    """Names of the operators that a node executes: its own, or those of its subgraphs."""
    inner = [node for graph in entry.get("subgraphs", ()) for node in graph["nodes"] if node["op"] != _VARIABLE]
    if not inner:
        yield str(entry["name"])
    for node in inner:
        yield from _inside(node)


def _types(translated: MxnetNetwork, symbol: Symbol) -> dict[str, list[ValueType]]:
    """Operator to the types of its outputs."""
    values = symbol.get_internals()
    bound = translated.arrays
    _, shapes, _ = values.infer_shape(**{name: bound[name].shape for name in values.list_inputs()})
    _, elements, _ = values.infer_type(**{name: bound[name].dtype for name in values.list_inputs()})
    found: dict[str, list[ValueType]] = {}
    for value, shape, element in zip(values, shapes, elements, strict=True):
        found.setdefault(value.name, []).append(
            (element_name(helper.np_dtype_to_tensor_dtype(np.dtype(element))), tuple(shape))
        )
    return found


def _constant(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    """A constant without its values."""
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return TensorProto(name=name, data_type=element, dims=array.shape, data_location=TensorProto.EXTERNAL)


_SWITCH = ("on", "off")
_ENGINES = {"threaded": "ThreadedEnginePerDevice", "naive": "NaiveEngine"}

_OPTIONS = (
    Option("engine", "threaded", tuple(_ENGINES), "operators run in a thread of the engine's, or in the calling one"),
    Option("subgraph", "onednn", ("onednn", "none"), "whether operators are fused for oneDNN"),
    Option("onednn", "on", _SWITCH, "whether operators use oneDNN"),
    Option("common_expressions", "on", _SWITCH, "compute equal operators on equal inputs once"),
    Option("pinning", "on", _SWITCH, "bind the process to the first physical cores"),
)

_TYPES = frozenset({"bool", "float16", "float32", "float64", "int8", "uint8", "int32", "int64"})

_WORDING = Wording(
    "MXNet",
    unsupported=re.compile(
        r"[Uu]nknown type|[Nn]ot (been )?(implemented|supported)|does ?n.t support|does not support|only supports?|"
        r"currently ?only|Unsupported|[Oo]nly support|Expected (float|int)"
    ),
    noise=re.compile(r"^\w*MXNetError: "),
)


class MxnetBackend(Backend):
    """MXNet 1.9 on the CPU: symbols bound to arrays."""

    name = "mxnet"
    module = "mxnet"
    distributions = ("mxnet",)
    install = "dlbricks backends install mxnet"
    environment = Environment("mxnet", Path(__file__).with_name("pins.txt"), python="3.11")
    _latest: weakref.ref[_MxnetExecutable] | None = None

    def declared(self, device: str) -> Sequence[Option]:  # noqa: ARG002
        """The same on every device."""
        return _OPTIONS

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Those in its environment; empty where that is not installed."""
        return self.environment.versions(*self.distributions) if self.environment.installed else ()

    def command(self) -> Sequence[str]:
        """The same code in the environment of MXNet; settings of the caller's Python stay out of it."""
        return (str(self.environment.interpreter), "-E", "-P", "-m", "dlbricks.generator.worker")

    def setup(self, settings: Settings) -> None:
        """Set what MXNet reads while it is loaded, and load it.

        All its threads are bound to as many cores as it computes with: it starts them by itself.

        Raises:
            UsageError: More threads than cores: some would share one.
            BackendUnavailable: The runtime cannot be loaded.
            BackendError: The system does not allow it.
        """
        bind(settings)
        os.environ.update(_variables(settings))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it uses names that NumPy has deprecated since
                import mxnet as mx
        except (ImportError, OSError) as error:
            raise BackendUnavailable(f"mxnet cannot be loaded: {error}", remedy=f"{self.install} --again") from error
        mx.util.set_np_shape(True)  # tensors without dimensions are what ONNX means by them

    def prepare(self, network: Network, settings: Settings) -> _MxnetExecutable:
        """Translate the network and bind its inputs and weights (see ``Backend``)."""
        return _bound(network, settings, None, inside=False)

    def in_turn(self, options: Mapping[str, str]) -> bool:  # noqa: ARG002
        """Always: each brick is a call of its own (see ``Backend``)."""
        return True

    def prepare_streamed(self, network: Network, settings: Settings) -> _MxnetExecutable:
        """As ``prepare``, as between the layers of a model (see ``Backend``).

        It has the memory of the brick before it, as the layers of a model have one for all, and finds in blocks what
        oneDNN would leave in blocks.
        """
        executable = _bound(network, settings, self._latest() if self._latest is not None else None, inside=True)
        self._latest = weakref.ref(executable)
        return executable

    def fused_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Its own graph, each node with the names of what oneDNN's subgraphs hold (see ``Backend``)."""
        translated = _translated(network, settings)
        try:
            return executed_graph(translated, _optimised(translated, settings))
        except Exception as error:  # the runtime's exceptions share no base class
            raise _meaning(error, translated) from error


def _bound(network: Network, settings: Settings, before: _MxnetExecutable | None, *, inside: bool) -> _MxnetExecutable:
    """A network that was translated and bound; it may write over what the one before it holds."""
    translated = _translated(network, settings)
    try:
        return _MxnetExecutable(translated, _optimised(translated, settings), before, inside=inside)
    except Exception as error:  # the runtime's exceptions share no base class
        raise _meaning(error, translated) from error


def _optimised(translated: MxnetNetwork, settings: Settings) -> Symbol:
    """The symbol of a network as it is executed."""
    return translated.symbol.optimize_for("MKLDNN") if _fuses(settings) else translated.symbol


def _fuses(settings: Settings) -> bool:
    """Whether operators are fused for oneDNN."""
    return settings.options["subgraph"] == "onednn"


def _translated(network: Network, settings: Settings) -> MxnetNetwork:
    """A network in MXNet's terms.

    Raises:
        UnsupportedBrick: It has no tensors of an input's type, or no such operator.
    """
    for name, array in network.feeds.items():
        if array.dtype.name not in _TYPES:
            raise UnsupportedBrick(f"MXNet has no tensors of {array.dtype.name} (input {name})")
    return translate(network, fused=_fuses(settings))


class _MxnetExecutable(Executable):
    """A bound symbol.

    The engine runs it while the caller goes on. ``run`` waits for its end: runs that overlap would measure throughput,
    and what other runtimes measure is latency.

    Attributes:
        executor: MXNet's own; None when the network was closed.

    Args:
        translated: The network in MXNet's terms.
        symbol: Its symbol as it is executed.
        before: A network whose memory this one may write over.
        inside: Whether its inputs have the layout that they would have inside a model.
    """

    def __init__(
        self,
        translated: MxnetNetwork,
        symbol: Symbol,
        before: _MxnetExecutable | None,
        *,
        inside: bool,
    ) -> None:
        import mxnet as mx

        self._translated = translated
        by_id: dict[int, Any] = {}  # the weights of copies are the same memory
        for array in translated.arrays.values():
            if array.dtype.name not in _TYPES:
                raise UnsupportedBrick(f"MXNet has no tensors of {array.dtype.name}")
            if id(array) not in by_id:
                by_id[id(array)] = mx.nd.array(array, dtype=array.dtype, ctx=mx.cpu())
        bound = {name: by_id[id(array)] for name, array in translated.arrays.items()}
        blocks = read_in_blocks(symbol) if inside else frozenset()
        self._refreshing: list[Callable[[], object]] = []
        for variable in bound.keys() & translated.feeds.keys():
            array = translated.arrays[variable]
            laid_out = in_blocks(array) if variable in blocks else None
            if laid_out is not None:
                source, bound[variable] = laid_out, in_blocks(array)
                self._refreshing.append(partial(rewrite, source, bound[variable]))
            elif array.dtype.kind == "f":
                self._refreshing.append(partial(bound[variable].__imul__, 1))  # in its memory
        self.executor: Any = symbol.bind(
            mx.cpu(),
            args={name: bound[name] for name in symbol.list_arguments()},
            aux_states={name: bound[name] for name in symbol.list_auxiliary_states()},
            grad_req="null",
            shared_exec=None if before is None else before.executor,
        )
        self._forward: Callable[[], object] = partial(self.executor.forward, is_train=False)
        self._wait = mx.nd.waitall  # one call for all outputs

    def run(self) -> None:
        try:
            self._forward()
            self._wait()
        except Exception as error:  # the runtime's exceptions share no base class
            raise _meaning(error, self._translated) from error

    def refresh(self) -> None:
        for write in self._refreshing:
            write()
        self._wait()  # the engine does it while the caller goes on

    def outputs(self) -> list[npt.NDArray[Any]]:
        return [output.asnumpy() for output in self.executor.outputs]

    def output_bytes(self) -> int:
        return sum(output.size * output.dtype().itemsize for output in self.executor.outputs)

    def close(self) -> None:
        self._forward = released
        self._refreshing.clear()
        self.executor = None


def _variables(settings: Settings) -> dict[str, str]:
    """What MXNet and the libraries inside it read from the environment."""
    options = settings.options
    return {
        "OMP_NUM_THREADS": str(settings.threads),
        "MXNET_ENGINE_TYPE": _ENGINES[options["engine"]],
        "MXNET_SUBGRAPH_BACKEND": "NONE",  # ``prepare`` chooses; here, a value that is read twice would break it
        "MXNET_MKLDNN_ENABLED": "1" if options["onednn"] == "on" else "0",
        "MXNET_ELIMINATE_COMMON_EXPR": "1" if options["common_expressions"] == "on" else "0",
        "MXNET_SUBGRAPH_VERBOSE": "0",
        "MXNET_STORAGE_FALLBACK_LOG_VERBOSE": "0",
        "MXNET_USE_SIGNAL_HANDLER": "0",  # a crash is to be reported by its signal
    }


def _meaning(error: Exception, translated: MxnetNetwork) -> Exception:
    """What the runtime's exception means; the last line of its text says it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Error" in line or "Check failed" in line] or lines or [""]
    names = "+".join(translated.operators[:3]) + ("+…" if len(translated.operators) > 3 else "")
    return _WORDING.meaning(error, where=names, cause=causes[-1])


_READERS = frozenset(
    {
        "Activation", "BatchNorm", "Concat", "Convolution", "Deconvolution", "LRN", "Pooling", "_sg_mkldnn_conv",
        "add_n", "elemwise_add",
    }
)  # fmt: skip
"""Operators that oneDNN computes in the layout that they find; others have to have it in order."""

_RANK = 4
_BLOCK = 8
"""The fewest channels of a block."""


def read_in_blocks(symbol: Symbol) -> frozenset[str]:
    """Variables that operators read which compute in blocks.

    Args:
        symbol: A brick as it is executed.
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    read = (nodes[source] for node in nodes if node["op"] in _READERS for source, *_ in node["inputs"])
    return frozenset(str(node["name"]) for node in read if node["op"] == "null")


def in_blocks(array: npt.NDArray[Any]) -> mx.nd.NDArray | None:
    """The same values as oneDNN gives them; None where it would have them in order: few channels, or no image."""
    import mxnet as mx

    if array.ndim != _RANK or array.dtype != np.float32 or array.shape[1] < _BLOCK:
        return None
    channels = array.shape[1]
    ones = mx.nd.ones((channels, 1, 1, 1))
    given = mx.nd.array(array, dtype=array.dtype, ctx=mx.cpu())
    return mx.nd.Convolution(given, ones, num_filter=channels, num_group=channels, kernel=(1, 1), no_bias=True)


def rewrite(source: mx.nd.NDArray, target: mx.nd.NDArray) -> None:
    """Write values in blocks into memory that holds such: the largest of windows of one, which are the values."""
    import mxnet as mx

    mx.nd.Pooling(source, kernel=(1, 1), pool_type="max", out=target)
