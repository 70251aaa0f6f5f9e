"""The loop of a decoder in ONNX Runtime: a session, its caches, and the next token with the highest score."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...network.decoding import DecoderFile, dtype_of
from ...network.inputs import fill, normal
from ..base import TokenLoop
from .session import CPU, WORDING, array_of, value_of

if TYPE_CHECKING:
    import onnxruntime as ort


class OrtTokenLoop(TokenLoop):
    """A decoder in one session on the CPU; the caches that it writes are read by the next execution, uncopied."""

    def __init__(self, decoder: DecoderFile, options: ort.SessionOptions) -> None:
        import onnxruntime as ort

        with WORDING.translating():
            self._session = ort.InferenceSession(decoder.path, options, providers=[CPU], enable_fallback=0)
        self._decoder = decoder
        self._chance = np.random.default_rng(0)
        self._caches: dict[str, ort.OrtValue] = {}
        self._past = 0
        self._binding = self._session.io_binding()
        self._feeds: dict[str, npt.NDArray[Any]] = {}

    def begin(self, *, batch: int, past: int, first: int, new: int) -> None:
        """Draw tokens, and fill caches from a pool, which is faster than the steps (see ``TokenLoop``)."""
        decoder = self._decoder
        length = past + first + new - 1 if decoder.shared else past
        self._caches = {
            entry.name: value_of(
                fill(
                    decoder.cache_shape(entry, batch=batch, positions=length),
                    normal(0).astype(dtype_of(entry), copy=False),
                    offset=number << 8,
                )
            )
            for number, entry in enumerate(decoder.caches)
        }
        self._past = past
        self._read(self._chance.integers(0, decoder.vocabulary, (batch, first)))

    def step(self) -> None:
        """Execute what is bound (see ``TokenLoop``)."""
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # the runtime's exceptions share no base class
            raise WORDING.meaning(error) from error

    def choose(self) -> list[int]:
        """Take the tokens with the highest scores as the next ones (see ``TokenLoop``)."""
        logits, *presents = self._binding.get_outputs()
        scores = array_of(logits)
        tokens = scores.reshape(scores.shape[0], -1, scores.shape[-1])[:, -1].astype(np.float32).argmax(-1)
        if not self._decoder.shared:
            self._caches = {entry.name: present for entry, present in zip(self._decoder.caches, presents, strict=True)}
        self._read(tokens[:, None])
        return [int(token) for token in tokens]

    def end(self) -> None:
        """Free what is bound (see ``TokenLoop``)."""
        self._binding = self._session.io_binding()
        self._caches, self._feeds = {}, {}

    def close(self) -> None:
        """Free the session (see ``TokenLoop``)."""
        self._caches, self._feeds = {}, {}
        del self._binding, self._session

    def _read(self, tokens: npt.NDArray[np.int64]) -> None:
        """Bind the inputs and outputs of the next execution."""
        decoder = self._decoder
        self._binding = self._session.io_binding()
        self._feeds = decoder.feeds(tokens, self._past)  # the binding reads their memory
        with WORDING.translating():
            for name, array in self._feeds.items():
                self._binding.bind_cpu_input(name, array)
            for entry in decoder.caches:
                self._binding.bind_ortvalue_input(entry.name, self._caches[entry.name])
            self._binding.bind_output(decoder.logits)
            for entry in decoder.caches:
                if decoder.shared:
                    self._binding.bind_ortvalue_output(entry.present, self._caches[entry.name])
                else:
                    self._binding.bind_output(entry.present)
        self._past += tokens.shape[1]
