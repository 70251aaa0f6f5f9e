"""Recipes for ``transformers``: classes, published sizes, inputs. Data only, without heavy imports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

# Kinds of recipes. ``sizes`` contains differences from the defaults of the configuration class, which are published
# sizes too (the defaults of ``ResNetConfig`` are ResNet-50's). A nested ``{"class": NAME, ...}`` is another
# configuration.


@dataclass(frozen=True, slots=True)
class ZooEntry:
    """One architecture of the zoo.

    Attributes:
        name: The name for users.
        task: The model's purpose: ``image classification``, ``language modelling``.
        family: Kind of architecture: ``cnn``, ``transformer``, ``mlp``, or ``hybrid`` for several.
        origin: ``light`` (a file of the onnx wheel), ``built-in`` (written by code), ``export`` (from transformers).
        extra: Its optional dependencies, as in ``pip install 'dlbricks[zoo]'``; None for none.
        dims: Named dimensions that can be chosen, in addition to the batch, with their defaults.
        denormals: Why the architecture itself makes denormal numbers; empty if it does not.
    """

    name: str
    task: str
    family: Literal["cnn", "transformer", "hybrid", "mlp"]
    origin: Literal["light", "built-in", "export"]
    extra: str | None = None
    dims: tuple[tuple[str, int], ...] = ()
    denormals: str = ""


Dimension = int | str
Family = Literal["cnn", "transformer", "hybrid", "mlp"]
Cache = Literal["", "filled", "extended", "crossed"]


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model.

    Attributes:
        name: Argument of the model's ``forward``.
        dtype: ``float32``; ``tokens`` for vocabulary indices; ``mask`` for int64 ones.
        shape: Sizes, or names of dimensions; ``+`` adds two names.
    """

    name: str
    dtype: Literal["float32", "tokens", "mask"]
    shape: tuple[Dimension, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The construction and call of one exported architecture.

    Attributes:
        entry: Its line in the zoo's list.
        architecture: Class of ``transformers``.
        config: Its configuration class.
        sizes: Arguments of the configuration.
        inputs: Inputs, in order.
        outputs: Fields of the model's output that become graph outputs.
        part: Submodule to export instead of the whole; empty for the whole.
        cache: A decoder's use of keys and values. ``filled``: they are outputs. ``extended``: past ones are also
            inputs. ``crossed``: an encoder-decoder's own and its source's are outputs, and inputs if a dimension counts
            the past. Empty: none.
        options: Further arguments of ``forward``.
    """

    entry: ZooEntry
    architecture: str
    config: str
    sizes: Mapping[str, Any]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    part: str = ""
    cache: Cache = ""
    options: Mapping[str, Any] = field(default_factory=dict)


TEXT = (
    Input("input_ids", "tokens", ("batch", "sequence_length")),
    Input("attention_mask", "mask", ("batch", "sequence_length")),
)
"""Tokens and a mask of ones."""

_STEP = (Input("input_ids", "tokens", ("batch", 1)), Input("attention_mask", "mask", ("batch", "past_length+1")))
_LANGUAGE = "language modelling"
_TRANSLATION = (*TEXT, Input("decoder_input_ids", "tokens", ("batch", "decoder_length")))


def _entry(name: str, task: str, family: Family, /, **dims: int) -> ZooEntry:
    return ZooEntry(name, task, family, "export", "zoo", tuple(dims.items()))


def vision(
    name: str, family: Family, architecture: str, config: str, *, task: str = "image classification",
    image_size: int = 224, outputs: tuple[str, ...] = ("logits",), denormals: str = "", **sizes: Any,
) -> Recipe:  # fmt: skip
    """Make a recipe of a model of square images."""
    pixels = Input("pixel_values", "float32", ("batch", 3, "image_size", "image_size"))
    entry = replace(_entry(name, task, family, image_size=image_size), denormals=denormals)
    if task == "image classification":
        sizes = {"num_labels": 1000, **sizes}
    return Recipe(entry, architecture, config, sizes, (pixels,), outputs)


def encoder(
    name: str, architecture: str, config: str, *, sequence_length: int = 128,
    outputs: tuple[str, ...] = ("last_hidden_state",), **sizes: Any,
) -> Recipe:  # fmt: skip
    """Make a recipe of an encoder of text with a mask."""
    entry = _entry(name, "text encoding", "transformer", sequence_length=sequence_length)
    return Recipe(entry, architecture, config, sizes, TEXT, outputs)


def decoder(name: str, architecture: str, config: str, **sizes: Any) -> tuple[Recipe, Recipe, Recipe]:
    """Make recipes of a language model: over a whole prompt, and as in a loop (prompt into a cache, then steps)."""
    whole = _entry(name, _LANGUAGE, "transformer", sequence_length=128)
    alone = Recipe(whole, architecture, config, sizes, TEXT, ("logits",), options={"use_cache": False})
    return (alone, *generator(name, architecture, config, **sizes))


def generator(name: str, architecture: str, config: str, **sizes: Any) -> tuple[Recipe, Recipe]:
    """Make recipes that generate text: a prompt that fills a cache of keys and values, and one step that extends it."""
    prompt = _entry(f"{name}_prompt", f"{_LANGUAGE}, prompt into KV cache", "transformer", sequence_length=128)
    step = _entry(f"{name}_step", f"{_LANGUAGE}, one step with KV cache", "transformer", past_length=128)
    return (
        Recipe(prompt, architecture, config, sizes, TEXT, ("logits",), cache="filled", options={"use_cache": True}),
        Recipe(step, architecture, config, sizes, _STEP, ("logits",), cache="extended"),
    )


def translator(name: str, architecture: str, config: str, **sizes: Any) -> Recipe:
    """Make a recipe of an encoder and a decoder of text."""
    entry = _entry(name, "encoder-decoder", "transformer", sequence_length=64, decoder_length=32)
    return Recipe(entry, architecture, config, sizes, _TRANSLATION, ("logits",), options={"use_cache": False})


def answering(
    name: str, task: str, architecture: str, config: str, *source: Input, dims: Mapping[str, int] | None = None,
    **sizes: Any,
) -> tuple[Recipe, Recipe]:  # fmt: skip
    """Make recipes of an encoder-decoder as in a loop: source and first tokens into caches, then single steps."""
    prompt = _entry(f"{name}_prompt", f"{task}, prompt into KV cache", "transformer", sequence_length=4, **dims or {})
    step = _entry(f"{name}_step", f"{task}, one step with KV cache", "transformer", past_length=128, **dims or {})
    first, token = (Input("decoder_input_ids", "tokens", ("batch", length)) for length in ("sequence_length", 1))
    return (
        Recipe(prompt, architecture, config, sizes, (*source, first), ("logits",), cache="crossed"),
        Recipe(step, architecture, config, sizes, (token,), ("logits",), cache="crossed"),
    )


def general(
    entry: ZooEntry, architecture: str, config: str, *inputs: Input, outputs: tuple[str, ...] = ("logits",),
    part: str = "", options: Mapping[str, Any] | None = None, **sizes: Any,
) -> Recipe:  # fmt: skip
    """Make a recipe of a model with the given inputs."""
    return Recipe(entry, architecture, config, sizes, inputs, outputs, part=part, options=dict(options or {}))


# Recipes of models of images. Data only.


_BASIC: dict[str, Any] = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}
_RESNET50_C5: dict[str, Any] = {"class": "ResNetConfig", "out_features": ["stage4"]}
_DETECTION: dict[str, Any] = {"task": "object detection", "outputs": ("logits", "pred_boxes")}
_SEGMENTATION: dict[str, Any] = {"task": "segmentation"}

# HGNetV2-B0 with learnable affine blocks, as D-FINE-N has it (github.com/Peterande/D-FINE, src/nn/backbone/hgnetv2.py).
_HGNETV2_B0: dict[str, Any] = {
    "stem_channels": [3, 16, 16], "hidden_sizes": [64, 256, 512, 1024], "stage_in_channels": [16, 64, 256, 512],
    "stage_mid_channels": [16, 32, 64, 128], "stage_out_channels": [64, 256, 512, 1024],
    "stage_num_blocks": [1, 1, 2, 1], "stage_numb_of_layers": [3, 3, 3, 3], "use_learnable_affine_block": True,
}  # fmt: skip

_CLASSIFIERS = (
    vision("resnet18", "cnn", "ResNetForImageClassification", "ResNetConfig", depths=[2, 2, 2, 2], **_BASIC),
    vision("resnet34", "cnn", "ResNetForImageClassification", "ResNetConfig", depths=[3, 4, 6, 3], **_BASIC),
    vision("resnet101", "cnn", "ResNetForImageClassification", "ResNetConfig", depths=[3, 4, 23, 3]),
    vision("bit_50", "cnn", "BitForImageClassification", "BitConfig"),
    vision("mobilenet_v1", "cnn", "MobileNetV1ForImageClassification", "MobileNetV1Config", num_labels=1001),
    vision("mobilenet_v2", "cnn", "MobileNetV2ForImageClassification", "MobileNetV2Config", num_labels=1001),
    vision("efficientnet_b0", "cnn", "EfficientNetForImageClassification", "EfficientNetConfig",
           width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280),
    vision("regnet_y_040", "cnn", "RegNetForImageClassification", "RegNetConfig"),
    vision("convnext_tiny", "cnn", "ConvNextForImageClassification", "ConvNextConfig"),
    vision("convnextv2_tiny", "cnn", "ConvNextV2ForImageClassification", "ConvNextV2Config"),
    vision("poolformer_s12", "cnn", "PoolFormerForImageClassification", "PoolFormerConfig"),
    vision("focalnet_tiny", "cnn", "FocalNetForImageClassification", "FocalNetConfig"),
    vision("vit_small", "transformer", "ViTForImageClassification", "ViTConfig",
           hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    vision("deit_tiny", "transformer", "DeiTForImageClassification", "DeiTConfig",
           hidden_size=192, num_attention_heads=3, intermediate_size=768),
    vision("beit_base", "transformer", "BeitForImageClassification", "BeitConfig",
           use_relative_position_bias=True, use_mask_token=False),
    vision("dinov2_small", "transformer", "Dinov2ForImageClassification", "Dinov2Config",
           hidden_size=384, num_attention_heads=6, patch_size=14, image_size=224),
    vision("swin_tiny", "transformer", "SwinForImageClassification", "SwinConfig",
           denormals="shifted windows are masked with -100, and softmax makes exp(-100) = 4e-44 of that"),
    vision("swinv2_tiny", "transformer", "Swinv2ForImageClassification", "Swinv2Config",
           image_size=256, window_size=8),
    vision("pvt_tiny", "transformer", "PvtForImageClassification", "PvtConfig"),
    vision("pvt_v2_b0", "transformer", "PvtV2ForImageClassification", "PvtV2Config"),
    vision("levit_128", "hybrid", "LevitForImageClassification", "LevitConfig"),
    vision("cvt_13", "hybrid", "CvtForImageClassification", "CvtConfig"),
    vision("mobilevit_small", "hybrid", "MobileViTForImageClassification", "MobileViTConfig", image_size=256),
    vision("mobilevitv2", "hybrid", "MobileViTV2ForImageClassification", "MobileViTV2Config", image_size=256),
    vision("swiftformer_xs", "hybrid", "SwiftFormerForImageClassification", "SwiftFormerConfig"),
    vision("clip_vit_b32", "transformer", "CLIPVisionModelWithProjection", "CLIPVisionConfig",
           task="image encoding", outputs=("image_embeds",)),
)  # fmt: skip

_DETECTORS = (
    vision("detr_resnet50", "hybrid", "DetrForObjectDetection", "DetrConfig", image_size=512,
           backbone_config=_RESNET50_C5, use_timm_backbone=False, backbone=None, num_labels=91, **_DETECTION),
    vision("conditional_detr", "hybrid", "ConditionalDetrForObjectDetection", "ConditionalDetrConfig", image_size=512,
           backbone_config=_RESNET50_C5, use_timm_backbone=False, backbone=None, num_labels=91, **_DETECTION),
    vision("table_transformer", "hybrid", "TableTransformerForObjectDetection", "TableTransformerConfig",
           image_size=512, use_timm_backbone=False, backbone=None, num_labels=2, num_queries=15,
           backbone_config={"class": "ResNetConfig", "depths": [2, 2, 2, 2], "out_features": ["stage4"], **_BASIC},
           **_DETECTION),
    vision("yolos_tiny", "transformer", "YolosForObjectDetection", "YolosConfig", image_size=512,
           hidden_size=192, num_attention_heads=3, intermediate_size=768, num_labels=91,
           use_mid_position_embeddings=False, **_DETECTION),
    vision("rt_detr_r18", "hybrid", "RTDetrForObjectDetection", "RTDetrConfig", image_size=640,
           backbone_config={"class": "RTDetrResNetConfig", "depths": [2, 2, 2, 2],
                            "out_features": ["stage2", "stage3", "stage4"], **_BASIC},
           encoder_in_channels=[128, 256, 512], hidden_expansion=0.5, decoder_layers=3, num_labels=80, **_DETECTION),
)  # fmt: skip

_SEGMENTERS = (
    vision("segformer_b0", "transformer", "SegformerForSemanticSegmentation", "SegformerConfig", image_size=512,
           num_labels=150, **_SEGMENTATION),
    vision("upernet_convnext_tiny", "cnn", "UperNetForSemanticSegmentation", "UperNetConfig", image_size=256,
           backbone_config={"class": "ConvNextConfig", "hidden_sizes": [96, 192, 384, 768],
                            "out_features": ["stage1", "stage2", "stage3", "stage4"]},
           num_labels=150, **_SEGMENTATION),
    vision("mobilenet_v2_deeplab", "cnn", "MobileNetV2ForSemanticSegmentation", "MobileNetV2Config", image_size=512,
           num_labels=21, output_stride=16, **_SEGMENTATION),
    vision("mobilevit_deeplab", "hybrid", "MobileViTForSemanticSegmentation", "MobileViTConfig", image_size=512,
           num_labels=21, output_stride=16, **_SEGMENTATION),
    vision("depth_anything_small", "transformer", "DepthAnythingForDepthEstimation", "DepthAnythingConfig",
           task="depth estimation", outputs=("predicted_depth",), image_size=364,
           backbone_config={"class": "Dinov2Config", "hidden_size": 384, "num_attention_heads": 6, "patch_size": 14,
                            "image_size": 518, "out_indices": [3, 6, 9, 12], "reshape_hidden_states": False,
                            "apply_layernorm": True},
           reassemble_hidden_size=384, neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64),
)  # fmt: skip

# Families that earlier results do not include.
_VISION_NEWCOMERS = (
    # Hiera-Tiny (Ryali et al. 2023, table 9; facebook/hiera-tiny-224-hf).
    vision("hiera_tiny", "transformer", "HieraForImageClassification", "HieraConfig", depths=[1, 2, 7, 2]),
    # nvidia/groupvit-gcc-yfcc, the defaults.
    vision("groupvit", "transformer", "GroupViTVisionModel", "GroupViTVisionConfig", task="image encoding",
           outputs=("pooler_output",)),
    vision("hgnetv2_b0", "cnn", "HGNetV2ForImageClassification", "HGNetV2Config", **_HGNETV2_B0),
    # The defaults (Chen et al. 2021, FAST: its backbone).
    vision("textnet", "cnn", "TextNetForImageClassification", "TextNetConfig"),
    # PP-LCNet x1.0 (Cui et al. 2021), the defaults.
    vision("pp_lcnet", "cnn", "PPLCNetForImageClassification", "PPLCNetConfig", outputs=("last_hidden_state",)),
    # D-FINE-N (github.com/Peterande/D-FINE, configs/dfine/dfine_hgnetv2_n_coco.yml).
    vision("d_fine_n", "hybrid", "DFineForObjectDetection", "DFineConfig", image_size=640,
           backbone_config={"class": "HGNetV2Config", "out_features": ["stage3", "stage4"], **_HGNETV2_B0},
           encoder_in_channels=[512, 1024], feat_strides=[16, 32], encoder_hidden_dim=128, encode_proj_layers=[1],
           encoder_ffn_dim=512, hidden_expansion=0.34, depth_mult=0.5, d_model=128, decoder_in_channels=[128, 128],
           decoder_ffn_dim=512, num_feature_levels=2, decoder_layers=3, decoder_n_points=[6, 6], num_labels=80,
           **_DETECTION),
    # UVDoc (Verhoeven et al. 2023; PaddlePaddle/UVDoc_safetensors): the defaults, at the only size that it is used at.
    general(_entry("uvdoc", "document rectification", "cnn"), "UVDocModel", "UVDocConfig",
            Input("pixel_values", "float32", ("batch", 3, 712, 488)), outputs=("last_hidden_state",),
            backbone_config={"class": "UVDocBackboneConfig",
                             "out_features": ["stage1", "stage2", "stage3", "stage4", "stage5", "stage6"]}),
    # PP-OCRv5 mobile (PaddlePaddle/PP-OCRv5_mobile_det_safetensors), the defaults.
    vision("pp_ocrv5_det", "cnn", "PPOCRV5MobileDetForObjectDetection", "PPOCRV5MobileDetConfig",
           task="text detection", outputs=("last_hidden_state",), image_size=640),
    # Its recogniser; strides of the backbone as PaddleOCR has them for lines of text (rec_lcnetv3.py, NET_CONFIG_rec).
    general(_entry("pp_ocrv5_rec", "text recognition", "hybrid", width=320), "PPOCRV5MobileRecForTextRecognition",
            "PPOCRV5MobileRecConfig", Input("pixel_values", "float32", ("batch", 3, 48, "width")),
            outputs=("last_hidden_state",),
            backbone_config={
                "class": "PPLCNetV3Config", "scale": 0.95, "divisor": 16, "out_features": ["stage5"],
                "block_configs": [
                    [[3, 16, 32, 1, False]],
                    [[3, 32, 64, 1, False], [3, 64, 64, 1, False]],
                    [[3, 64, 128, [2, 1], False], [3, 128, 128, 1, False]],
                    [[3, 128, 256, [1, 2], False], *[[5, 256, 256, 1, False]] * 4],
                    [[5, 256, 512, [2, 1], True], [5, 512, 512, 1, True], [5, 512, 512, [2, 1], False],
                     [5, 512, 512, 1, False]],
                ],
            }),
)  # fmt: skip

VISION: tuple[Recipe, ...] = (*_CLASSIFIERS, *_DETECTORS, *_SEGMENTERS, *_VISION_NEWCOMERS)


# Recipes of models of sound or other series of measurements. Data only.


_WAVE = Input("input_values", "float32", ("batch", "samples"))
_SPEECH = (
    general(_entry("whisper_tiny_encoder", "speech", "transformer"), "WhisperModel", "WhisperConfig",
            Input("input_features", "float32", ("batch", 80, 3000)),
            part="encoder", outputs=("last_hidden_state",)),
    general(_entry("whisper_tiny_decoder", "speech", "transformer", decoder_length=32),
            "WhisperForCausalLM", "WhisperConfig",
            Input("input_ids", "tokens", ("batch", "decoder_length")),
            Input("encoder_hidden_states", "float32", ("batch", 1500, 384)),
            options={"use_cache": False}),
    *answering("whisper_tiny", "speech", "WhisperForConditionalGeneration", "WhisperConfig",
               Input("input_features", "float32", ("batch", 80, 3000))),
    general(_entry("wav2vec2_base", "speech", "hybrid", samples=32000), "Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVE),
    general(_entry("hubert_base", "speech", "hybrid", samples=32000), "HubertModel", "HubertConfig", _WAVE,
            outputs=("last_hidden_state",)),
    general(_entry("ast_base", "speech", "transformer"), "ASTForAudioClassification", "ASTConfig",
            Input("input_values", "float32", ("batch", 1024, 128))),
)  # fmt: skip

_DECODED = Input("decoder_input_ids", "tokens", ("batch", "decoder_length"))

# Families that earlier results do not include.
_SIGNAL_NEWCOMERS = (
    # facebook/s2t-small-librispeech-asr, the defaults.
    general(_entry("s2t_small", "speech", "transformer", frames=400, decoder_length=32),
            "Speech2TextForConditionalGeneration", "Speech2TextConfig",
            Input("input_features", "float32", ("batch", "frames", 80)), _DECODED, options={"use_cache": False}),
    # UsefulSensors/moonshine-tiny, the defaults.
    general(_entry("moonshine_tiny", "speech", "transformer", samples=64000, decoder_length=32),
            "MoonshineForConditionalGeneration", "MoonshineConfig",
            _WAVE, _DECODED, options={"use_cache": False}),
    # SEW-tiny (Wu et al. 2021, table 2: width 512, 41 M parameters).
    general(_entry("sew_tiny", "speech", "hybrid", samples=32000), "SEWForCTC", "SEWConfig", _WAVE,
            hidden_size=512, num_attention_heads=8, intermediate_size=2048),
    # google/medasr, the defaults: a conformer.
    general(_entry("medasr", "speech", "hybrid", frames=200), "LasrForCTC", "LasrCTCConfig",
            Input("input_features", "float32", ("batch", "frames", 128))),
    # descript/dac_16khz, the defaults.
    general(_entry("dac_16khz", "audio coding", "cnn", samples=8000), "DacModel", "DacConfig",
            Input("input_values", "float32", ("batch", 1, "samples")), outputs=("audio_values",)),
    # dg845/univnet-dev (UnivNet-c32, Jang et al. 2021), the defaults.
    general(_entry("univnet", "speech synthesis", "cnn", frames=32), "UnivNetModel", "UnivNetConfig",
            Input("input_features", "float32", ("batch", "frames", 100)),
            Input("noise_sequence", "float32", ("batch", "frames", 64)), outputs=("waveforms",)),
    # PatchTST/64 (Nie et al. 2023, appendix A.1), the 21 channels of its data set Weather.
    general(_entry("patchtst", "forecasting", "transformer"), "PatchTSTForPrediction", "PatchTSTConfig",
            Input("past_values", "float32", ("batch", 512, 21)), outputs=("prediction_outputs",),
            context_length=512, patch_length=16, patch_stride=8, num_input_channels=21, num_attention_heads=16,
            ffn_dim=256, prediction_length=96),
    # As in IBM's notebook on transfer (github.com/ibm-granite/granite-tsfm), the 321 channels of its data set
    # Electricity.
    general(_entry("patchtsmixer", "forecasting", "mlp"), "PatchTSMixerForPrediction", "PatchTSMixerConfig",
            Input("past_values", "float32", ("batch", 512, 321)), outputs=("prediction_outputs",),
            context_length=512, patch_length=8, patch_stride=8, num_input_channels=321, d_model=16, num_layers=8,
            prediction_length=96),
    # As in huggingface.co/blog/time-series-transformers: two years of months from four, with lags of up to three years,
    # of one of 366 series, by the month and its age.
    general(_entry("time_series_transformer", "forecasting", "transformer"), "TimeSeriesTransformerModel",
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

SIGNALS: tuple[Recipe, ...] = (*_SPEECH, *_SIGNAL_NEWCOMERS)


# Recipes of models of text. Data only.


_ENCODERS = (
    encoder("distilbert", "DistilBertModel", "DistilBertConfig"),
    encoder("minilm_l6", "BertModel", "BertConfig", hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
    encoder("roberta_base", "RobertaModel", "RobertaConfig",
            vocab_size=50265, max_position_embeddings=514, type_vocab_size=1),
    encoder("albert_base", "AlbertModel", "AlbertConfig",
            hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    encoder("electra_small", "ElectraModel", "ElectraConfig"),
    encoder("mobilebert", "MobileBertModel", "MobileBertConfig"),
    encoder("mpnet_base", "MPNetModel", "MPNetConfig"),
    encoder("squeezebert", "SqueezeBertModel", "SqueezeBertConfig"),
    encoder("modernbert_base", "ModernBertModel", "ModernBertConfig"),
    encoder("deberta_v3_small", "DebertaV2Model", "DebertaV2Config",
            vocab_size=128100, hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072,
            relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
            pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0),
    encoder("clip_text", "CLIPTextModelWithProjection", "CLIPTextConfig", sequence_length=77,
            outputs=("text_embeds",)),
)  # fmt: skip

_DECODERS = (
    *generator("gpt2", "GPT2LMHeadModel", "GPT2Config"),
    *decoder("distilgpt2", "GPT2LMHeadModel", "GPT2Config", n_layer=6),
    *decoder("opt_125m", "OPTForCausalLM", "OPTConfig"),
    *decoder("pythia_160m", "GPTNeoXForCausalLM", "GPTNeoXConfig",
             vocab_size=50304, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
    *decoder("smollm_135m", "LlamaForCausalLM", "LlamaConfig",
             vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
             intermediate_size=1536, tie_word_embeddings=True),
    *decoder("qwen2_0_5b", "Qwen2ForCausalLM", "Qwen2Config",
             vocab_size=151936, hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
             intermediate_size=4864, tie_word_embeddings=True),
)  # fmt: skip

_TRANSLATORS = (
    translator("t5_small", "T5ForConditionalGeneration", "T5Config"),
    translator("bart_base", "BartForConditionalGeneration", "BartConfig",
               d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
               encoder_attention_heads=12, decoder_attention_heads=12),
    translator("marian_en_de", "MarianMTModel", "MarianConfig",
               vocab_size=58101, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048,
               decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8,
               max_position_embeddings=512, activation_function="swish", scale_embedding=True, pad_token_id=58100,
               decoder_start_token_id=58100),
)  # fmt: skip

_SOURCE = (
    Input("input_ids", "tokens", ("batch", "encoder_length")),
    Input("attention_mask", "mask", ("batch", "encoder_length")),
)
_ANSWERING = answering(
    "t5_small", "encoder-decoder", "T5ForConditionalGeneration", "T5Config", *_SOURCE, dims={"encoder_length": 64}
)

_TOKENS = Input("input_ids", "tokens", ("batch", "sequence_length"))

# Families that earlier results do not include.
_TEXT_NEWCOMERS = (
    # YituTech/conv-bert-base, the defaults.
    encoder("convbert_base", "ConvBertModel", "ConvBertConfig"),
    # google/fnet-base, the defaults; it takes no mask.
    general(_entry("fnet_base", "text encoding", "transformer", sequence_length=128), "FNetModel", "FNetConfig",
            _TOKENS, outputs=("last_hidden_state",)),
)  # fmt: skip

TEXTS: tuple[Recipe, ...] = (*_ENCODERS, *_DECODERS, *_TRANSLATORS, *_ANSWERING, *_TEXT_NEWCOMERS)


RECIPES: Mapping[str, Recipe] = {recipe.entry.name: recipe for recipe in (*VISION, *TEXTS, *SIGNALS)}
"""Zoo name to recipe, in the order of the list."""
