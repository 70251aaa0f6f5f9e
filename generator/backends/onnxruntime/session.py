"""Sessions of ONNX Runtime with their inputs and outputs bound, and values on the way to it and back."""

from __future__ import annotations

import ctypes
import math
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....errors import BackendError
from ...network.network import Network
from ..base import NodeTimes, PackedExecutable, Settings, released
from ..wording import Wording
from .profile import PREFIX, node_times, read_profile
from .provider import CPU, Provider

if TYPE_CHECKING:
    import onnxruntime as ort

__all__ = [
    "WORDING",
    "OrtExecutable",
    "OrtStrings",
    "array_of",
    "bytes_of",
    "created",
    "loaded",
    "loaded_profiled",
    "reads_strings",
    "value_of",
]

WORDING = Wording(
    "ONNX Runtime",
    unsupported=re.compile(
        r"NOT_IMPLEMENTED|INVALID_GRAPH|is not a registered function/op|No Op registered for|Could not find an "
        r"implementation|Type Error|Opset \d+ is under development|Unsupported model IR version|"
        r"No opset import for domain|cannot use the graph capture feature"
    ),
    memory=re.compile(r"STATUS_ALLOC_FAILED|is smaller than requested bytes"),
    noise=re.compile(
        r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Exception during initialization: )?|Load model from .+? failed:"
    ),
)


_NIBBLES = frozenset({"int4", "uint4", "float4_e2m1fn"})


def loaded(network: Network, settings: Settings, options: ort.SessionOptions) -> OrtExecutable | OrtStrings:
    """A session on the CPU with its inputs bound."""
    session, weights = created(network, options, [CPU])
    try:
        if reads_strings(network):
            return OrtStrings(session, network, weights)
        return OrtExecutable(session, network, weights, bound=settings.options["binding"] == "bound")
    except Exception as error:  # the runtime's exceptions share no base class
        raise WORDING.meaning(error) from error


def loaded_profiled(network: Network, settings: Settings, options: ort.SessionOptions) -> PackedExecutable:
    """A session that profiles itself, with its inputs bound."""
    options.enable_profiling = True
    folder = tempfile.TemporaryDirectory(prefix="dlbricks-profile-")
    options.profile_file_prefix = str(Path(folder.name) / PREFIX)
    try:
        session, weights = created(network, options, [CPU])
        return _OrtProfiled(session, network, weights, bound=settings.options["binding"] == "bound", folder=folder)
    except BaseException:
        folder.cleanup()
        raise


def reads_strings(network: Network) -> bool:
    """Whether inputs of a network are strings."""
    return any(array.dtype == object for array in network.feeds.values())


def created(
    network: Network, options: ort.SessionOptions, providers: Sequence[Provider]
) -> tuple[ort.InferenceSession, dict[str, ort.OrtValue]]:
    """A session, and the weights that it reads: they are handed over, not copied, and must live as long as it.

    Raises:
        UnsupportedBrick: The runtime cannot express the network.
        BackendError: The runtime failed.
        MemoryError: There was not enough memory.
    """
    import onnxruntime as ort

    weights = {name: value_of(array) for name, array in network.weights.items()}
    source = str(network.path) if network.model is None else network.model.SerializeToString()
    try:
        if weights:
            options.add_external_initializers(list(weights), list(weights.values()))
        return ort.InferenceSession(source, options, providers=providers, enable_fallback=0), weights
    except Exception as error:  # the runtime's exceptions share no base class
        raise WORDING.meaning(error) from error


class OrtExecutable:
    """A session. The first run lets the runtime allocate the outputs; they are then bound for all later ones.

    Inputs never change, so that neither do the shapes of outputs.
    """

    def __init__(self, session: ort.InferenceSession, network: Network, weights: Any, *, bound: bool) -> None:
        self._session = session
        self._weights = weights
        self._names = network.outputs
        self._binding = session.io_binding()
        self._inputs: Any = self._bind_inputs(network)
        self._places = self._output_places()
        shared = network.shared if isinstance(self._inputs, dict) else {}
        for name in self._names:
            if name in shared:
                self._binding.bind_ortvalue_output(name, self._inputs[shared[name]])
            else:
                self._binding.bind_output(name, self._places[name])
        own = [name for name in self._names if name not in shared]
        self._repeat: Callable[[], None] = partial(session.run_with_iobinding, self._binding)
        self._step = self._first if bound else partial(self._anew, own)

    def _bind_inputs(self, network: Network) -> Any:
        """Bind all inputs; what is returned lives as long as they are bound."""
        found = {name: value_of(array) for name, array in network.feeds.items()}
        for name, value in found.items():
            self._binding.bind_ortvalue_input(name, value)
        self._feeds = [array for array in network.feeds.values() if array.dtype.kind == "f" and array.flags.writeable]
        return found

    def _output_places(self) -> Mapping[str, str]:
        """Where each output is to be."""
        return dict.fromkeys(self._names, "cpu")

    def refresh(self) -> None:
        """Write the inputs (see ``StreamedExecutable``): their memory is that of the feeds."""
        for array in self._feeds:
            np.multiply(array, 1, out=array)

    def run(self) -> None:
        """Execute once (see ``Executable``)."""
        try:
            self._step()
        except Exception as error:  # the runtime's exceptions share no base class
            raise WORDING.meaning(error) from error

    def synchronize(self) -> None:
        """Wait for the outputs (see ``Executable``)."""
        self._binding.synchronize_outputs()

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Copies (see ``Executable``)."""
        return [array_of(value) for value in self._binding.get_outputs()]

    def output_bytes(self) -> int:
        """Of tensors (see ``Executable``)."""
        return sum(bytes_of(value) for value in self._binding.get_outputs() if value.is_tensor())

    def close(self) -> None:
        """Free the session (see ``Executable``)."""
        self._step = self._repeat = released
        del self._binding, self._session, self._inputs, self._weights

    def _first(self) -> None:
        self._repeat()
        declared = {output.name: output.shape for output in self._session.get_outputs()}
        loose: list[str] = []
        for name, value in zip(self._names, self._binding.get_outputs(), strict=True):
            if not value.is_tensor() or value.data_type() == "tensor(string)":
                continue
            if _fits(value.shape(), declared[name]):
                self._binding.bind_ortvalue_output(name, value)
            else:
                loose.append(name)
        self._step = partial(self._anew, loose) if loose else self._repeat

    def _anew(self, loose: Sequence[str]) -> None:
        """Let the runtime allocate some outputs once more: a binding keeps those of the last run."""
        for name in loose:
            self._binding.bind_output(name, self._places[name])
        self._repeat()


def _fits(shape: Sequence[int], declared: Sequence[int | str | None]) -> bool:
    """Whether an output is as large as the network says: the runtime binds no other, though it computes it.

    The sizes of some depend on the values of inputs. Of some nothing is said, as of a number.
    """
    known = len(shape) == len(declared) and all(
        not isinstance(said, int) or said == size for size, said in zip(shape, declared, strict=True)
    )
    return known or not declared


class _OrtProfiled(OrtExecutable):
    """A session that profiles itself into a folder of its own."""

    def __init__(
        self,
        session: ort.InferenceSession,
        network: Network,
        weights: Any,
        *,
        bound: bool,
        folder: tempfile.TemporaryDirectory[str],
    ) -> None:
        super().__init__(session, network, weights, bound=bound)
        self._nodes = frozenset(node.name for node in network.brick.graph.node)
        self._folder: tempfile.TemporaryDirectory[str] | None = folder

    def end(self) -> NodeTimes:
        assert self._folder is not None  # noqa: S101  # it ends once
        self._session.end_profiling()
        try:
            return node_times(read_profile(Path(self._folder.name), lean=True), self._nodes)
        finally:
            self._drop()

    def close(self) -> None:
        super().close()  # which ends the profile, where nobody asked for it
        self._drop()

    def _drop(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None


class OrtStrings:
    """A session that reads strings, which cannot be bound: inputs and outputs are converted by each run."""

    def __init__(self, session: ort.InferenceSession, network: Network, weights: Any) -> None:
        self._weights = weights
        self._latest: list[npt.NDArray[Any]] = []
        self._call: Callable[[], Any] = partial(session.run, list(network.outputs), dict(network.feeds))

    def refresh(self) -> None:
        """Strings are never written anew (see ``StreamedExecutable``)."""

    def run(self) -> None:
        """Execute once, and wait (see ``Executable``)."""
        try:
            self._latest = self._call()
        except Exception as error:  # the runtime's exceptions share no base class
            raise WORDING.meaning(error) from error

    def synchronize(self) -> None:
        """Everything is done already (see ``Executable``)."""

    def outputs(self) -> list[npt.NDArray[Any]]:
        """Of the last run (see ``Executable``)."""
        return [np.asarray(value) for value in self._latest]

    def output_bytes(self) -> int:
        """Of the last run (see ``Executable``)."""
        return sum(array.nbytes for array in self.outputs())

    def close(self) -> None:
        """Free the session (see ``Executable``)."""
        self._call = released
        self._latest = []


def value_of(array: npt.NDArray[Any]) -> ort.OrtValue:
    """Hand an array over, without a copy where the runtime can read it."""
    import onnxruntime as ort
    from onnx import helper

    if _is_plain(array.dtype):
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, helper.np_dtype_to_tensor_dtype(array.dtype))


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether a type is NumPy's own, which the runtime hands over by itself."""
    return dtype.isbuiltin == 1 and dtype.kind in "biufcO"


def bytes_of(value: ort.OrtValue) -> int:
    """Of a tensor; types of four bits share bytes (ONNX Runtime says it itself since 1.22)."""
    from onnx import helper

    dtype = helper.tensor_dtype_to_np_dtype(value.element_type())
    bits = 4 if dtype.name in _NIBBLES else 8 * dtype.itemsize
    elements: int = math.prod(value.shape())
    return -(-elements * bits // 8)


def array_of(value: ort.OrtValue) -> npt.NDArray[Any]:
    """A copy of a tensor, in NumPy's or ml_dtypes' type."""
    from onnx import helper

    if not value.is_tensor():
        raise BackendError(f"an output is a {value.data_type()}, not a tensor")
    dtype = helper.tensor_dtype_to_np_dtype(value.element_type())
    if _is_plain(dtype):
        return np.array(value.numpy())
    data = ctypes.string_at(value.data_ptr(), bytes_of(value))
    return np.frombuffer(data, dtype=dtype).reshape(value.shape())
