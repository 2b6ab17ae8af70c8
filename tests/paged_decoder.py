"""A tiny language model over pages, written directly in Relax, and its full forward in NumPy.

Two layers of attention and an MLP with RMS norms, learned positions, random weights. The variants
are what the kernels distinguish: groups of query heads, windows, soft caps, sinks, ALiBi slopes,
and one cache that is keys and values at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tvm import relax, tirx

from graphc import artifact
from graphc.codegen import host, link
from graphc.codegen.build import build
from graphc.codegen.schedule import schedule
from graphc.ir import CacheInfo, DecoderInfo, Dim, Model, Port, Signature
from graphc.passes import paged
from graphc.passes.layout import layout
from graphc.passes.lower import lower
from graphc.passes.place_caches import place_caches
from graphc.targets import load as targets

op = relax.op
Array = np.ndarray[Any, Any]
SCALE = 0.35


@dataclass(frozen=True)
class Shape:
    """Sizes, and what the attention does."""

    vocabulary: int = 61
    hidden: int = 32
    layers: int = 2
    heads: int = 4
    groups: int = 2
    depth: int = 8
    context: int = 600
    window: int = 0
    softcap: float = 0.0
    slopes: bool = False
    sinks: bool = False
    shared: bool = False
    ragged: bool = True

    @property
    def attention(self) -> paged.PagedAttention:
        return paged.PagedAttention(
            SCALE, self.depth, self.window, self.softcap, self.slopes, self.sinks
        )


SMALL = Shape()


def weights(shape: Shape) -> dict[str, Array]:
    random = np.random.default_rng(11)

    def draw(*extents: int) -> Array:
        return (random.standard_normal(extents) / np.sqrt(extents[0])).astype("float32")

    made = {
        "embedding": random.standard_normal((shape.vocabulary, shape.hidden)).astype("float32"),
        "position": random.standard_normal((shape.context, shape.hidden)).astype("float32"),
        "norm": 1 + draw(shape.hidden),
        "head": 2 * draw(shape.hidden, shape.vocabulary),
    }
    for i in range(shape.layers):
        made |= {
            f"{i}.norm1": 1 + draw(shape.hidden),
            f"{i}.norm2": 1 + draw(shape.hidden),
            f"{i}.q": 2 * draw(shape.hidden, shape.heads * shape.depth),
            f"{i}.k": 2 * draw(shape.hidden, shape.groups * shape.depth),
            f"{i}.v": draw(shape.hidden, shape.groups * shape.depth),
            f"{i}.o": draw(shape.heads * shape.depth, shape.hidden),
            f"{i}.up": draw(shape.hidden, 2 * shape.hidden),
            f"{i}.down": draw(2 * shape.hidden, shape.hidden),
            f"{i}.slopes": abs(draw(shape.heads)) / 8,
            f"{i}.sinks": draw(shape.heads),
        }
    return made


def forward(shape: Shape, tokens: Sequence[int]) -> Array:
    """Logits [t, vocabulary] in float64, without any cache."""
    w = {name: value.astype("float64") for name, value in weights(shape).items()}
    count = len(tokens)
    x = w["embedding"][list(tokens)] + w["position"][:count]
    for i in range(shape.layers):
        y = _norm(x) * w[f"{i}.norm1"]
        x = x + _attention(shape, w, i, y).reshape(count, -1) @ w[f"{i}.o"]
        y = (_norm(x) * w[f"{i}.norm2"]) @ w[f"{i}.up"]
        x = x + np.maximum(y, 0) @ w[f"{i}.down"]
    return (_norm(x) * w["norm"]) @ w["head"]


def _attention(shape: Shape, w: dict[str, Array], i: int, y: Array) -> Array:
    count, each = len(y), shape.heads // shape.groups
    behind = np.arange(count)[None] - np.arange(count)[:, None]
    seen = (behind <= 0) & (behind > -shape.window if shape.window else True)
    q = (y @ w[f"{i}.q"]).reshape(count, shape.heads, shape.depth)
    k = (y @ w[f"{i}.k"]).reshape(count, shape.groups, shape.depth).repeat(each, 1)
    v = (y @ w[f"{i}.v"]).reshape(count, shape.groups, shape.depth).repeat(each, 1)
    scores = SCALE * np.einsum("thd,jhd->htj", q, k)
    if shape.softcap:
        scores = shape.softcap * np.tanh(scores / shape.softcap)
    if shape.slopes:
        scores = scores + w[f"{i}.slopes"][:, None, None] * behind
    scores = np.where(seen, scores, -np.inf)
    if shape.sinks:
        sinks = np.broadcast_to(w[f"{i}.sinks"][:, None, None], (shape.heads, count, 1))
        scores = np.concatenate([scores, sinks], axis=2)
    scores = np.exp(scores - scores.max(2, keepdims=True))
    scores = (scores / scores.sum(2, keepdims=True))[..., :count]
    return np.einsum("htj,jhd->thd", scores, k if shape.shared else v)


def _norm(x: Array) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def model(shape: Shape) -> Model:
    """The step of the model, as the pass that derives it from a graph would leave it."""
    return _Step(shape).model()


class _Step:
    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.builder = relax.BlockBuilder()
        names = ("tokens", "rows", "sequences", "pages_each", "pages")
        self.dims = {name: tirx.Var(name, "int64") for name in names}

    def model(self) -> Model:
        shape, d = self.shape, self.dims
        each = 1 if shape.shared else 2
        caches = [
            CacheInfo(f"cache.{i}", shape.groups, shape.depth) for i in range(each * shape.layers)
        ]
        ports = [
            Port("tokens", "int32", (d["tokens"],), (0, shape.vocabulary - 1)),
            Port("positions", "int32", (d["tokens"],)),
            Port("rows", "int32", (d["rows"],)),
            Port("slots", "int32", (d["tokens"],)),
            Port("query_starts", "int32", (d["sequences"] + 1,)),
            Port("lengths", "int32", (d["sequences"],)),
            Port("page_table", "int32", (d["sequences"], d["pages_each"])),
        ]
        ports += [
            Port(c.name, c.dtype, (d["pages"], paged.PAGE_SIZE, c.heads, c.width)) for c in caches
        ]
        values = weights(shape)
        inputs = [relax.Var(p.name, relax.TensorType(list(p.shape), p.dtype)) for p in ports]
        params = {
            name: relax.Var(name, relax.TensorType(value.shape, "float32"))
            for name, value in values.items()
        }
        attrs = {"num_input": len(inputs)}
        with self.builder.function("step", [*inputs, *params.values()], attrs=attrs):
            with self.builder.dataflow():
                logits = self._logits(inputs, params)
                result = self.builder.emit_output(relax.Tuple([logits]))
            self.builder.emit_func_output(result)
        signature = Signature(
            tuple(ports),
            (Port("logits", "float32", (d["rows"], shape.vocabulary)),),
            tuple(Dim(name) for name in d),
        )
        decoder = DecoderInfo(tuple(caches), shape.vocabulary, shape.context, ragged=shape.ragged)
        return Model(self.builder.get(), values, {"step": signature}, decoder=decoder)

    def _logits(self, inputs: list[Any], w: dict[str, Any]) -> Any:
        shape, emit = self.shape, self.builder.emit
        tokens, positions, rows = inputs[:3]
        x = emit(op.take(w["embedding"], tokens, axis=0))
        x = emit(op.add(x, emit(op.take(w["position"], positions, axis=0))))
        for i in range(shape.layers):
            seen = self._attention(i, self._rms(x, w[f"{i}.norm1"]), inputs, w)
            x = emit(op.add(x, emit(op.matmul(seen, w[f"{i}.o"]))))
            y = emit(op.matmul(self._rms(x, w[f"{i}.norm2"]), w[f"{i}.up"]))
            x = emit(op.add(x, emit(op.matmul(emit(op.nn.relu(y)), w[f"{i}.down"]))))
        x = self._rms(emit(op.take(x, rows, axis=0)), w["norm"])
        return emit(op.matmul(x, w["head"]))

    def _attention(self, i: int, y: Any, inputs: list[Any], w: dict[str, Any]) -> Any:
        shape, emit, count = self.shape, self.builder.emit, self.dims["tokens"]
        slots, batch, caches = inputs[3], inputs[4:7], inputs[7:]
        q, k, v = (
            emit(op.reshape(emit(op.matmul(y, w[f"{i}.{name}"])), (count, heads, shape.depth)))
            for name, heads in zip("qkv", (shape.heads, shape.groups, shape.groups), strict=True)
        )
        if shape.shared:
            keys = values = self._append(caches[i], k, slots)
        else:
            keys = self._append(caches[2 * i], k, slots)
            values = self._append(caches[2 * i + 1], v, slots)
        more = [w[f"{i}.slopes"]] * shape.slopes + [w[f"{i}.sinks"]] * shape.sinks
        extents = [shape.groups, shape.depth]
        function = paged.attention_function(
            shape.attention, shape.heads, extents, extents, "float32"
        )
        gvar = self.builder.add_func(function, "paged_attention")
        seen = emit(relax.Call(gvar, [q, keys, values, *batch, *more]))
        return emit(op.reshape(seen, (count, shape.heads * shape.depth)))

    def _rms(self, x: Any, weight: Any) -> Any:
        return self.builder.emit(op.nn.rms_norm(x, weight, axes=[-1], epsilon=1e-5))

    def _append(self, cache: Any, value: Any, slots: Any) -> Any:
        function = paged.append_function(self.shape.groups, self.shape.depth)
        gvar = self.builder.add_func(function, "cache_append")
        return self.builder.emit(relax.Call(gvar, [cache, value, slots]))


def compile_to(place: Path, shape: Shape = SMALL, cache_dtype: str = "f32") -> Path:
    """The artifact of the model, through the stages that every model passes."""
    device = targets.get("host")
    placed = place_caches(model(shape), device, cache_dtype)
    lowered = schedule(lower(layout(placed, device), device), device)
    built = build(lowered, device)
    triple = f"{device.link.triple}.{device.link.glibc}"
    features = sorted(device.features)
    with artifact.publish(place) as draft:
        table = draft.write_weights(built.weights)
        program = host.print_program(built.plans, table, features, decoder=lowered.decoder)
        link.build(program, built.objects, draft.path, triple=triple)
        draft.write_manifest(
            artifact.Manifest(
                target=artifact.TargetInfo(device.name, device.machine, triple, tuple(features)),
                functions=tuple(host.describe(plan) for plan in built.plans),
                weights=table,
                kernels=built.kernels,
                source="hand-made",
                llm=host.describe_decoder(lowered.decoder, cache_dtype),
            )
        )
    return place
