"""Weights of few bits from float ones, in groups along the depth; scales and minima are float16.

asymmetric   w ~ q * scale + minimum    scale = (max - min) / (2^bits - 1), minimum = min
symmetric    w ~ q * scale              the element of largest magnitude becomes -2^(bits - 1)

round-to-nearest   every element by itself
GPTQ               column by column, the error of each put right in those that follow, by the
                   second moments of the inputs (Frantar et al., 2022); columns that matter most
                   come first, groups stay where they are
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from graphc.ir import QuantizedWeight

Floats = npt.NDArray[np.float32]

_DAMPING = 0.01
_PIECE = 128
_SMALLEST = np.float32(6.2e-5)  # below it float16 loses bits


@dataclass(frozen=True)
class Grid:
    """What codes can stand for; scales and minima [K / group, N]."""

    bits: int
    group: int
    scales: Floats
    minima: Floats | None

    @property
    def levels(self) -> tuple[int, int]:
        """The lowest and highest code."""
        if self.minima is None:
            return -(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1
        return 0, (1 << self.bits) - 1

    def codes(self, weight: Floats, groups: npt.NDArray[np.intp]) -> Floats:
        """The nearest codes of rows [k, N] that belong to these groups, as floats."""
        value = weight if self.minima is None else weight - self.minima[groups]
        codes: Floats = np.clip(np.rint(value / self.scales[groups]), *self.levels)
        return codes

    def values(self, codes: Floats, groups: npt.NDArray[np.intp]) -> Floats:
        """What the codes stand for."""
        value = codes * self.scales[groups]
        return value if self.minima is None else value + self.minima[groups]

    def packed(self, codes: Floats, activation: str) -> QuantizedWeight:
        """The weight of all codes [K, N]."""
        kind = np.int8 if self.minima is None else np.uint8
        return QuantizedWeight(
            codes.astype(kind), self.scales, self.minima, self.group, self.bits,
            activation=activation,
        )  # fmt: skip


def grid(weight: Floats, bits: int, group: int, symmetric: bool) -> Grid:
    """The grid of a weight [K, N] that holds all of its elements."""
    groups = weight.reshape(-1, group, weight.shape[1])
    if symmetric:
        at = np.abs(groups).argmax(axis=1)[:, None]
        extreme = np.take_along_axis(groups, at, axis=1)[:, 0]
        scales = _halves(extreme / np.float32(-(1 << (bits - 1))))
        return Grid(bits, group, np.where(scales == 0, np.float32(1), scales), None)
    low, high = groups.min(axis=1), groups.max(axis=1)
    minima = _halves(low)
    scales = _halves((high - minima) / np.float32((1 << bits) - 1))
    return Grid(bits, group, np.where(scales > _SMALLEST, scales, _SMALLEST), minima)


def _halves(values: Floats) -> Floats:
    return values.astype(np.float16).astype(np.float32)


def nearest(weight: Floats, on: Grid) -> Floats:
    """Round-to-nearest: codes [K, N]."""
    groups = np.arange(weight.shape[0]) // on.group
    return on.codes(weight, groups)


def gptq(weight: Floats, on: Grid, moments: npt.NDArray[np.float64]) -> Floats:
    """GPTQ: codes [K, N]; `moments` [K, K] is the sum of x x^T over the inputs."""
    depth = weight.shape[0]
    moments = moments.copy()
    diagonal = np.einsum("ii->i", moments)
    dead = diagonal == 0
    diagonal[dead] = 1
    order = np.argsort(-diagonal, kind="stable")
    diagonal += _DAMPING * diagonal.mean()
    left = np.where(dead[:, None], np.float32(0), weight)[order].astype(np.float64)
    groups = (np.arange(depth) // on.group)[order]
    inverse = np.linalg.inv(moments[np.ix_(order, order)])
    upper = np.linalg.cholesky((inverse + inverse.T) / 2).T
    codes = np.empty(weight.shape, np.float32)
    for begin in range(0, depth, _PIECE):
        end = min(begin + _PIECE, depth)
        errors = np.empty((end - begin, weight.shape[1]))
        for k in range(begin, end):
            row = left[k : k + 1].astype(np.float32)
            codes[order[k]] = on.codes(row, groups[k : k + 1])[0]
            value = on.values(codes[order[k]][None], groups[k : k + 1])[0]
            error = (left[k] - value) / upper[k, k]
            left[k + 1 : end] -= upper[k, k + 1 : end, None] * error
            errors[k - begin] = error
        left[end:] -= upper[begin:end, end:].T @ errors
    return codes
