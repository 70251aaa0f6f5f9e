"""MXNet, in a separate environment.

Inside a model a brick reads channels in blocks, because oneDNN uses this layout and MXNet keeps it. A single brick
would read its inputs in plain order and change their layout first, which takes as long as a small convolution. The
result of an identity convolution per channel has oneDNN's layout, and serves as the brick's input.
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

from ....bricks.encoding import element_name
from ....errors import BackendUnavailable, UnsupportedBrick
from ...network.network import Network
from ..base import MADE_OF, Backend, Executable, ExecutedGraph, Option, Settings, ValueType, bind, released
from ..environments import Environment
from ..reports import Wording, node_name
from .operators.translation import MxnetNetwork, Symbol, labelled, translate

if TYPE_CHECKING:
    import mxnet as mx

# Which layers MXNet executes together: the names that its optimised symbol keeps of what it fused.
#
# oneDNN's subgraphs hold the operators that they were made of, with their names. While a network is translated, every
# operator is named after its node in ONNX (``translation.translate``), so that each is known again.
#
# Operators of this graph are MXNet's own (``_sg_mkldnn_conv``), and have no form that runs in parts.


_DOMAIN = "mxnet"

_IR_VERSION = 10

_VARIABLE = "null"
"""MXNet's operator name for bound variables: inputs, weights and states."""


def executed_graph(translated: MxnetNetwork, symbol: Symbol) -> ExecutedGraph:
    """Return the executed graph; each node lists the ONNX values that it was made of (``MADE_OF``).

    All values except the inputs get new names.

    Args:
        translated: The network as MXNet symbols.
        symbol: Its symbol as bound, optimised or not.
    """
    written = json.loads(symbol.tojson())
    types_by_operator = _types(translated, symbol)
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
        output_types = types_by_operator.get(name, ())
        outputs = [f"{name}.{index}" for index in range(max(len(output_types), 1))]
        names |= {(number, index): value for index, value in enumerate(outputs)}
        types |= dict(zip(outputs, output_types, strict=False))
        read = [names[source, index] for source, index, *_ in entry["inputs"]]
        node = graph.node.add(op_type=entry["op"], domain=_DOMAIN, input=read, output=outputs)
        node.name = node_name(node)
        values = {value for name in _inside(entry) for value in translated.labels.get(labelled(name), ())}
        node.attribute.append(helper.make_attribute(MADE_OF, sorted(values), attr_type=AttributeProto.STRINGS))
    graph.output.extend(onnx.ValueInfoProto(name=names[source, index]) for source, index, *_ in written["heads"])
    return ExecutedGraph(model, types)


def _inside(entry: Mapping[str, Any]) -> Iterator[str]:
    """Return the names of the operators that a node executes: its own, or the operators of its subgraphs."""
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
    types_by_operator: dict[str, list[ValueType]] = {}
    for value, shape, element in zip(values, shapes, elements, strict=True):
        types_by_operator.setdefault(value.name, []).append(
            (element_name(helper.np_dtype_to_tensor_dtype(np.dtype(element))), tuple(shape))
        )
    return types_by_operator


def _constant(name: str, array: np.ndarray[Any, Any]) -> TensorProto:
    """Return a constant without its values."""
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
        """Return the options, which are the same on every device."""
        return _OPTIONS

    def versions(self) -> tuple[tuple[str, str], ...]:
        """Return the versions in its environment; empty if that is not installed."""
        return self.environment.versions(*self.distributions) if self.environment.installed else ()

    def command(self) -> Sequence[str]:
        """Return the command that runs this code in MXNet's environment, without settings of the caller's Python."""
        return (str(self.environment.interpreter), "-E", "-P", "-m", "dlbricks.generator.worker")

    def setup(self, settings: Settings) -> None:
        """Set the environment variables that MXNet reads at import, and load it.

        MXNet starts its threads; all are bound to one core per computing thread.

        Raises:
            UsageError: More threads than cores, which would then share one core.
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
        """Return True: each brick is a separate call (see ``Backend``)."""
        return True

    def prepare_streamed(self, network: Network, settings: Settings) -> _MxnetExecutable:
        """Prepare a network as between the layers of a model (see ``Backend``).

        It reuses the memory of the previous brick, as the layers of a model share memory. Its inputs have blocks of
        channels if oneDNN would leave them in blocks.
        """
        executable = _bound(network, settings, self._latest() if self._latest is not None else None, inside=True)
        self._latest = weakref.ref(executable)
        return executable

    def fused_graph(self, network: Network, settings: Settings) -> ExecutedGraph:
        """Return its graph; each node lists the operators in oneDNN's subgraphs (see ``Backend``)."""
        translated = _translated(network, settings)
        try:
            return executed_graph(translated, _optimised(translated, settings))
        except Exception as error:  # the runtime's exceptions share no base class
            raise _meaning(error, translated) from error


def _bound(network: Network, settings: Settings, before: _MxnetExecutable | None, *, inside: bool) -> _MxnetExecutable:
    """Translate and bind a network; it may overwrite the memory of the previous one."""
    translated = _translated(network, settings)
    try:
        return _MxnetExecutable(translated, _optimised(translated, settings), before, inside=inside)
    except Exception as error:  # the runtime's exceptions share no base class
        raise _meaning(error, translated) from error


def _optimised(translated: MxnetNetwork, settings: Settings) -> Symbol:
    """Return the symbol of a network as executed."""
    return translated.symbol.optimize_for("MKLDNN") if _fuses(settings) else translated.symbol


def _fuses(settings: Settings) -> bool:
    """Return True if operators are fused for oneDNN."""
    return settings.options["subgraph"] == "onednn"


def _translated(network: Network, settings: Settings) -> MxnetNetwork:
    """Translate a network to MXNet.

    Raises:
        UnsupportedBrick: MXNet lacks an input's type or an operator.
    """
    for name, array in network.feeds.items():
        if array.dtype.name not in _TYPES:
            raise UnsupportedBrick(f"MXNet has no tensors of {array.dtype.name} (input {name})")
    return translate(network, fused=_fuses(settings))


class _MxnetExecutable(Executable):
    """A bound symbol.

    MXNet's engine runs it asynchronously. ``run`` waits for its end: overlapping runs would measure throughput, while
    other runtimes measure latency.

    Attributes:
        executor: MXNet's executor; None after closing.

    Args:
        translated: The network as MXNet symbols.
        symbol: Its symbol as executed.
        before: A network with memory that this one may overwrite.
        inside: Its inputs have the layout that they would have inside a model.
    """

    def __init__(
        self, translated: MxnetNetwork, symbol: Symbol, before: _MxnetExecutable | None, *, inside: bool
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
    """Return the environment variables that MXNet and its libraries read."""
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
    """Translate the runtime's exception, by the last line of its text."""
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
    """Variables that operators read which compute in blocks."""
    nodes = json.loads(symbol.tojson())["nodes"]
    read = (nodes[source] for node in nodes if node["op"] in _READERS for source, *_ in node["inputs"])
    return frozenset(str(node["name"]) for node in read if node["op"] == "null")


def in_blocks(array: npt.NDArray[Any]) -> mx.nd.NDArray | None:
    """Return the values in oneDNN's blocked layout; None if oneDNN would use plain order (few channels, no image)."""
    import mxnet as mx

    if array.ndim != _RANK or array.dtype != np.float32 or array.shape[1] < _BLOCK:
        return None
    channels = array.shape[1]
    ones = mx.nd.ones((channels, 1, 1, 1))
    plain_array = mx.nd.array(array, dtype=array.dtype, ctx=mx.cpu())
    return mx.nd.Convolution(plain_array, ones, num_filter=channels, num_group=channels, kernel=(1, 1), no_bias=True)


def rewrite(source: mx.nd.NDArray, target: mx.nd.NDArray) -> None:
    """Write values in blocks into memory of that layout, by a max pool with windows of one element."""
    import mxnet as mx

    mx.nd.Pooling(source, kernel=(1, 1), pool_type="max", out=target)
