"""Ranges of activations from samples: the smallest and largest, percentiles, or the least entropy.

    minmax       [min, max]
    percentile   what 99.99 % of the values lie in
    entropy      the range whose 256 steps keep most of the histogram's information: the least
                 Kullback-Leibler divergence of the clipped, rounded histogram from the true one

Every range includes 0, which has a code of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float32]

LEVELS: Final = 255
PERCENTILE: Final = 99.99
_BINS: Final = 2048
_CANDIDATES: Final = 24


@dataclass(frozen=True)
class Range:
    """What uint8 codes stand for: x = (code - zero) * scale."""

    low: float
    high: float

    @property
    def scale(self) -> float:
        return float(np.float32((self.high - self.low) / LEVELS)) or 1.0

    @property
    def zero(self) -> int:
        return int(np.clip(np.rint(-self.low / self.scale), 0, LEVELS))


def minmax(values: Values) -> Range:
    """All of them."""
    return Range(min(float(values.min()), 0.0), max(float(values.max()), 0.0))


def percentile(values: Values) -> Range:
    """Without the 0.01 % at both ends."""
    low, high = np.percentile(values, [100 - PERCENTILE, PERCENTILE])
    return Range(min(float(low), 0.0), max(float(high), 0.0))


def entropy(values: Values) -> Range:
    """The best of some ranges that shrink towards the percentiles of both ends."""
    whole = minmax(values)
    if whole.low == whole.high:
        return whole
    counts, edges = np.histogram(values, _BINS, (whole.low, whole.high))
    best, least = whole, _divergence(counts, edges, whole)
    for share in np.linspace(0.3, 0.975, _CANDIDATES):
        candidate = Range(whole.low * float(share), whole.high * float(share))
        found = _divergence(counts, edges, candidate)
        if found < least:
            best, least = candidate, found
    return best


def _divergence(counts: npt.NDArray[np.int64], edges: Values, span: Range) -> float:
    """KL(true histogram | histogram after clipping and rounding to 256 codes)."""
    middles = (edges[1:] + edges[:-1]) / 2
    codes = np.clip(np.rint(middles / span.scale) + span.zero, 0, LEVELS).astype(int)
    total = np.bincount(codes, counts, LEVELS + 1)
    # Each code's count is spread over the bins that it stands for, those outside included.
    sharers = np.bincount(codes, counts > 0, LEVELS + 1)
    spread = np.where(counts > 0, total[codes] / np.maximum(sharers[codes], 1), 0)
    true = counts / counts.sum()
    guess = spread / spread.sum()
    there = true > 0
    return float(np.sum(true[there] * np.log(true[there] / guess[there])))


METHODS: Final[Mapping[str, Callable[[Values], Range]]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
}


def smoothing(
    samples: Sequence[Values], weight: npt.NDArray[np.float32], exponent: float
) -> npt.NDArray[np.float32]:
    """SmoothQuant's factors [K]: max|x_k|^e / max|w_k|^(1 - e); x is divided, w multiplied by them.

    Large columns of the activations move into the weight (Xiao et al. 2022).
    """
    reach = np.max([np.abs(x).reshape(-1, x.shape[-1]).max(axis=0) for x in samples], axis=0)
    rows = np.abs(weight).max(axis=1)
    factors = np.maximum(reach, 1e-5) ** exponent / np.maximum(rows, 1e-5) ** (1 - exponent)
    factors = np.where((reach > 0) & (rows > 0), factors, 1.0)
    return np.asarray(np.clip(factors, 1e-4, 1e4), np.float32)
