"""Toy transformers of many architectures, as transformers' own classes build them.

Random weights, a few thousand parameters, dynamic batch and length: what matters is which
operators a model's code makes and how they are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from graphc.frontend.huggingface import dense_experts

BATCH = torch.export.Dim("batch", min=1, max=64)
LENGTH = torch.export.Dim("sequence", min=2, max=64)
VOCABULARY = 97

Arrays = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Architecture:
    """`build` gives the module in evaluation mode; `inputs(batch, length)` what it is called with.

    `dynamic` maps an input to its dynamic axes.
    """

    name: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[int, int], dict[str, torch.Tensor]]
    dynamic: Mapping[str, Mapping[int, Any]]
    shapes: Sequence[tuple[int, int]] = ((1, 5), (3, 17))


_TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_EXPERTS = {**_GROUPED, "head_dim": 8}
_BOTH = {0: BATCH, 1: LENGTH}


def _module(kind: str, config: str, options: Mapping[str, Any]) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    settings = getattr(transformers, config)(**options)
    if "use_cache" in dir(settings):
        settings.use_cache = False
    module = getattr(transformers, kind)(settings).eval()
    module.requires_grad_(False)
    dense_experts(module)
    _spread(module)
    return module


def _spread(module: torch.nn.Module) -> None:
    """Weights that matter: fresh ones are so small, or exactly 0 or 1, that errors would hide."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        if parameter.ndim >= 2:
            fan = parameter[0].numel()
            parameter.data.normal_(0, max(fan, 1) ** -0.5, generator=generator)
        else:
            parameter.data.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def _tokens(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch * 1000 + length)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def _masked(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Tokens with padding at the end of every sequence but the first."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(1, batch):
        mask[row, length - min(row, length - 1) :] = 0
    return {"input_ids": _tokens(batch, length), "attention_mask": mask}


def text(name: str, config: str, kind: str, **options: Any) -> Architecture:
    """A model of input_ids and attention_mask."""
    return Architecture(
        name,
        lambda: _module(kind, config, options),
        _masked,
        {"input_ids": _BOTH, "attention_mask": _BOTH},
    )


def unmasked(name: str, config: str, kind: str, **options: Any) -> Architecture:
    """A model of input_ids only."""
    return Architecture(
        name,
        lambda: _module(kind, config, options),
        lambda batch, length: {"input_ids": _tokens(batch, length)},
        {"input_ids": _BOTH},
    )


def translation(name: str, config: str, kind: str, **options: Any) -> Architecture:
    """An encoder and a decoder: the decoder's length is another dimension."""
    target = torch.export.Dim("target", min=2, max=64)
    return Architecture(
        name,
        lambda: _module(kind, config, options),
        lambda batch, length: {
            **_masked(batch, length),
            "decoder_input_ids": _tokens(batch, length + 2),
        },
        {"input_ids": _BOTH, "attention_mask": _BOTH, "decoder_input_ids": {0: BATCH, 1: target}},
    )


def image(name: str, config: str, kind: str, size: int = 32, **options: Any) -> Architecture:
    """A model of pixel_values with a fixed size."""

    def inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(batch)
        return {"pixel_values": torch.randn(batch, 3, size, size, generator=generator)}

    return Architecture(
        name, lambda: _module(kind, config, options), inputs, {"pixel_values": {0: BATCH}}
    )


def _pictures_and_words(name: str, config: str, kind: str, **options: Any) -> Architecture:
    captions = torch.export.Dim("captions", min=1, max=64)

    def inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(batch)
        ids = _tokens(batch + 1, length)
        ids[:, -1] = 2
        return {
            "input_ids": ids,
            "pixel_values": torch.randn(batch, 3, 32, 32, generator=generator),
        }

    return Architecture(
        name,
        lambda: _module(kind, config, options),
        inputs,
        {"input_ids": {0: captions, 1: LENGTH}, "pixel_values": {0: BATCH}},
    )


def _whisper() -> Architecture:
    options = {
        "vocab_size": VOCABULARY, "num_mel_bins": 8, "d_model": 32, "encoder_layers": 2,
        "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_source_positions": 16,
        "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }  # fmt: skip

    def inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(batch)
        return {
            "input_features": torch.randn(batch, 8, 32, generator=generator),
            "decoder_input_ids": _tokens(batch, length),
        }

    return Architecture(
        "Whisper",
        lambda: _module("WhisperForConditionalGeneration", "WhisperConfig", options),
        inputs,
        {"input_features": {0: BATCH}, "decoder_input_ids": _BOTH},
    )


def _wav2vec2() -> Architecture:
    options = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 48, "conv_dim": (16, 16, 16),
        "conv_stride": (4, 2, 2), "conv_kernel": (8, 3, 3), "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 2,
    }  # fmt: skip
    frames = torch.export.Dim("frames", min=5, max=256)

    def inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(batch)
        return {"input_values": torch.randn(batch, 16 * (length + 4) - 3, generator=generator)}

    return Architecture(
        "Wav2Vec2",
        lambda: _module("Wav2Vec2ForCTC", "Wav2Vec2Config", options),
        inputs,
        {"input_values": {0: BATCH, 1: 16 * frames - 3}},
    )


_VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
_GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_BART = {
    "vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None,
}  # fmt: skip
_TEXT_TOWER = {key: value for key, value in _TEXT.items() if key != "max_position_embeddings"}
_TOWERS = {
    "text_config": {**_TEXT_TOWER, "max_position_embeddings": 64, "projection_dim": 16},
    "vision_config": {**_VISION, "projection_dim": 16},
}

ARCHITECTURES: tuple[Architecture, ...] = (
    text("Llama", "LlamaConfig", "LlamaForCausalLM", **_GROUPED),
    text("Mistral", "MistralConfig", "MistralForCausalLM", **_GROUPED, sliding_window=8),
    text("Mixtral", "MixtralConfig", "MixtralForCausalLM", **_GROUPED, num_local_experts=4,
         num_experts_per_tok=2),
    text("Qwen2", "Qwen2Config", "Qwen2ForCausalLM", **_GROUPED),
    text("Qwen3", "Qwen3Config", "Qwen3ForCausalLM", **_GROUPED, head_dim=8),
    text("Qwen3-MoE", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", **_EXPERTS, num_experts=4,
         num_experts_per_tok=2, moe_intermediate_size=24),
    text("Gemma 2", "Gemma2Config", "Gemma2ForCausalLM", **_GROUPED, head_dim=8, sliding_window=8,
         query_pre_attn_scalar=8),
    text("Gemma 3", "Gemma3TextConfig", "Gemma3ForCausalLM", **_GROUPED, head_dim=8,
         sliding_window=8, query_pre_attn_scalar=8),
    text("Phi-3", "Phi3Config", "Phi3ForCausalLM", **_GROUPED),
    text("GPT-2", "GPT2Config", "GPT2LMHeadModel", **_GPT),
    text("GPT-NeoX", "GPTNeoXConfig", "GPTNeoXForCausalLM", **_TEXT),
    text("GPT-J", "GPTJConfig", "GPTJForCausalLM", **_GPT, rotary_dim=4),
    text("OPT", "OPTConfig", "OPTForCausalLM", **_TEXT, ffn_dim=48, word_embed_proj_dim=32),
    text("BLOOM", "BloomConfig", "BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=32,
         n_layer=2, n_head=4),
    text("Falcon", "FalconConfig", "FalconForCausalLM", **_TEXT, bias=False, multi_query=True),
    text("MPT", "MptConfig", "MptForCausalLM", vocab_size=VOCABULARY, d_model=32, n_layers=2,
         n_heads=4, max_seq_len=128),
    text("StableLM", "StableLmConfig", "StableLmForCausalLM", **_GROUPED),
    text("OLMo2", "Olmo2Config", "Olmo2ForCausalLM", **_GROUPED),
    text("Granite", "GraniteConfig", "GraniteForCausalLM", **_GROUPED),
    text("Cohere", "CohereConfig", "CohereForCausalLM", **_GROUPED),
    text("DeepSeek-V3", "DeepseekV3Config", "DeepseekV3ForCausalLM", **_TEXT, n_routed_experts=4,
         num_key_value_heads=4,
         num_experts_per_tok=2, n_group=2, topk_group=1, q_lora_rank=16, kv_lora_rank=16,
         qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8, moe_intermediate_size=24,
         first_k_dense_replace=1),
    text("SmolLM3", "SmolLM3Config", "SmolLM3ForCausalLM", **_GROUPED),
    unmasked("Mamba", "MambaConfig", "MambaForCausalLM", vocab_size=VOCABULARY, hidden_size=32,
             num_hidden_layers=2, state_size=8),
    unmasked("RWKV", "RwkvConfig", "RwkvForCausalLM", vocab_size=VOCABULARY, hidden_size=32,
             num_hidden_layers=2, attention_hidden_size=32, intermediate_size=48,
             context_length=64),
    text("RecurrentGemma", "RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", **_GROUPED,
         lru_width=32, attention_window_size=16),
    text("BERT", "BertConfig", "BertModel", **_TEXT),
    text("RoBERTa", "RobertaConfig", "RobertaModel", **{**_TEXT, "max_position_embeddings": 66,
         "pad_token_id": 1}),
    text("DistilBERT", "DistilBertConfig", "DistilBertModel", vocab_size=VOCABULARY, dim=32,
         hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=64),
    text("ALBERT", "AlbertConfig", "AlbertModel", **_TEXT, embedding_size=16),
    text("ELECTRA", "ElectraConfig", "ElectraForTokenClassification", **_TEXT, embedding_size=16),
    text("DeBERTa-v2", "DebertaV2Config", "DebertaV2Model", **_TEXT, relative_attention=True,
         position_buckets=8, pos_att_type=["p2c", "c2p"], share_att_key=True,
         norm_rel_ebd="layer_norm", position_biased_input=False),
    text("MPNet", "MPNetConfig", "MPNetModel", **{**_TEXT, "max_position_embeddings": 66,
         "pad_token_id": 1}),
    text("ModernBERT", "ModernBertConfig", "ModernBertModel", **_TEXT, cls_token_id=1,
         sep_token_id=2, local_attention=8, global_attn_every_n_layers=2),
    translation("T5", "T5Config", "T5ForConditionalGeneration", vocab_size=VOCABULARY, d_model=32,
                d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0),
    translation("BART", "BartConfig", "BartForConditionalGeneration", **_BART),
    translation("Marian", "MarianConfig", "MarianMTModel", **_BART),
    _whisper(),
    _wav2vec2(),
    image("ViT", "ViTConfig", "ViTForImageClassification", **_VISION, num_labels=7),
    image("DINOv2", "Dinov2Config", "Dinov2Model", **{**_VISION, "image_size": 40}),
    _pictures_and_words("CLIP", "CLIPConfig", "CLIPModel", **_TOWERS, projection_dim=16),
    _pictures_and_words("SigLIP", "SiglipConfig", "SiglipModel", **_TOWERS),
    image("Swin", "SwinConfig", "SwinModel", image_size=32, patch_size=2, embed_dim=16,
          depths=[2, 2], num_heads=[2, 4], window_size=4),
    image("DETR", "DetrConfig", "DetrForObjectDetection", size=64, d_model=32, encoder_layers=2,
          decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
          encoder_ffn_dim=48, decoder_ffn_dim=48, num_queries=5, use_timm_backbone=False,
          use_pretrained_backbone=False, backbone=None,
          backbone_config={"model_type": "resnet", "embedding_size": 8,
                           "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
                           "out_features": ["stage4"], "layer_type": "basic"}),
)  # fmt: skip


def export(architecture: Architecture) -> torch.export.ExportedProgram:
    """The model by torch.export, with its dynamic dimensions."""
    inputs = architecture.inputs(2, 7)
    dynamic = {name: dict(architecture.dynamic.get(name, {})) for name in inputs}
    with torch.no_grad():
        return torch.export.export(
            architecture.build(), (), inputs, dynamic_shapes=dynamic, strict=False
        )
