"""Recipes of models that take text. Data only."""

from __future__ import annotations

from .recipe import Input, Recipe, answering, decoder, encoder, general, generator, translator

__all__ = ["TEXTS"]

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

# What earlier results have not seen; no family of theirs.
_NEWCOMERS = (
    # YituTech/conv-bert-base, the defaults.
    encoder("convbert_base", "ConvBertModel", "ConvBertConfig"),
    # google/fnet-base, the defaults; it takes no mask.
    general("fnet_base", "text encoding", "transformer", "FNetModel", "FNetConfig", _TOKENS,
            outputs=("last_hidden_state",), dims={"sequence_length": 128}),
)  # fmt: skip

TEXTS: tuple[Recipe, ...] = (*_ENCODERS, *_DECODERS, *_TRANSLATORS, *_ANSWERING, *_NEWCOMERS)
