"""Tiny GGUF files: a Llama-shaped model, random weights in given formats, its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

Type = gguf.GGMLQuantizationType
LAYERS, WIDTH, INNER, HEADS, KEYS, VOCABULARY = 2, 64, 96, 4, 2, 160


def blocks(kind: Type, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random bytes of a format, with scales of a size that weights have."""
    random = np.random.default_rng(seed)
    if kind == Type.F32:
        return (random.standard_normal(shape) / 8).astype(np.float32)
    if kind in (Type.F16, Type.BF16):
        return gguf.quantize((random.standard_normal(shape) / 8).astype(np.float32), kind)
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    raw = random.integers(0, 256, (*shape[:-1], shape[-1] // elements, size), dtype=np.uint8)
    for at in HALVES[kind]:
        halves = random.uniform(1e-3, 8e-3, raw.shape[:-1]).astype(np.float16)
        raw[..., at : at + 2] = halves[..., None].view(np.uint8)
    return raw.reshape(*shape[:-1], -1)


# Where the float16 numbers of a block are.
HALVES: Mapping[Type, tuple[int, ...]] = {
    Type.Q4_0: (0,), Type.Q4_1: (0, 2), Type.Q5_0: (0,), Type.Q5_1: (0, 2), Type.Q8_0: (0,),
    Type.Q2_K: (80, 82), Type.Q3_K: (108,), Type.Q4_K: (0, 2), Type.Q5_K: (0, 2), Type.Q6_K: (208,),
    Type.IQ4_NL: (0,),
}  # fmt: skip

PIECES = ["<|end|>", "<|start|>", *map(chr, range(33, 127)), "Ġ", "Ċ", "th", "the", "Ġthe", "12"]


def llama(path: Path, kinds: tuple[Type, ...] = (Type.Q4_1, Type.Q4_0, Type.Q8_0)) -> Path:
    """A file whose matrices take the formats in turn; the head is tied to the embedding."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEYS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    _vocabulary(writer)
    shapes = {"token_embd": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        narrow = WIDTH // HEADS * KEYS
        shapes |= {
            f"blk.{layer}.attn_q": (WIDTH, WIDTH),
            f"blk.{layer}.attn_k": (narrow, WIDTH),
            f"blk.{layer}.attn_v": (narrow, WIDTH),
            f"blk.{layer}.attn_output": (WIDTH, WIDTH),
            f"blk.{layer}.ffn_gate": (INNER, WIDTH),
            f"blk.{layer}.ffn_up": (INNER, WIDTH),
            f"blk.{layer}.ffn_down": (WIDTH, INNER),
        }
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32) * 1.5)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for number, (name, shape) in enumerate(shapes.items()):
        kind = kinds[number % len(kinds)]
        raw = blocks(kind, shape, number)
        writer.add_tensor(f"{name}.weight", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary(writer: gguf.GGUFWriter) -> None:
    tokens = [*PIECES, *(f"<{number}>" for number in range(VOCABULARY - len(PIECES)))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, *([1] * (len(tokens) - 2))])
    writer.add_token_merges(["t h", "th e", "Ġ the", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
