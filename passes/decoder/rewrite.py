"""Writes the function `step`: new tokens of several sequences, their pages in, logits of rows out.

Up to the last attention every value has one row for each new token; what comes after it is
computed for the rows that want logits only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from graphc.ir import CacheInfo, DecoderInfo, Dim, Model, Port, Signature
from graphc.passes import paged
from graphc.passes.decoder.cut import Kept
from graphc.passes.decoder.lane import Lane
from graphc.passes.decoder.mask import Mask
from graphc.passes.decoder.positions import position_rule
from graphc.passes.decoder.recognise import Site
from graphc.passes.decoder.replay import Replay, Rule
from graphc.passes.graph import Graph
from graphc.passes.node import Node

STEP = "step"


@dataclass(frozen=True)
class Attention:
    """A recognised attention and everything that is known of it."""

    site: Site
    mask: Mask
    keys: Kept
    values: Kept
    sinks: Node | None = None
    slopes: Node | None = None


class Step:
    """Assembles the function from the graph of the whole sequence."""

    def __init__(
        self,
        graph: Graph,
        length: tirx.Var,
        attentions: Mapping[Node, Attention],
        lanes: Mapping[Node, Lane | None],
    ) -> None:
        self.graph, self.length = graph, length
        self.attentions, self.lanes = attentions, lanes
        self.caches: list[CacheInfo] = []
        self._places: dict[Node, int] = {}
        self._appended: dict[int, Any] = {}
        for attention in attentions.values():
            self._cache(attention.keys)
            self._cache(attention.values)
        names = ("new_tokens", "logit_rows", "sequences", "pages_each", "pages")
        self._dims = {name: tirx.Var(name, "int64") for name in names}

    def _cache(self, kept: Kept) -> None:
        """One cache for each value that is kept, however many attentions read it."""
        if kept.value not in self._places:
            self._places[kept.value] = len(self.caches)
            name = f"cache.{len(self.caches)}"
            self.caches.append(CacheInfo(name, kept.heads, kept.width, kept.value.dtype))

    # Order

    def _needs(self, node: Node) -> Sequence[Node]:
        attention = self.attentions.get(node)
        if attention is None:
            return node.inputs
        more = [value for value in (attention.slopes, attention.sinks) if value is not None]
        return [attention.site.q, attention.keys.value, attention.values.value, *more]

    def reached(self, ends: Sequence[Node]) -> list[Node]:
        """Everything that is computed for some values, inputs of a node before it."""
        done: dict[Node, None] = {}
        stack = [(node, False) for node in reversed(ends)]
        while stack:
            node, is_ready = stack.pop()
            if node in done:
                continue
            if is_ready:
                done[node] = None
                continue
            stack.append((node, True))
            stack.extend((source, False) for source in self._needs(node) if source not in done)
        return list(done)

    # Building

    def model(self, info: DecoderInfo) -> Model:
        """The Model of `step` alone."""
        graph = self.graph
        (logits,) = graph.outputs
        nodes = self.reached([logits])
        ports, variables = self._inputs()
        params = [node for node in nodes if node.op == "param"]
        builder = relax.BlockBuilder()
        attrs = {"num_input": len(ports)}
        with builder.function(STEP, [*variables.values(), *(p.var for p in params)], attrs=attrs):
            with builder.dataflow():
                result = self._body(builder, variables, nodes, logits)
                result = builder.emit_output(relax.Tuple([result]))
            builder.emit_func_output(result)
        function = builder.get()[STEP]
        var = tvm.ir.GlobalVar(STEP)
        relax.expr._update_type(var, function.ty)
        mod = tvm.IRModule({**self._callees(function), var: function}, graph.model.mod.attrs)
        output = Port("logits", "float32", (self._dims["logit_rows"], info.vocabulary))
        dims = tuple(Dim(name) for name in self._dims)
        used = [param.name for param in params]
        return dataclasses.replace(
            graph.model,
            mod=mod,
            params=graph.params.only(used),
            quantized={name: graph.quantized[name] for name in used if name in graph.quantized},
            signatures={STEP: Signature(tuple(ports), (output,), dims)},
            decoder=info,
        )

    def _inputs(self) -> tuple[list[Port], dict[str, Any]]:
        t, r, s, each, pages = self._dims.values()
        token = self.graph.model.signatures["main"].inputs[0]
        shapes: dict[str, tuple[Any, ...]] = {
            "tokens": (t,),
            "positions": (t,),
            "rows": (r,),
            "slots": (t,),
            "query_starts": (s + 1,),
            "lengths": (s,),
            "page_table": (s, each),
        }
        ports = [
            Port(name, "int32", shape, token.value_range if name == "tokens" else None)
            for name, shape in shapes.items()
        ]
        for cache in self.caches:
            shape = (pages, paged.PAGE_SIZE, cache.heads, cache.width)
            ports.append(Port(cache.name, cache.dtype, shape))
        types = {port.name: relax.TensorType(port.shape, port.dtype) for port in ports}
        return ports, {name: relax.Var(name, ty) for name, ty in types.items()}

    def _body(
        self,
        builder: relax.BlockBuilder,
        inputs: Mapping[str, Any],
        nodes: Sequence[Node],
        logits: Node,
    ) -> Any:
        body = Replay(builder, {self.length: self._dims["new_tokens"]})
        tail = Replay(builder, {self.length: self._dims["logit_rows"]})
        early = self._early(nodes)
        positions = position_rule(self.graph, self.length, inputs["positions"])
        rules: list[Rule] = [self._attention_rule(inputs), positions]
        for node in nodes:
            if node.op == "input":
                given = builder.emit(relax.op.astype(inputs["tokens"], node.dtype))
                body.values[node] = builder.emit(relax.op.reshape(given, body.shape(node)))
        body.run([node for node in nodes if node in early], rules)
        for node in nodes:
            if node in early:
                continue
            for source in node.inputs:
                if source not in tail.values:
                    tail.values[source] = self._rows(builder, body, source, inputs["rows"])
            tail.run([node])
        if logits in early:
            tail.values[logits] = self._rows(builder, body, logits, inputs["rows"])
        result = tail.values[logits]
        if str(result.ty.dtype) != "float32":
            result = builder.emit(relax.op.astype(result, "float32"))
        vocabulary = logits.shape[-1]
        return builder.emit(relax.op.reshape(result, (self._dims["logit_rows"], vocabulary)))

    def _early(self, nodes: Sequence[Node]) -> set[Node]:
        """What is computed for every token: all that an attention needs, and what has no row of
        its own for each token where the rows are taken."""
        early: set[Node] = set(self.reached(list(self.attentions)))
        tokens = {node for node in nodes if node.op == "input"}
        for node in nodes:
            if any(source in tokens for source in self._needs(node)):
                tokens.add(node)
        for node in nodes:
            if node not in tokens or (node not in early and not self._has_rows(node, early)):
                early.add(node)
        return early

    def _has_rows(self, node: Node, early: set[Node]) -> bool:
        lanes = [self.lanes.get(source) for source in node.inputs if source in early]
        return all(lane is None or lane.is_plain for lane in lanes)

    def _rows(self, builder: relax.BlockBuilder, body: Replay, node: Node, rows: Any) -> Any:
        """The rows that want logits of a value of all tokens."""
        lane = self.lanes.get(node)
        if lane is None:
            return body.values[node]
        return builder.emit(relax.op.take(body.values[node], rows, axis=lane.axis), node.name)

    def _attention_rule(self, inputs: Mapping[str, Any]) -> Rule:
        def rule(replay: Replay, node: Node) -> Any | None:
            attention = self.attentions.get(node)
            return None if attention is None else self._attention(replay, attention, inputs)

        return rule

    def _attention(self, replay: Replay, attention: Attention, inputs: Mapping[str, Any]) -> Any:
        site, mask = attention.site, attention.mask
        keys, values = (
            self._append(replay, kept, inputs) for kept in (attention.keys, attention.values)
        )
        more = [value for value in (attention.slopes, attention.sinks) if value is not None]
        info = paged.PagedAttention(
            scale=site.scale,
            width=attention.values.width,
            window=mask.window,
            softcap=site.softcap,
            has_slopes=attention.slopes is not None,
            has_sinks=attention.sinks is not None,
        )
        heads = int(site.q.shape[1])
        kept = [(k.heads, k.width) for k in (attention.keys, attention.values)]
        function = paged.attention_function(
            info, heads, kept[0], kept[1], attention.keys.value.dtype
        )
        callee = self.graph.function(function, "paged_attention")
        pages = [inputs[name] for name in ("query_starts", "lengths", "page_table")]
        operands = [replay.values[site.q], keys, values, *pages]
        operands += [replay.values[value] for value in more]
        result = replay.emit(tvm.ir.Call(callee, operands), site.node.name)
        return self._placed(replay, site.node, result, attention.values.width)

    def _append(self, replay: Replay, kept: Kept, inputs: Mapping[str, Any]) -> Any:
        place = self._places[kept.value]
        if place not in self._appended:
            info = self.caches[place]
            function = paged.append_function(info.heads, info.width, info.dtype)
            callee = self.graph.function(function, "cache_append")
            operands = [inputs[info.name], replay.values[kept.value], inputs["slots"]]
            name = info.name.replace(".", "_")
            self._appended[place] = replay.emit(tvm.ir.Call(callee, operands), name)
        return self._appended[place]

    def _placed(self, replay: Replay, node: Node, result: Any, width: int) -> Any:
        """[t, h, dv] in the shape of the node: [b, t, h, dv] of a composite or [.., t, dv]."""
        op, shape = relax.op, replay.shape(node)
        tokens = self._dims["new_tokens"]
        if node.op == "call":
            if shape[0] == 1:
                return replay.emit(op.reshape(result, shape))
            result = replay.emit(op.reshape(result, (tokens, shape[0], shape[2], width)))
            return replay.emit(op.permute_dims(result, [1, 0, 2, 3]))
        result = replay.emit(op.permute_dims(result, [1, 0, 2]))
        return replay.emit(op.reshape(result, shape))

    def _callees(self, function: relax.Function) -> dict[Any, Any]:
        """The functions of the module that are called."""
        known = {**dict(self.graph.model.mod.functions_items()), **self.graph.functions()}
        called: set[str] = set()

        def visit(expr: Any) -> None:
            if isinstance(expr, tvm.ir.GlobalVar):
                called.add(expr.name_hint)

        relax.analysis.post_order_visit(function, visit)
        return {var: body for var, body in known.items() if var.name_hint in called}


def weight(graph: Graph, array: np.ndarray, name: str) -> Node:
    """A new weight of the graph."""
    return graph.constant(np.ascontiguousarray(array, np.float32), name)
