"""Recipes of models that take images. Data only."""

from __future__ import annotations

from typing import Any

from .recipe import Input, Recipe, general, vision

__all__ = ["VISION"]

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

# What earlier results have not seen; no family of theirs.
_NEWCOMERS = (
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
    general("uvdoc", "document rectification", "cnn", "UVDocModel", "UVDocConfig",
            Input("pixel_values", "float32", ("batch", 3, 712, 488)), outputs=("last_hidden_state",),
            backbone_config={"class": "UVDocBackboneConfig",
                             "out_features": ["stage1", "stage2", "stage3", "stage4", "stage5", "stage6"]}),
    # PP-OCRv5 mobile (PaddlePaddle/PP-OCRv5_mobile_det_safetensors), the defaults.
    vision("pp_ocrv5_det", "cnn", "PPOCRV5MobileDetForObjectDetection", "PPOCRV5MobileDetConfig",
           task="text detection", outputs=("last_hidden_state",), image_size=640),
    # Its recogniser; strides of the backbone as PaddleOCR has them for lines of text (rec_lcnetv3.py, NET_CONFIG_rec).
    general("pp_ocrv5_rec", "text recognition", "hybrid", "PPOCRV5MobileRecForTextRecognition",
            "PPOCRV5MobileRecConfig", Input("pixel_values", "float32", ("batch", 3, 48, "width")),
            outputs=("last_hidden_state",), dims={"width": 320},
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

VISION: tuple[Recipe, ...] = (*_CLASSIFIERS, *_DETECTORS, *_SEGMENTERS, *_NEWCOMERS)
