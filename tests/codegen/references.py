"""References in float64."""

from __future__ import annotations

import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[float])


def gelu(x: np.ndarray) -> np.ndarray:
    """x * P(X <= x) for a standard normal X."""
    return x * 0.5 * (1 + erf(np.asarray(x, float) / math.sqrt(2)))


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """exp(x) / sum(exp(x)); NaN for a row of -inf."""
    with np.errstate(invalid="ignore", divide="ignore"):
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float,
    bias: np.ndarray | None = None,
    causal: bool = False,
    guard: bool = False,
) -> np.ndarray:
    """softmax(scale * q k^T + bias) v in the layout [batch, token, head, depth]."""
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(value.astype(float), group, axis=2) for value in (k, v))
    scores = np.einsum("bshd,bthd->bhst", q.astype(float), k) * scale
    if bias is not None:
        scores = scores + bias
    if causal:
        queries, keys = scores.shape[2:]
        hidden = np.arange(keys)[None] > np.arange(queries)[:, None] + keys - queries
        scores = np.where(hidden, -np.inf, scores)
    weights = softmax(scores)
    if guard:
        weights = np.nan_to_num(weights)
    return np.einsum("bhst,bthd->bshd", weights, v)
