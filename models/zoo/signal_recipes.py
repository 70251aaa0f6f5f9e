"""Recipes of models that take sound or other series of measurements. Data only."""

from __future__ import annotations

from .recipe import Input, Recipe, general

__all__ = ["SIGNALS"]

_WAVE = Input("input_values", "float32", ("batch", "samples"))
_SPEECH = (
    general("whisper_tiny_encoder", "speech", "transformer", "WhisperModel", "WhisperConfig",
            Input("input_features", "float32", ("batch", 80, 3000)),
            part="encoder", outputs=("last_hidden_state",), dims={}),
    general("whisper_tiny_decoder", "speech", "transformer", "WhisperForCausalLM", "WhisperConfig",
            Input("input_ids", "tokens", ("batch", "decoder_length")),
            Input("encoder_hidden_states", "float32", ("batch", 1500, 384)),
            options={"use_cache": False}, dims={"decoder_length": 32}),
    general("wav2vec2_base", "speech", "hybrid", "Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVE, dims={"samples": 32000}),
    general("hubert_base", "speech", "hybrid", "HubertModel", "HubertConfig", _WAVE,
            outputs=("last_hidden_state",), dims={"samples": 32000}),
    general("ast_base", "speech", "transformer", "ASTForAudioClassification", "ASTConfig",
            Input("input_values", "float32", ("batch", 1024, 128)), dims={}),
)  # fmt: skip

SIGNALS: tuple[Recipe, ...] = _SPEECH
