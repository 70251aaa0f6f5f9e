"""Make decoders as people have them: Llama-, Qwen-, Gemma- and Phi-like, with random weights.

    python benchmarks/decoders.py FOLDER [--names llama_0.1b ...] [--kinds exported int4 built]

``exported``: one file with its cache, by PyTorch's exporter, float32. ``int4``: the same with the weights of products
in four bits, by ONNX Runtime's quantiser. ``built``: by onnxruntime-genai's builder, in four bits with fused attention;
it needs ``pip install --no-deps onnxruntime-genai``. Sizes are those of published models; nothing is downloaded. Files
that exist are kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

KINDS = ("exported", "int4", "built")

# ruff: noqa: TID251 - exports with torch

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama_0.1b": ("Llama", {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
    }),
    "gemma_0.3b": ("Gemma", {
        "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144,
    }),
    "qwen_0.5b": ("Qwen2", {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    }),
    "phi_1.3b": ("Phi", {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24, "num_attention_heads": 32,
        "vocab_size": 51200, "partial_rotary_factor": 0.5,
    }),
    "qwen_1.5b": ("Qwen2", {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    }),
}  # fmt: skip
"""Sizes of SmolLM-135M, Gemma 3 270M, Qwen2-0.5B, Phi-1.5 and Qwen2-1.5B."""

_POSITIONS = 4096


def main() -> None:
    """Make the files that are missing."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--names", nargs="+", choices=FAMILIES, default=[*FAMILIES])
    arguments.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    options = arguments.parse_args()
    for name in options.names:
        for kind in options.kinds:
            path = options.folder / f"{name}-{kind}" / "model.onnx"
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "exported":
                _export(name, path)
            elif kind == "int4":
                source = options.folder / f"{name}-exported" / "model.onnx"
                if not source.exists():
                    source.parent.mkdir(parents=True, exist_ok=True)
                    _export(name, source)
                _quantise(source, path)
            else:
                _build(name, path.parent)
            print(path, flush=True)


def _model(name: str) -> Any:
    import torch
    import transformers

    family, sizes = FAMILIES[name]
    config = getattr(transformers, f"{family}Config")(max_position_embeddings=_POSITIONS, **sizes)
    torch.manual_seed(0)
    return getattr(transformers, f"{family}ForCausalLM")(config).eval()


def _export(name: str, path: Path) -> None:
    """Export a decoder in one file: tokens, mask and cache in, logits and a longer cache out."""
    import torch
    from transformers import DynamicCache

    model = _model(name)
    config = model.config
    layers = range(config.num_hidden_layers)

    class Function(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any, *past: Any) -> tuple[Any, ...]:
            cache = DynamicCache(config=config)
            for layer in layers:
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            result = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache)
            presents = (part for layer in result.past_key_values.layers for part in (layer.keys, layer.values))
            return result.logits, *presents

    heads = config.num_key_value_heads or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    past = [torch.zeros(1, heads, 5, width) for _ in layers for _ in "kv"]
    tokens, mask = torch.ones(1, 3, dtype=torch.int64), torch.ones(1, 8, dtype=torch.int64)
    names = [f"{layer}.{part}" for layer in layers for part in ("key", "value")]
    dynamic, length = torch.export.Dim.DYNAMIC, {2: torch.export.Dim.DYNAMIC}
    torch.onnx.export(
        Function(), (tokens, mask, *past), str(path), dynamo=True, opset_version=20, external_data=True, verbose=False,
        input_names=["input_ids", "attention_mask", *(f"past_key_values.{part}" for part in names)],
        output_names=["logits", *(f"present.{part}" for part in names)],
        dynamic_shapes=({1: dynamic}, {1: dynamic}, tuple(length for _ in past)),
    )  # fmt: skip


def _quantise(source: Path, path: Path) -> None:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    quantizer.model.save_model_to_file(str(path), use_external_data_format=True)


def _build(name: str, folder: Path) -> None:
    """Call the builder for a folder as a hub has it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory(prefix="dlbricks-decoder-") as made:
        _model(name).save_pretrained(made)
        words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
        PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(made)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", made, "-o", str(folder)]
        subprocess.run([*command, "-p", "int4", "-e", "cpu", "-c", f"{made}/cache"], check=True)


if __name__ == "__main__":
    main()
