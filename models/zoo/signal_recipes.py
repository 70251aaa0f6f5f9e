"""Recipes of models that take sound or other series of measurements. Data only."""

from __future__ import annotations

from .recipe import Input, Recipe, answering, general

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
    *answering("whisper_tiny", "speech", "WhisperForConditionalGeneration", "WhisperConfig",
               Input("input_features", "float32", ("batch", 80, 3000))),
    general("wav2vec2_base", "speech", "hybrid", "Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVE, dims={"samples": 32000}),
    general("hubert_base", "speech", "hybrid", "HubertModel", "HubertConfig", _WAVE,
            outputs=("last_hidden_state",), dims={"samples": 32000}),
    general("ast_base", "speech", "transformer", "ASTForAudioClassification", "ASTConfig",
            Input("input_values", "float32", ("batch", 1024, 128)), dims={}),
)  # fmt: skip

_DECODED = Input("decoder_input_ids", "tokens", ("batch", "decoder_length"))

# What earlier results have not seen; no family of theirs.
_NEWCOMERS = (
    # facebook/s2t-small-librispeech-asr, the defaults.
    general("s2t_small", "speech", "transformer", "Speech2TextForConditionalGeneration", "Speech2TextConfig",
            Input("input_features", "float32", ("batch", "frames", 80)), _DECODED, options={"use_cache": False},
            dims={"frames": 400, "decoder_length": 32}),
    # UsefulSensors/moonshine-tiny, the defaults.
    general("moonshine_tiny", "speech", "transformer", "MoonshineForConditionalGeneration", "MoonshineConfig",
            _WAVE, _DECODED, options={"use_cache": False}, dims={"samples": 64000, "decoder_length": 32}),
    # SEW-tiny (Wu et al. 2021, table 2: width 512, 41 M parameters).
    general("sew_tiny", "speech", "hybrid", "SEWForCTC", "SEWConfig", _WAVE, dims={"samples": 32000},
            hidden_size=512, num_attention_heads=8, intermediate_size=2048),
    # google/medasr, the defaults: a conformer.
    general("medasr", "speech", "hybrid", "LasrForCTC", "LasrCTCConfig",
            Input("input_features", "float32", ("batch", "frames", 128)), dims={"frames": 200}),
    # descript/dac_16khz, the defaults.
    general("dac_16khz", "audio coding", "cnn", "DacModel", "DacConfig",
            Input("input_values", "float32", ("batch", 1, "samples")), outputs=("audio_values",),
            dims={"samples": 8000}),
    # dg845/univnet-dev (UnivNet-c32, Jang et al. 2021), the defaults.
    general("univnet", "speech synthesis", "cnn", "UnivNetModel", "UnivNetConfig",
            Input("input_features", "float32", ("batch", "frames", 100)),
            Input("noise_sequence", "float32", ("batch", "frames", 64)), outputs=("waveforms",), dims={"frames": 32}),
    # PatchTST/64 (Nie et al. 2023, appendix A.1), the 21 channels of its data set Weather.
    general("patchtst", "forecasting", "transformer", "PatchTSTForPrediction", "PatchTSTConfig",
            Input("past_values", "float32", ("batch", 512, 21)), outputs=("prediction_outputs",),
            context_length=512, patch_length=16, patch_stride=8, num_input_channels=21, num_attention_heads=16,
            ffn_dim=256, prediction_length=96),
    # As in IBM's notebook on transfer (github.com/ibm-granite/granite-tsfm), the 321 channels of its data set
    # Electricity.
    general("patchtsmixer", "forecasting", "mlp", "PatchTSMixerForPrediction", "PatchTSMixerConfig",
            Input("past_values", "float32", ("batch", 512, 321)), outputs=("prediction_outputs",),
            context_length=512, patch_length=8, patch_stride=8, num_input_channels=321, d_model=16, num_layers=8,
            prediction_length=96),
    # As in huggingface.co/blog/time-series-transformers: two years of months from four, with lags of up to three years,
    # of one of 366 series, by the month and its age.
    general("time_series_transformer", "forecasting", "transformer", "TimeSeriesTransformerModel",
            "TimeSeriesTransformerConfig", Input("past_values", "float32", ("batch", 85)),
            Input("past_time_features", "float32", ("batch", 85, 2)),
            Input("past_observed_mask", "mask", ("batch", 85)),
            Input("static_categorical_features", "tokens", ("batch", 1)),
            Input("future_values", "float32", ("batch", 24)),
            Input("future_time_features", "float32", ("batch", 24, 2)), outputs=("last_hidden_state",),
            options={"use_cache": False}, prediction_length=24, context_length=48, num_time_features=2,
            num_static_categorical_features=1, cardinality=[366], embedding_dimension=[2], encoder_layers=4,
            decoder_layers=4, d_model=32, lags_sequence=[1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 23, 24, 25, 35, 36, 37]),
)  # fmt: skip

SIGNALS: tuple[Recipe, ...] = (*_SPEECH, *_NEWCOMERS)
