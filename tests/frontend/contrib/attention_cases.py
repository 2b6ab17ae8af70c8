"""Random nodes of the attention operators, within what ONNX Runtime's CPU provider takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from contrib_models import Case, normal

HEADS, SIZE = 4, 8
HIDDEN = HEADS * SIZE


def _mask(
    rng: np.random.Generator, kind: str, batch: int, length: int, total: int, low: float
) -> tuple[np.ndarray | None, tuple[int | str, ...]]:
    ends = rng.integers(1, total + 1, batch)
    if kind == "raw":
        raw = (rng.random((batch, total)) < 0.7).astype("int32")
        return raw, ("b", "t")
    if kind == "full":
        full = (rng.random((batch, length, total)) < 0.7).astype("int32")
        if low > -100:
            full[0, 0] = 0
        else:  # where all keys are masked, scores differ by less than a step of float32
            full[:, :, 0] = 1
        return full, ("b", "s", "t")
    if kind == "ends":
        return ends.astype("int32"), ("b",)
    if kind == "both":
        starts = rng.integers(0, ends)
        return np.concatenate([ends, starts]).astype("int32"), (2 * batch,)
    return None, ()


def _common(rng: np.random.Generator) -> dict[str, Any]:
    attributes: dict[str, Any] = {"num_heads": HEADS, "unidirectional": int(rng.integers(2))}
    if rng.random() < 0.5:
        attributes["scale"] = 0.3
    if rng.random() < 0.5:
        attributes["mask_filter_value"] = -50.0
    return attributes


def attention(rng: np.random.Generator) -> Case:
    past, length = int(rng.choice([0, 0, 3])), int(rng.choice([1, 4, 5]))
    kind = str(rng.choice(["", "raw", "full", "ends", "both"]))
    total, batch = past + length, 2
    name = batch if kind == "both" else "b"
    attributes = _common(rng)
    widths = [HIDDEN] * 3
    if not past and rng.random() < 0.4:
        widths[2] = 2 * HIDDEN
        attributes["qkv_hidden_sizes"] = widths
    case = Case("Attention", attributes, outputs=2 if past else 1)
    case.feed(normal(rng, batch, length, 12), (name, "s", 12))
    case.constant(normal(rng, 12, sum(widths)))
    case.constant(normal(rng, sum(widths)) if rng.random() < 0.8 else None)
    case.feed(*_mask(rng, kind, batch, length, total, attributes.get("mask_filter_value", -1e4)))
    cache = normal(rng, 2, batch, HEADS, past, SIZE) if past else None
    case.feed(cache, (2, name, HEADS, "p", SIZE))
    if not past and rng.random() < 0.4:
        lead = ((1, HEADS), (batch, 1), (batch, HEADS), (1, 1))[int(rng.integers(4))]
        case.feed(normal(rng, *lead, length, total), (*lead, "s", "t"))
    return case


def multi_head(rng: np.random.Generator) -> Case:
    past, length = int(rng.choice([0, 0, 3])), int(rng.choice([1, 4, 5]))
    kind = str(rng.choice(["", "", "raw", "full", "ends"]))
    apart = not past and rng.random() < 0.2
    cross = bool(apart or rng.random() < 0.4)
    rows = 6 if cross else length
    total, depth = past + rows, 2 * SIZE if not past and not apart and rng.random() < 0.4 else SIZE
    attributes = _common(rng)
    # Without present outputs the CPU provider forgets the past.
    outputs = 1 if apart else int(rng.choice([3, 4] if past else [1, 3, 4]))
    case = Case("MultiHeadAttention", attributes, outputs=outputs)
    case.feed(normal(rng, 2, length, HIDDEN), ("b", "s", HIDDEN))
    other = "l" if cross else "s"
    if apart:
        for _ in range(2):
            case.feed(normal(rng, 2, HEADS, rows, SIZE), ("b", HEADS, other, SIZE))
    else:
        case.feed(normal(rng, 2, rows, HIDDEN), ("b", other, HIDDEN))
        case.feed(normal(rng, 2, rows, HEADS * depth), ("b", other, HEADS * depth))
    biased = not apart and rng.random() < 0.5
    case.constant(normal(rng, 2 * HIDDEN + HEADS * depth) if biased else None)
    case.feed(*_mask(rng, kind, 2, length, total, attributes.get("mask_filter_value", -1e4)))
    lead = ((1, HEADS), (2, 1), (2, HEADS), (1, 1))[int(rng.integers(4))]
    extra = normal(rng, *lead, length, total) if rng.random() < 0.4 else None
    case.feed(extra, (*lead, "s", "t"))
    if past:
        for width in (SIZE, depth):
            case.feed(normal(rng, 2, HEADS, past, width), ("b", HEADS, "p", width))
    return case


def group_query(rng: np.random.Generator) -> Case:
    """A prompt, a chunk or one new token; caches that grow, or buffers of fixed size."""
    size, groups = 16, int(rng.choice([1, 2, 4]))
    batch, stage = 2, str(rng.choice(["prompt", "token", "token", "chunk"]))
    if stage == "chunk":
        batch = 1
    length = {"prompt": 5, "token": 1, "chunk": 3}[stage]
    past = 0 if stage == "prompt" else 6
    total = past + length
    has_cache = stage != "prompt" or rng.random() < 0.5
    shared = bool(has_cache and rng.random() < 0.3)
    held = 12 if shared else past
    tokens = np.full(batch, total)
    if batch > 1 and stage != "chunk":
        tokens[1] -= int(rng.integers(0, 3))  # right padding
    attributes: dict[str, Any] = {"num_heads": HEADS, "kv_num_heads": groups}
    for name, value, chance in (
        ("scale", 0.3, 0.3), ("softcap", 3.0, 0.3), ("local_window_size", 3, 0.4),
        ("smooth_softmax", 1, 0.2), ("do_rotary", 1, 0.6), ("rotary_interleaved", 1, 0.3),
    ):  # fmt: skip
        if rng.random() < chance:
            attributes[name] = value
    if not attributes.get("do_rotary"):
        attributes.pop("rotary_interleaved", None)
    case = Case("GroupQueryAttention", attributes, outputs=3)
    if rng.random() < 0.4:
        width = (HEADS + 2 * groups) * size
        case.feed(normal(rng, batch, length, width), ("b", "s", width))
        case.constant(None).constant(None)
    else:
        case.feed(normal(rng, batch, length, HEADS * size), ("b", "s", HEADS * size))
        for _ in range(2):
            case.feed(normal(rng, batch, length, groups * size), ("b", "s", groups * size))
    for _ in range(2):
        cache = normal(rng, batch, groups, held, size) if has_cache and held else None
        case.feed(cache, ("b", groups, "p", size))
    case.feed((tokens - 1).astype("int32"), ("b",))
    case.constant(np.array([total] if rng.random() < 0.5 else total, "int32"))
    rotary = attributes.get("do_rotary")
    columns = size // 2
    for _ in range(2):
        case.constant(normal(rng, 20, columns) if rotary else None)
    given = rotary and stage != "prompt" and rng.random() < 0.3
    case.feed(rng.integers(0, 20, (batch, length)) if given else None, ("b", "s"))
    lead = ((1, HEADS), (batch, 1), (1, 1))[int(rng.integers(3))]
    biased = rng.random() < 0.3
    case.feed(normal(rng, *lead, length, total) if biased else None, (*lead, "s", "t"))
    sinks = not attributes.get("smooth_softmax") and rng.random() < 0.2
    case.constant(normal(rng, HEADS) if sinks else None)
    # Rows of padding, and rows of the cache that no token has reached, are not specified.
    rows = np.minimum(tokens, length)
    case.kept[0] = (np.arange(length) < rows[:, None])[:, :, None]
    present = max(total, held)
    for number in (1, 2):
        case.kept[number] = (np.arange(present) < tokens[:, None])[:, None, :, None]
    return case
