"""Caches for tests: ragged sequences over scattered pages, and attention to them in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from graphc.codegen.templates.pages import PAGE, Pages

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Batch:
    """Sequences of `lengths` tokens after a step, of which the last `new` are new."""

    new: Sequence[int]
    lengths: Sequence[int]

    @property
    def starts(self) -> Array:
        return np.cumsum([0, *self.new]).astype("int32")

    @property
    def tokens(self) -> int:
        return int(sum(self.new))

    def table(self, random: np.random.Generator, spare: int = 3) -> tuple[Array, int]:
        """[s, p] pages in random order, what is not used points anywhere; and the page count."""
        needed = [-(-length // PAGE) for length in self.lengths]
        pages = random.permutation(sum(needed) + spare)
        table = random.integers(0, len(pages), (len(needed), max(needed))).astype("int32")
        for s, count in enumerate(needed):
            table[s, :count], pages = pages[:count], pages[count:]
        return table, sum(needed) + spare

    def slots(self, table: Array) -> Array:
        """Where each new token's entry goes."""
        places = [
            table[s, position // PAGE] * PAGE + position % PAGE
            for s, (new, length) in enumerate(zip(self.new, self.lengths, strict=True))
            for position in range(length - new, length)
        ]
        return np.array(places, "int32")


def empty(pages: Pages, count: int) -> Array:
    """A cache full of what must never be read: NaN, or codes and scales that are NaN."""
    shape = (count, PAGE, pages.heads, pages.stored)
    if pages.has_scales:
        return np.full(shape, -1, "int8")  # the bytes of a float32 NaN
    dtype = ml_dtypes.bfloat16 if pages.dtype == "bfloat16" else np.dtype(pages.dtype)
    return np.full(shape, np.nan, dtype)


def entries(pages: Pages, cache: Array) -> Array:
    """[pages, 16, heads, width] in float64: what a cache holds, scales applied."""
    count, heads, width = len(cache), pages.heads, pages.width
    if pages.order == "rows":
        return np.asarray(cache, "float64")
    flat = cache.reshape(count, heads, PAGE * pages.stored)
    scale = np.ones((count, heads, PAGE))
    if pages.has_scales:
        scale = np.ascontiguousarray(flat[..., PAGE * width :]).view("float32").astype("float64")
        flat = flat[..., : PAGE * width]
    shape = (count, heads, width, PAGE) if pages.order == "keys" else (count, heads, PAGE, width)
    values = np.asarray(flat, "float64").reshape(shape)
    values = values if pages.order == "values" else values.transpose(0, 1, 3, 2)
    return (values * scale[..., None]).transpose(0, 2, 1, 3)


def attention(
    batch: Batch,
    q: Array,
    keys: Array,
    values: Array,
    table: Array,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    slopes: Array | None = None,
    sinks: Array | None = None,
) -> Array:
    """[t, h, dv] in float64, `keys` and `values` being entries [pages, 16, heads, width]."""
    heads, groups = q.shape[1], keys.shape[2]
    out = []
    for s, length in enumerate(batch.lengths):
        pages = table[s, : -(-length // PAGE)]
        k, v = (c[pages].reshape(-1, groups, c.shape[3])[:length] for c in (keys, values))
        k, v = (np.repeat(x, heads // groups, axis=1) for x in (k, v))
        for token in range(batch.starts[s], batch.starts[s + 1]):
            position = length - (batch.starts[s + 1] - token)
            first = max(0, position - window + 1) if window else 0
            seen = slice(first, position + 1)
            scores = scale * np.einsum("hd,jhd->hj", q[token].astype("float64"), k[seen])
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            if slopes is not None:
                scores = scores + slopes[:, None] * (np.arange(first, position + 1) - position)
            if sinks is not None:
                scores = np.concatenate([scores, sinks[:, None]], axis=1)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            weights /= weights.sum(axis=1, keepdims=True)
            weights = weights[:, : position + 1 - first]
            out.append(np.einsum("hj,jhv->hv", weights, v[seen]))
    return np.array(out)
