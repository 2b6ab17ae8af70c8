"""Writes the new tokens' entries into their pages, in place.

    cache [pages, 16, heads, stored]   value [t, heads, width]   slots [t]  ->  the cache itself

    for token in parallel:  page, offset = slots[token] / 16, slots[token] % 16
      for head:  cache[page, head, offset, :] = value[token, head, :]

int8 codes are value / scale, rounded, where scale = max |value| / 127 over the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates.pages import PAGE, Pages, of_cache
from graphc.targets.target import Target

TEMPLATE = "cache_append/1"


def build(
    arguments: Sequence[Any], attrs: Any, result: Any, target: Target
) -> tirx.PrimFunc | None:
    """The composite graphc.cache_append; the attribute `order` says how the cache lies."""
    types = [a.ty for a in arguments]
    pages = of_cache(types[0], str(attrs.get("order", "rows")))
    if pages is None or str(types[1].dtype) != "float32":
        return None
    params = tir.fresh_buffers([*types, result], ["cache", "value", "slots", "out"])
    _, value, slots, out = params
    lanes = target.lanes(32)
    tokens = value.shape[0]
    with tir.function("cache_append", params, TEMPLATE) as build_:
        written = pages.view(out)
        scales = pages.scales(out) if pages.has_scales else None
        many = tokens * tir.const(pages.heads * pages.width) >= tir.const(tir.SERIAL_ELEMENTS)
        with tir.when(many):
            with tir.then(), tir.parallel(tokens) as token:
                _append(pages, value, slots, written, scales, token, lanes)
            with tir.otherwise(), tir.serial(tokens) as token:
                _append(pages, value, slots, written, scales, token, lanes)
    return build_.get().with_attr("graphc.inplace", 0)


def _append(
    pages: Pages, value: Any, slots: Any, written: Any, scales: Any, token: Any, lanes: int
) -> None:
    """Every head's entry of one token."""
    slot = tir.bind(tirx.Cast("int64", tir.load(slots, [token])))
    page, offset = tir.bind(slot // tir.const(PAGE)), tir.bind(slot % tir.const(PAGE))
    with tir.serial(pages.heads) as head:
        factor = None
        if scales is not None:
            scale = _scale(pages, value, token, head, lanes)
            tir.store(scales, pages.scale_at(page, head, offset), scale)
            none = scale == tir.f32(0.0)
            factor = tir.bind(tirx.Select(none, tir.f32(0.0), tir.f32(1.0) / scale))

        def write(at: Any, width: int) -> None:
            with tir.vector(width) as lane:
                entry = tir.load(value, [token, head, at + lane])
                place = pages.at(page, head, offset, at + lane)
                tir.store(written, place, _stored(entry, factor, pages.dtype))

        tir.lanes_over(pages.width, lanes, write)


def _scale(pages: Pages, value: Any, token: Any, head: Any, lanes: int) -> Any:
    """max |value| / 127 of one head."""
    highest = tir.local([lanes])
    tir.fill(highest, lanes, tir.f32(0.0))

    def join(at: Any, width: int) -> None:
        with tir.vector(width) as lane:
            size = _magnitude(tir.load(value, [token, head, at + lane]))
            tir.store(highest, [lane], tirx.max(tir.load(highest, [lane]), size))

    tir.lanes_over(pages.width, lanes, join)
    return tir.bind(tir.horizontal(highest, lanes, tirx.max) * tir.f32(1.0 / 127.0))


def _magnitude(value: Any) -> Any:
    return tirx.Select(value < tir.f32(0.0), tir.f32(0.0) - value, value)


def _stored(value: Any, factor: Any, dtype: str) -> Any:
    if dtype == "float32":
        return value
    if factor is None:
        return tirx.Cast(dtype, value)
    return tirx.Cast(dtype, tirx.Cast("int32", tirx.floor(value * factor + tir.f32(0.5))))
