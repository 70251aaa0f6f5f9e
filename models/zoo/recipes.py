"""What to build from ``transformers``: classes, published sizes, inputs. Data only; nothing heavy is imported.

``sizes`` holds what differs from the configuration class's own defaults, which are themselves published sizes (those of
``ResNetConfig`` are ResNet-50's). A nested ``{"class": NAME, ...}`` is a configuration of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .entry import ZooEntry

__all__ = ["RECIPES", "Input", "Recipe"]

Dimension = int | str
Family = Literal["cnn", "transformer", "hybrid"]


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a model.

    Attributes:
        name: Argument of the model's ``forward``.
        dtype: ``float32``; ``tokens`` for numbers of the vocabulary; ``mask`` for int64 ones.
        shape: Sizes, or names of dimensions; ``+`` adds two names.
    """

    name: str
    dtype: Literal["float32", "tokens", "mask"]
    shape: tuple[Dimension, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one exported architecture is built and called.

    Attributes:
        entry: Its line in the zoo's list.
        architecture: Class of ``transformers``.
        config: Its configuration class.
        sizes: Arguments of the configuration.
        inputs: Inputs, in order.
        outputs: Fields of the model's output that become graph outputs.
        part: Submodule to export instead of the whole; empty for the whole.
        cached: True for one step of a decoder: keys and values of past tokens are inputs and outputs too.
        options: Further arguments of ``forward``.
    """

    entry: ZooEntry
    architecture: str
    config: str
    sizes: Mapping[str, Any]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    part: str = ""
    cached: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


_TEXT = (
    Input("input_ids", "tokens", ("batch", "sequence_length")),
    Input("attention_mask", "mask", ("batch", "sequence_length")),
)
_STEP = (
    Input("input_ids", "tokens", ("batch", 1)),
    Input("attention_mask", "mask", ("batch", "past_length+1")),
)
_TRANSLATION = (*_TEXT, Input("decoder_input_ids", "tokens", ("batch", "decoder_length")))


def _entry(name: str, task: str, family: Family, denormals: str, **dims: int) -> ZooEntry:
    return ZooEntry(name, task, family, "export", "zoo", tuple(dims.items()), denormals)


def _vision(
    name: str, family: Family, architecture: str, config: str, *, task: str = "image classification",
    image_size: int = 224, outputs: tuple[str, ...] = ("logits",), denormals: str = "", **sizes: Any,
) -> Recipe:  # fmt: skip
    pixels = Input("pixel_values", "float32", ("batch", 3, "image_size", "image_size"))
    entry = _entry(name, task, family, denormals, image_size=image_size)
    if task == "image classification":
        sizes = {"num_labels": 1000, **sizes}
    return Recipe(entry, architecture, config, sizes, (pixels,), outputs)


def _encoder(
    name: str, architecture: str, config: str, *, sequence_length: int = 128,
    outputs: tuple[str, ...] = ("last_hidden_state",), **sizes: Any,
) -> Recipe:  # fmt: skip
    entry = _entry(name, "text encoding", "transformer", "", sequence_length=sequence_length)
    return Recipe(entry, architecture, config, sizes, _TEXT, outputs)


def _decoder(name: str, architecture: str, config: str, **sizes: Any) -> tuple[Recipe, Recipe]:
    """A language model over a whole prompt, and one step of it with a cache of keys and values."""
    task, options = "language modelling", {"use_cache": False}
    prompt = _entry(name, task, "transformer", "", sequence_length=128)
    step = _entry(f"{name}_step", f"{task}, one step with KV cache", "transformer", "", past_length=128)
    return (
        Recipe(prompt, architecture, config, sizes, _TEXT, ("logits",), options=options),
        Recipe(step, architecture, config, sizes, _STEP, ("logits",), cached=True),
    )


def _translator(name: str, architecture: str, config: str, **sizes: Any) -> Recipe:
    entry = _entry(name, "encoder-decoder", "transformer", "", sequence_length=64, decoder_length=32)
    return Recipe(entry, architecture, config, sizes, _TRANSLATION, ("logits",), options={"use_cache": False})


def _audio(
    name: str, family: Family, architecture: str, config: str, *inputs: Input, outputs: tuple[str, ...] = ("logits",),
    part: str = "", options: Mapping[str, Any] | None = None, dims: Mapping[str, int], **sizes: Any,
) -> Recipe:  # fmt: skip
    entry = _entry(name, "speech", family, "", **dims)
    return Recipe(entry, architecture, config, sizes, inputs, outputs, part=part, options=dict(options or {}))


_BASIC: dict[str, Any] = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}
_RESNET50_C5: dict[str, Any] = {"class": "ResNetConfig", "out_features": ["stage4"]}
_DETECTION: dict[str, Any] = {"task": "object detection", "outputs": ("logits", "pred_boxes")}
_SEGMENTATION: dict[str, Any] = {"task": "segmentation"}

_CLASSIFIERS = (
    _vision("resnet18", "cnn", "ResNetForImageClassification", "ResNetConfig", depths=[2, 2, 2, 2], **_BASIC),
    _vision("resnet34", "cnn", "ResNetForImageClassification", "ResNetConfig", depths=[3, 4, 6, 3], **_BASIC),
    _vision("resnet101", "cnn", "ResNetForImageClassification", "ResNetConfig", depths=[3, 4, 23, 3]),
    _vision("bit_50", "cnn", "BitForImageClassification", "BitConfig"),
    _vision("mobilenet_v1", "cnn", "MobileNetV1ForImageClassification", "MobileNetV1Config", num_labels=1001),
    _vision("mobilenet_v2", "cnn", "MobileNetV2ForImageClassification", "MobileNetV2Config", num_labels=1001),
    _vision("efficientnet_b0", "cnn", "EfficientNetForImageClassification", "EfficientNetConfig",
            width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280),
    _vision("regnet_y_040", "cnn", "RegNetForImageClassification", "RegNetConfig"),
    _vision("convnext_tiny", "cnn", "ConvNextForImageClassification", "ConvNextConfig"),
    _vision("convnextv2_tiny", "cnn", "ConvNextV2ForImageClassification", "ConvNextV2Config"),
    _vision("poolformer_s12", "cnn", "PoolFormerForImageClassification", "PoolFormerConfig"),
    _vision("focalnet_tiny", "cnn", "FocalNetForImageClassification", "FocalNetConfig"),
    _vision("vit_small", "transformer", "ViTForImageClassification", "ViTConfig",
            hidden_size=384, num_attention_heads=6, intermediate_size=1536),
    _vision("deit_tiny", "transformer", "DeiTForImageClassification", "DeiTConfig",
            hidden_size=192, num_attention_heads=3, intermediate_size=768),
    _vision("beit_base", "transformer", "BeitForImageClassification", "BeitConfig",
            use_relative_position_bias=True, use_mask_token=False),
    _vision("dinov2_small", "transformer", "Dinov2ForImageClassification", "Dinov2Config",
            hidden_size=384, num_attention_heads=6, patch_size=14, image_size=224),
    _vision("swin_tiny", "transformer", "SwinForImageClassification", "SwinConfig",
            denormals="shifted windows are masked with -100, and softmax makes exp(-100) = 4e-44 of that"),
    _vision("swinv2_tiny", "transformer", "Swinv2ForImageClassification", "Swinv2Config",
            image_size=256, window_size=8),
    _vision("pvt_tiny", "transformer", "PvtForImageClassification", "PvtConfig"),
    _vision("pvt_v2_b0", "transformer", "PvtV2ForImageClassification", "PvtV2Config"),
    _vision("levit_128", "hybrid", "LevitForImageClassification", "LevitConfig"),
    _vision("cvt_13", "hybrid", "CvtForImageClassification", "CvtConfig"),
    _vision("mobilevit_small", "hybrid", "MobileViTForImageClassification", "MobileViTConfig", image_size=256),
    _vision("mobilevitv2", "hybrid", "MobileViTV2ForImageClassification", "MobileViTV2Config", image_size=256),
    _vision("swiftformer_xs", "hybrid", "SwiftFormerForImageClassification", "SwiftFormerConfig"),
    _vision("clip_vit_b32", "transformer", "CLIPVisionModelWithProjection", "CLIPVisionConfig",
            task="image encoding", outputs=("image_embeds",)),
)  # fmt: skip

_DETECTORS = (
    _vision("detr_resnet50", "hybrid", "DetrForObjectDetection", "DetrConfig", image_size=512,
            backbone_config=_RESNET50_C5, use_timm_backbone=False, backbone=None, num_labels=91, **_DETECTION),
    _vision("conditional_detr", "hybrid", "ConditionalDetrForObjectDetection", "ConditionalDetrConfig", image_size=512,
            backbone_config=_RESNET50_C5, use_timm_backbone=False, backbone=None, num_labels=91, **_DETECTION),
    _vision("table_transformer", "hybrid", "TableTransformerForObjectDetection", "TableTransformerConfig",
            image_size=512, use_timm_backbone=False, backbone=None, num_labels=2, num_queries=15,
            backbone_config={"class": "ResNetConfig", "depths": [2, 2, 2, 2], "out_features": ["stage4"], **_BASIC},
            **_DETECTION),
    _vision("yolos_tiny", "transformer", "YolosForObjectDetection", "YolosConfig", image_size=512,
            hidden_size=192, num_attention_heads=3, intermediate_size=768, num_labels=91,
            use_mid_position_embeddings=False, **_DETECTION),
    _vision("rt_detr_r18", "hybrid", "RTDetrForObjectDetection", "RTDetrConfig", image_size=640,
            backbone_config={"class": "RTDetrResNetConfig", "depths": [2, 2, 2, 2],
                             "out_features": ["stage2", "stage3", "stage4"], **_BASIC},
            encoder_in_channels=[128, 256, 512], hidden_expansion=0.5, decoder_layers=3, num_labels=80, **_DETECTION),
)  # fmt: skip

_SEGMENTERS = (
    _vision("segformer_b0", "transformer", "SegformerForSemanticSegmentation", "SegformerConfig", image_size=512,
            num_labels=150, **_SEGMENTATION),
    _vision("upernet_convnext_tiny", "cnn", "UperNetForSemanticSegmentation", "UperNetConfig", image_size=256,
            backbone_config={"class": "ConvNextConfig", "hidden_sizes": [96, 192, 384, 768],
                             "out_features": ["stage1", "stage2", "stage3", "stage4"]},
            num_labels=150, **_SEGMENTATION),
    _vision("mobilenet_v2_deeplab", "cnn", "MobileNetV2ForSemanticSegmentation", "MobileNetV2Config", image_size=512,
            num_labels=21, output_stride=16, **_SEGMENTATION),
    _vision("mobilevit_deeplab", "hybrid", "MobileViTForSemanticSegmentation", "MobileViTConfig", image_size=512,
            num_labels=21, output_stride=16, **_SEGMENTATION),
    _vision("depth_anything_small", "transformer", "DepthAnythingForDepthEstimation", "DepthAnythingConfig",
            task="depth estimation", outputs=("predicted_depth",), image_size=364,
            backbone_config={"class": "Dinov2Config", "hidden_size": 384, "num_attention_heads": 6, "patch_size": 14,
                             "image_size": 518, "out_indices": [3, 6, 9, 12], "reshape_hidden_states": False,
                             "apply_layernorm": True},
            reassemble_hidden_size=384, neck_hidden_sizes=[48, 96, 192, 384], fusion_hidden_size=64),
)  # fmt: skip

_ENCODERS = (
    _encoder("distilbert", "DistilBertModel", "DistilBertConfig"),
    _encoder("minilm_l6", "BertModel", "BertConfig", hidden_size=384, num_hidden_layers=6, intermediate_size=1536),
    _encoder("roberta_base", "RobertaModel", "RobertaConfig",
             vocab_size=50265, max_position_embeddings=514, type_vocab_size=1),
    _encoder("albert_base", "AlbertModel", "AlbertConfig",
             hidden_size=768, num_attention_heads=12, intermediate_size=3072),
    _encoder("electra_small", "ElectraModel", "ElectraConfig"),
    _encoder("mobilebert", "MobileBertModel", "MobileBertConfig"),
    _encoder("mpnet_base", "MPNetModel", "MPNetConfig"),
    _encoder("squeezebert", "SqueezeBertModel", "SqueezeBertConfig"),
    _encoder("modernbert_base", "ModernBertModel", "ModernBertConfig"),
    _encoder("deberta_v3_small", "DebertaV2Model", "DebertaV2Config",
             vocab_size=128100, hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=3072,
             relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True,
             pos_att_type=["p2c", "c2p"], position_biased_input=False, type_vocab_size=0),
    _encoder("clip_text", "CLIPTextModelWithProjection", "CLIPTextConfig", sequence_length=77,
             outputs=("text_embeds",)),
)  # fmt: skip

_DECODERS = (
    *_decoder("distilgpt2", "GPT2LMHeadModel", "GPT2Config", n_layer=6),
    *_decoder("opt_125m", "OPTForCausalLM", "OPTConfig"),
    *_decoder("pythia_160m", "GPTNeoXForCausalLM", "GPTNeoXConfig",
              vocab_size=50304, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072),
    *_decoder("smollm_135m", "LlamaForCausalLM", "LlamaConfig",
              vocab_size=49152, hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
              intermediate_size=1536, tie_word_embeddings=True),
    *_decoder("qwen2_0_5b", "Qwen2ForCausalLM", "Qwen2Config",
              vocab_size=151936, hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2,
              intermediate_size=4864, tie_word_embeddings=True),
)  # fmt: skip

_TRANSLATORS = (
    _translator("t5_small", "T5ForConditionalGeneration", "T5Config"),
    _translator("bart_base", "BartForConditionalGeneration", "BartConfig",
                d_model=768, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=3072, decoder_ffn_dim=3072,
                encoder_attention_heads=12, decoder_attention_heads=12),
    _translator("marian_en_de", "MarianMTModel", "MarianConfig",
                vocab_size=58101, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048,
                decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8,
                max_position_embeddings=512, activation_function="swish", scale_embedding=True, pad_token_id=58100,
                decoder_start_token_id=58100),
)  # fmt: skip

_WAVE = Input("input_values", "float32", ("batch", "samples"))
_SPEECH = (
    _audio("whisper_tiny_encoder", "transformer", "WhisperModel", "WhisperConfig",
           Input("input_features", "float32", ("batch", 80, 3000)),
           part="encoder", outputs=("last_hidden_state",), dims={}),
    _audio("whisper_tiny_decoder", "transformer", "WhisperForCausalLM", "WhisperConfig",
           Input("input_ids", "tokens", ("batch", "decoder_length")),
           Input("encoder_hidden_states", "float32", ("batch", 1500, 384)),
           options={"use_cache": False}, dims={"decoder_length": 32}),
    _audio("wav2vec2_base", "hybrid", "Wav2Vec2ForCTC", "Wav2Vec2Config", _WAVE, dims={"samples": 32000}),
    _audio("hubert_base", "hybrid", "HubertModel", "HubertConfig", _WAVE,
           outputs=("last_hidden_state",), dims={"samples": 32000}),
    _audio("ast_base", "transformer", "ASTForAudioClassification", "ASTConfig",
           Input("input_values", "float32", ("batch", 1024, 128)), dims={}),
)  # fmt: skip

RECIPES: Mapping[str, Recipe] = {
    recipe.entry.name: recipe
    for recipe in (
        *_CLASSIFIERS, *_DETECTORS, *_SEGMENTERS, *_ENCODERS, *_DECODERS, *_TRANSLATORS, *_SPEECH,
    )
}  # fmt: skip
"""Zoo name to recipe, in the order of the list."""
