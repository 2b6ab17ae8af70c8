"""What is added to the scores, read as attributes: causal, sliding window, ALiBi slopes.

The sum is evaluated at sampled positions p (near ones, and around every whole number that occurs
in its expression, where a window may end), fitted, and verified on positions not used for the fit:

    bias[h, a, b] = -inf                                  p_b > p_a  or  p_b <= p_a - window
    bias[h, a, b] = bias[h, a, a] + slope[h] (p_b - p_a)      else

A constant in a row changes no softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import tirx

from graphc.passes.decoder.probe import Probe
from graphc.passes.decoder.specialise import NotADecoder
from graphc.passes.evaluate import Array
from graphc.passes.graph import Graph
from graphc.passes.node import Node

_SWALLOWS = -9e3
"""exp(score + this) is 0 in float32 for scores below 8,900: old exporters mask with -1e4."""
_NEAR = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33)
_READ_AT_MOST = 64
_EPSILON = 1e-5


@dataclass(frozen=True)
class Bias:
    """Something added to scores of `shape` [.., s, s] with a factor."""

    node: Node
    shape: tuple[int | tirx.PrimExpr, ...]
    factor: float = 1.0


@dataclass(frozen=True)
class Mask:
    """window 0 is none; slopes [heads] is None without ALiBi."""

    window: int = 0
    slopes: Array | None = None


class NotCausal(NotADecoder):
    """A query sees what comes after it."""


def fit(
    graph: Graph, length: tirx.Var, biases: Sequence[Bias], heads: int, limit: int | None
) -> Mask:
    """The attributes; raises NotADecoder, naming the value, if they do not describe the biases."""
    if not biases:
        raise NotCausal("its queries see all keys: there is no mask")
    names = ", ".join(bias.node.name for bias in biases)
    positions = _samples(biases, limit)
    values = _total(graph, length, biases, positions)
    mask = _fitted(names, values, positions, heads)
    shifted = sorted({p + 6 for p in positions[: len(positions) // 2] if _below(p + 6, limit)})
    for other in (shifted, list(range(min(20, limit or 20)))):
        if other and not _describes(mask, _total(graph, length, biases, other), other, heads):
            raise NotADecoder(f"the bias {names} is not a mask by distance with slopes")
    return mask


def _below(position: int, limit: int | None) -> bool:
    return limit is None or position < limit


def _samples(biases: Sequence[Bias], limit: int | None) -> list[int]:
    """Near positions and those around whole numbers in the expressions."""
    numbers = set[int]()
    seen: set[Node] = set()
    stack = [bias.node for bias in biases]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        stack.extend(node.inputs)
        if node.op == "const":
            array = np.asarray(node.expr.value.numpy())
            if array.size <= _READ_AT_MOST:
                flat = array.astype(np.float64).reshape(-1)
                whole = flat[np.isfinite(flat) & (np.abs(flat) < 1 << 24)]
                numbers |= {abs(int(value)) for value in whole if value == int(value)}
    far = {number + offset for number in numbers for offset in (-2, -1, 0, 1, 2, 5)}
    far |= {2 * number + 3 for number in numbers}
    return sorted(p for p in {*_NEAR, *far} if p >= 0 and _below(p, limit))[:400]


def _total(
    graph: Graph, length: tirx.Var, biases: Sequence[Bias], positions: Sequence[int]
) -> Array:
    """The sum [heads | 1, n, n] in float64."""
    probe, n = Probe(graph, length), len(positions)
    total: Array = np.zeros((1, n, n))
    for bias in biases:
        value = probe.at(bias.node, positions).astype(np.float64) * bias.factor
        lead = [extent for extent in bias.shape[:-2] if isinstance(extent, int)]
        wide = np.broadcast_to(value, (*_lead(value, lead), n, n))
        total = total + wide.reshape(-1, n, n)
    return total


def _lead(value: Array, lead: Sequence[int]) -> list[int]:
    """The leading extents to broadcast to: 1 where the heads share a bias."""
    own = [1] * (len(lead) + 2 - value.ndim) + list(value.shape[:-2])
    return [1] * len(lead) if all(extent == 1 for extent in own) else list(lead)


def _fitted(names: str, values: Array, positions: Sequence[int], heads: int) -> Mask:
    p = np.asarray(positions)
    seen = values > _SWALLOWS
    later = p[None, :] > p[:, None]
    if (seen & later).any():
        _, a, b = np.argwhere(seen & later)[0]
        raise NotCausal(f"with {names} the query at {p[a]} sees the key at {p[b]}")
    if not seen[:, np.arange(len(p)), np.arange(len(p))].all():
        raise NotADecoder(f"with {names} a query does not see its own position")
    distance = p[:, None] - p[None, :]
    hidden = ~seen.all(0) & ~later
    window = int(distance[hidden].min()) if hidden.any() else 0
    if window and window - 1 not in distance:
        raise NotADecoder(f"the window of {names} ends between sampled positions")
    own = values[:, np.arange(len(p)), np.arange(len(p))]
    slopes = _slopes(np.where(seen & ~later, values - own[:, :, None], 0.0), distance)
    mask = Mask(window, None if slopes is None else np.broadcast_to(slopes, heads).copy())
    if not _describes(mask, values, positions, heads):
        raise NotADecoder(f"the bias {names} is not a mask by distance with slopes")
    return mask


def _slopes(relative: Array, distance: Array) -> Array | None:
    """[heads] from the pair that is farthest apart, None where nothing is added."""
    if np.abs(relative).max() < _EPSILON:
        return None
    far = np.where(np.abs(relative).max(0) > 0, distance, 0)
    a, b = np.unravel_index(int(far.argmax()), far.shape)
    return np.asarray(-relative[:, a, b] / far[a, b])


def _describes(mask: Mask, values: Array, positions: Sequence[int], heads: int) -> bool:
    p = np.asarray(positions)
    distance = p[:, None] - p[None, :]
    seen = distance >= 0
    if mask.window:
        seen &= distance < mask.window
    if not ((values > _SWALLOWS) == seen).all():
        return False
    own = values[:, np.arange(len(p)), np.arange(len(p))]
    relative = np.where(seen, values - own[:, :, None], 0.0)
    slopes = np.zeros(heads) if mask.slopes is None else mask.slopes
    wanted = np.where(seen, -slopes[:, None, None] * distance, 0.0)
    error = np.abs(relative - wanted)
    return bool((error <= _EPSILON * (1 + np.abs(values.clip(_SWALLOWS)) + np.abs(wanted))).all())
