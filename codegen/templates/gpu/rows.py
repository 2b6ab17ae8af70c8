"""Softmax, layer and RMS norm on devices: a work-group for each row, joined in shared memory.

Each thread strides over the row; partial results meet in a tree of log2(threads) steps.
The equations are those of the CPU templates (softmax.py, normalization.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates.gpu import threads
from graphc.codegen.templates.normalization import arguments_types, is_row_norm
from graphc.targets.target import Target

VERSION = 1
_THREADS = 64  # rows of transformers have some hundred elements: a few for each thread


def build_softmax(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """relax.nn.softmax(x) over the last axis in float32."""
    source = arguments[0].ty
    if str(source.dtype) != "float32" or int(attrs.axis) not in (-1, source.ndim - 1):
        return None
    params = tir.fresh_buffers([source, result], ["x", "y"])
    *lead, width = params[0].shape
    rows = tir.product(lead)
    with tir.function("softmax", params, f"gpu softmax/{VERSION}") as build:
        x, y = (tir.view(p, [rows, width]) for p in params)
        with _Row(rows, width, target) as row:
            peak = row.reduce(lambda at: tir.load(x, [row.index, at]), tirx.max, float("-inf"))
            total = row.reduce(lambda at: tirx.exp(tir.load(x, [row.index, at]) - peak), _plus, 0.0)

            def write(at: Any) -> None:
                power = tirx.exp(tir.load(x, [row.index, at]) - peak)
                tir.store(y, [row.index, at], power / total)

            row.each(write)
    return build.get()


def build_layer_norm(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """relax.nn.layer_norm(x, gamma, beta) over the last axis in float32."""
    axes = [int(a) for a in attrs.axes]
    if not is_row_norm(arguments[:3], axes) or not (bool(attrs.center) and bool(attrs.scale)):
        return None
    names = ["x", "gamma", "beta", "y"]
    return _norm(arguments[:3], names, attrs, result, target, centred=True)


def build_rms_norm(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """relax.nn.rms_norm(x, gamma) over the last axis in float32."""
    if not is_row_norm(arguments[:2], [int(a) for a in attrs.axes]):
        return None
    return _norm(arguments[:2], ["x", "gamma", "y"], attrs, result, target, centred=False)


def _norm(
    arguments: Sequence[Any],
    names: list[str],
    attrs: Any,
    result: Any,
    target: Target,
    *,
    centred: bool,
) -> tirx.PrimFunc | None:
    if str(arguments[0].ty.dtype) != "float32":
        return None
    params = tir.fresh_buffers([*arguments_types(arguments), result], names)
    *lead, width = params[0].shape
    rows = tir.product(lead)
    name = "layer_norm" if centred else "rms_norm"
    with tir.function(name, params, f"gpu {name}/{VERSION}") as build:
        x, y = tir.view(params[0], [rows, width]), tir.view(params[-1], [rows, width])
        inverse = tir.f32(1.0) / tirx.Cast("float32", width)
        with _Row(rows, width, target) as row:
            mean: Any = tir.f32(0.0)
            if centred:
                total = row.reduce(lambda at: tir.load(x, [row.index, at]), _plus, 0.0)
                mean = threads.bind(total * inverse)

            def squared(at: Any) -> Any:
                deviation = tir.load(x, [row.index, at]) - mean
                return deviation * deviation

            variance = row.reduce(squared, _plus, 0.0) * inverse
            epsilon = tir.f32(float(attrs.epsilon))
            scale = threads.bind(tir.f32(1.0) / tirx.sqrt(variance + epsilon))

            def write(at: Any) -> None:
                value = (tir.load(x, [row.index, at]) - mean) * scale
                value = value * tir.load(params[1], [at])
                if centred:
                    value = value + tir.load(params[2], [at])
                tir.store(y, [row.index, at], value)

            row.each(write)
    return build.get()


def _plus(a: Any, b: Any) -> Any:
    return a + b


class _Row:
    """A work-group that holds one row: `index` is which."""

    def __init__(self, rows: Any, width: Any, target: Target) -> None:
        assert target.device is not None
        self.width, self.threads = width, min(_THREADS, target.device.max_threads)
        self._loops = (threads.group(rows), threads.thread(self.threads))

    def __enter__(self) -> _Row:
        self.index, self.lane = (loop.__enter__() for loop in self._loops)
        return self

    def __exit__(self, *details: Any) -> None:
        for loop in reversed(self._loops):
            loop.__exit__(*details)

    def each(self, body: Callable[[Any], None]) -> None:
        """`body` for every place of the row, divided among the threads."""
        step = tir.const(self.threads)
        with tir.serial((self.width + step - tir.const(1)) // step) as part:
            at = part * step + self.lane
            with tir.when(at < self.width), tir.then():
                body(at)

    def reduce(
        self, term: Callable[[Any], Any], combine: Callable[[Any, Any], Any], first: float
    ) -> Any:
        """All terms of the row joined, known to every thread."""
        own = threads.private([1])
        zero = [tir.const(0)]
        tir.store(own, zero, tir.f32(first))
        self.each(lambda at: tir.store(own, zero, combine(tir.load(own, zero), term(at))))
        meeting = threads.shared([self.threads])
        tir.store(meeting, [self.lane], tir.load(own, zero))
        count = self.threads
        while count > 1:
            count //= 2
            with tir.when(self.lane < tir.const(count)), tir.then():
                other = tir.load(meeting, [self.lane + tir.const(count)])
                tir.store(meeting, [self.lane], combine(tir.load(meeting, [self.lane]), other))
        return threads.bind(tir.load(meeting, zero))
