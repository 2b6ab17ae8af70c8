"""Finds the attentions of a causal language model with batch 1, in every spelling.

    softmax(c tanh(s q k^T / c) + bias) v
        ----->   Site(q [s, h, d], k [s, hk, d], v [s, hk, dv], scale, softcap, biases)

From the composite that `recognise_attention` made, or from the product of a softmax with the
values: scale, soft cap, biases, casts and reshapes are peeled off the scores, a sink (one more
score that no value belongs to) off the softmax.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax, tirx

from graphc.passes.attention import COMPOSITE
from graphc.passes.cancel_arithmetic import uniform
from graphc.passes.cancel_layout import permute_to, reshape_to
from graphc.passes.decoder.mask import Bias
from graphc.passes.decoder.specialise import NotADecoder
from graphc.passes.graph import Graph
from graphc.passes.node import Node


@dataclass(frozen=True)
class Site:
    """One attention: `node` is its result, [.., s, dv] of a product, [b, s, h, dv] of a composite.

    `sinks` is a value [.., s | 1, 1], one for each head.
    """

    node: Node
    q: Node
    k: Node
    v: Node
    scale: float
    biases: tuple[Bias, ...]
    softcap: float = 0.0
    sinks: Node | None = None


class Unrecognised(NotADecoder):
    """A softmax over pairs of tokens that is not attention as it is known here."""


def sites(graph: Graph, length: tirx.Var, tokens: Collection[Node]) -> dict[Node, Site]:
    """Every attention over the tokens, by the node of its result."""
    found: dict[Node, Site] = {}
    for node in graph.walk():
        site = None
        if node.op == "call":
            site = _composite(graph, node, length)
        elif node.op == "matmul" and node in tokens:
            site = _Peeler(graph, node, length, tokens).site()
        if site is not None:
            found[site.node] = site
    return found


def _composite(graph: Graph, node: Node, length: tirx.Var) -> Site | None:
    """From the composite operator, in which tokens are the second axis."""
    attrs = graph.callee(node).attrs
    if str(attrs.get("Composite", "")) != COMPOSITE:
        return None
    q, k, v, *more = node.inputs
    same = graph.shapes.same
    if not same(q.shape[1], length) or not same(k.shape[1], length):
        return None
    scores = (q.shape[0], q.shape[2], length, length)
    biases = tuple(Bias(bias, scores) for bias in more)
    q, k, v = (_heads_second(graph, value) for value in (q, k, v))
    return Site(node, q, k, v, float(attrs["scale"]), biases)


def _heads_second(graph: Graph, value: Node) -> Node:
    """[b, s, h, d] to [s, b * h, d]."""
    batch, length, heads, depth = value.shape
    if batch != 1:
        value = permute_to(graph, value, (1, 0, 2, 3))
    return reshape_to(graph, value, (length, graph.shapes.product((batch, heads)), depth))


@dataclass(frozen=True)
class _Scores:
    product: Node
    scale: float
    softcap: float
    biases: tuple[Bias, ...]


class _Peeler:
    """Takes one product of weights with values apart."""

    def __init__(
        self, graph: Graph, node: Node, length: tirx.Var, tokens: Collection[Node]
    ) -> None:
        self.graph, self.node, self.length, self.tokens = graph, node, length, tokens

    def site(self) -> Site | None:
        softmax, sinks, top = self._softmax(self.node.inputs[0])
        if softmax is None or top is None or not self._pairs(top):
            return None
        scores = self._scores(top)
        left, right = scores.product.inputs
        if (
            not self._is(left, -2)
            or not self._is(right, -1)
            or not self._is(self.node.inputs[1], -2)
        ):
            raise Unrecognised(
                f"the scores of {softmax.name} are no product of queries with keys: "
                f"{scores.product.name} multiplies {left.name} and {right.name}"
            )
        keys = permute_to(
            self.graph, right, [*range(right.rank - 2), right.rank - 1, right.rank - 2]
        )
        q, k, v = (self._operand(x) for x in (left, keys, self.node.inputs[1]))
        for product, heads in ((scores.product, keys), (self.node, self.node.inputs[1])):
            if not _serves_in_order(product, heads) or q.shape[1] != _heads(scores.product):
                raise Unrecognised(f"{product.name} pairs heads in another order")
        return Site(self.node, q, k, v, scores.scale, scores.biases, scores.softcap, sinks)

    def _is(self, node: Node, axis: int) -> bool:
        return node.rank >= 2 and self.graph.shapes.same(node.shape[axis], self.length)

    def _pairs(self, node: Node) -> bool:
        return self._is(node, -1) and self._is(node, -2)

    def _operand(self, node: Node) -> Node:
        """[.., s, d] to [s, h, d]."""
        *_, length, depth = node.shape
        heads = _heads(node)
        node = reshape_to(self.graph, node, (heads, length, depth))
        return permute_to(self.graph, node, (1, 0, 2))

    # From the weights to the softmax

    def _softmax(self, node: Node) -> tuple[Node | None, Node | None, Node | None]:
        """The softmax, its sink and the scores; None where there is no softmax."""
        while node.op != "nn.softmax":
            if node.op in ("astype", "reshape") and self._pairs(node.inputs[0]):
                node = node.inputs[0]
            elif node.op == "where" and self._is_guard(node):
                node = node.inputs[2]
            elif node.op == "strided_slice" and node.inputs[0].op in ("nn.softmax", "astype"):
                return self._with_sink(node)
            else:
                return None, None, None
        last = int(node.attrs.axis) % node.rank == node.rank - 1
        return (node, None, node.inputs[0]) if last else (None, None, None)

    def _is_guard(self, node: Node) -> bool:
        condition, zero, value = node.inputs
        is_nan = condition.op == "isnan" and condition.inputs[0] is value
        return is_nan and uniform(self.graph, zero) == 0

    def _with_sink(self, cut: Node) -> tuple[Node | None, Node | None, Node | None]:
        """softmax([scores, sink])[:, :-1], perhaps less its largest score first."""
        softmax = cut.inputs[0].inputs[0] if cut.inputs[0].op == "astype" else cut.inputs[0]
        if softmax.op != "nn.softmax":
            return None, None, None
        inside = softmax.inputs[0]
        if inside.op == "subtract" and inside.inputs[1].op == "max":
            inside = inside.inputs[0]
        if inside.op == "astype":
            inside = inside.inputs[0]
        if inside.op != "concat" or len(inside.inputs) != 2:
            return None, None, None
        scores, sink = inside.inputs
        if not self._pairs(scores) or sink.shape[-1] != 1 or sink in self.tokens:
            return None, None, None
        return softmax, sink, scores

    # From the softmax to the product of queries and keys

    def _scores(self, node: Node) -> _Scores:
        scale, softcap = 1.0, 0.0
        biases: list[Bias] = []
        while node.op != "matmul":
            number = self._factor(node)
            if number is not None:
                node, factor = number
                scale *= factor
            elif node.op == "astype" or (node.op == "reshape" and self._pairs(node.inputs[0])):
                node = node.inputs[0]
            elif node.op == "tanh" and not softcap:
                softcap, scale, node = scale, scale, node.inputs[0]
            elif softcap == 0 and node.op in ("add", "where"):
                node, bias = self._bias(node)
                biases.append(replace(bias, factor=scale))
            else:
                raise Unrecognised(f"the scores come from {node.op} at {node.name}")
        return _Scores(node, scale, softcap, tuple(biases))

    def _factor(self, node: Node) -> tuple[Node, float] | None:
        if node.op not in ("multiply", "divide"):
            return None
        pairs = [node.inputs, node.inputs[::-1]] if node.op == "multiply" else [node.inputs]
        for x, constant in pairs:
            number = self.graph.scalar(constant)
            if number is not None and number != 0 and x in self.tokens:
                return x, (number if node.op == "multiply" else 1 / number)
        return None

    def _bias(self, node: Node) -> tuple[Node, Bias]:
        """What is added by a sum, or by where(mask, scores, -inf), and the scores."""
        operands = node.inputs if node.op == "add" else node.inputs[1:]
        scores = [operand for operand in operands if operand in self.tokens]
        others = [operand for operand in node.inputs if operand not in self.tokens]
        if len(scores) != 1 or len(others) != len(node.inputs) - 1 or not self._pairs(scores[0]):
            raise Unrecognised(f"{node.name} ({node.op}) adds what depends on the tokens' content")
        if node.op == "add":
            return scores[0], Bias(others[0], node.shape)
        return scores[0], Bias(self._filled(node, scores[0]), node.shape)

    def _filled(self, node: Node, scores: Node) -> Node:
        """where(mask, 0, c) for where(mask, scores, c)."""
        condition, yes, no = node.inputs
        zero = self.graph.emit(relax.const(np.zeros((), scores.dtype), scores.dtype))
        branches = [zero if value is scores else value for value in (yes, no)]
        call = relax.op.where(condition.var, *(value.var for value in branches))
        return self.graph.emit(call, f"{node.name}_bias")


def _heads(node: Node) -> int:
    """The product of the leading extents [.., s, d]."""
    heads = 1
    for extent in node.shape[:-2]:
        if not isinstance(extent, int):
            raise Unrecognised(f"{node.name} has {extent} heads")
        heads *= extent
    return heads


def _serves_in_order(product: Node, keys: Node) -> bool:
    """Whether key head n serves query heads n * times .. (n + 1) * times - 1."""
    lead = (1,) * (product.rank - keys.rank) + keys.shape[:-2]
    pairs = [pair for pair in zip(product.shape[:-2], lead, strict=True) if pair[0] != 1]
    shared = [key == 1 for _, key in pairs]
    return shared == sorted(shared)


def head_sinks(site: Site, values: Any) -> np.ndarray:
    """[h] from the values of a sink at some positions, which must be the same at all."""
    heads = np.asarray(values, np.float32).reshape(-1, values.shape[-2])
    if not (heads == heads[:, :1]).all():
        raise Unrecognised(f"the sink of {site.node.name} depends on positions")
    return heads[:, 0]
