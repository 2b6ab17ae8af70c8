"""Paged attention and cache appends against float64, over scattered pages and ragged batches."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import paged_caches
import pytest
from paged_caches import Batch
from tvm import relax, tirx

from graphc.codegen.cpu import build_module
from graphc.codegen.templates import cache_append, paged_attention
from graphc.codegen.templates.pages import PAGE, Pages
from graphc.targets import load as targets

BATCHES = [
    Batch((1,), (1,)),
    Batch((1, 1, 1, 1, 1), (15, 16, 17, 31, 500)),
    Batch((33,), (33,)),
    Batch((1, 7, 1, 50, 16), (32, 23, 2000, 500, 33)),
    Batch((31, 1, 130), (31, 300, 259)),
]


class Argument:
    """What a template asks of a call's argument: its type."""

    def __init__(self, shape: list[Any], dtype: str = "float32") -> None:
        self.ty = relax.TensorType(shape, dtype)


def cache_argument(pages: Pages) -> Argument:
    return Argument([tirx.Var("pages", "int64"), PAGE, pages.heads, pages.stored], pages.dtype)


def append_kernel(pages: Pages) -> Any:
    tokens, host = tirx.Var("t", "int64"), targets.get("host")
    cache = cache_argument(pages)
    arguments = [cache, Argument([tokens, pages.heads, pages.width]), Argument([tokens], "int32")]
    function = cache_append.build(arguments, {"order": pages.order}, cache.ty, host)
    assert function is not None and int(function.attrs["graphc.inplace"]) == 0
    return build_module({"append": function}, host)["append"]


def attention_kernel(
    heads: int, keys: Pages, values: Pages, width: int, attrs: dict[str, Any]
) -> Any:
    t, s, p = (tirx.Var(name, "int64") for name in ("t", "s", "p"))
    arguments = [
        Argument([t, heads, keys.width]),
        cache_argument(keys),
        cache_argument(values),
        Argument([s + 1], "int32"),
        Argument([s], "int32"),
        Argument([s, p], "int32"),
    ]
    arguments += [Argument([heads])] * (attrs["has_slopes"] + attrs["has_sinks"])
    attrs = {**attrs, "width": width, "key_order": keys.order, "value_order": values.order}
    host = targets.get("host")
    result = Argument([t, heads, width]).ty
    function = paged_attention.build(arguments, attrs, result, host)
    assert function is not None
    return build_module({"attention": function}, host)["attention"]


def tensor(value: np.ndarray) -> Any:
    import tvm

    return tvm.runtime.tensor(np.ascontiguousarray(value))


def check(
    heads: int,
    keys: Pages,
    values: Pages | None = None,
    *,
    width: int = 0,
    window: int = 0,
    softcap: float = 0.0,
    has_slopes: bool = False,
    has_sinks: bool = False,
) -> None:
    """Appends everything in one go, then attends with the tokens that are new."""
    shared = values is None
    values = keys if values is None else values
    width = width or values.width
    attrs = {
        "scale": 0.3,
        "window": window,
        "softcap": softcap,
        "has_slopes": has_slopes,
        "has_sinks": has_sinks,
    }
    attend = attention_kernel(heads, keys, values, width, attrs)
    append = {pages: append_kernel(pages) for pages in {keys, values}}
    random = np.random.default_rng(3)
    for batch in BATCHES:
        table, count = batch.table(random)
        whole = Batch(batch.lengths, batch.lengths)
        caches = []
        for pages in [keys] if shared else [keys, values]:
            cache = tensor(paged_caches.empty(pages, count))
            value = random.standard_normal((whole.tokens, pages.heads, pages.width))
            append[pages](cache, tensor(value.astype("float32")), tensor(whole.slots(table)), cache)
            caches.append(cache)
        held = [
            paged_caches.entries(pages, np.asarray(cache.numpy()))
            for pages, cache in zip([keys, values], [caches[0], caches[-1]], strict=True)
        ]
        q = random.standard_normal((batch.tokens, heads, keys.width)).astype("float32")
        more = [random.standard_normal(heads).astype("float32") for _ in range(2)]
        slopes = abs(more[0]) / 8 if has_slopes else None
        sinks = more[1] if has_sinks else None
        out = tensor(np.full((batch.tokens, heads, width), 9, "float32"))
        lengths = np.array(batch.lengths, "int32")
        extra = [tensor(x.astype("float32")) for x in (slopes, sinks) if x is not None]
        attend(
            tensor(q),
            caches[0],
            caches[-1],
            tensor(batch.starts),
            tensor(lengths),
            tensor(table),
            *extra,
            out,
        )
        expected = paged_caches.attention(
            batch, q, held[0], held[1][..., :width], table, 0.3, window, softcap, slopes, sinks
        )
        np.testing.assert_allclose(out.numpy(), expected, atol=4e-6, rtol=2e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_types(dtype: str) -> None:
    check(6, Pages("keys", 2, 24, dtype), Pages("values", 2, 40, dtype))


@pytest.mark.parametrize(("heads", "groups"), [(1, 1), (3, 3), (8, 1), (14, 2), (50, 1)])
def test_groups(heads: int, groups: int) -> None:
    check(heads, Pages("keys", groups, 16, "float32"), Pages("values", groups, 16, "float32"))


def test_window() -> None:
    check(3, Pages("keys", 3, 20, "float32"), Pages("values", 3, 13, "float32"), window=20)
    check(2, Pages("keys", 1, 16, "float32"), Pages("values", 1, 80, "float32"), window=1)


def test_softcap_slopes_and_sinks() -> None:
    pages = Pages("keys", 2, 16, "float32"), Pages("values", 2, 16, "float32")
    check(4, *pages, softcap=0.9, window=37, has_sinks=True)
    check(4, *pages, has_slopes=True)
    check(4, *pages, has_slopes=True, has_sinks=True)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_one_cache_for_keys_and_values(dtype: str) -> None:
    check(20, Pages("values", 1, 24, dtype), width=16)


def test_rows_as_any_operator_reads_them() -> None:
    check(4, Pages("rows", 2, 24, "float32"), Pages("rows", 2, 16, "float32"))


@pytest.mark.parametrize("order", ["keys", "values"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_append(dtype: str, order: str) -> None:
    pages = Pages(order, 3, 20, dtype)
    append = append_kernel(pages)
    random = np.random.default_rng(5)
    for tokens in (1, 16, 200):
        slots = random.permutation(20 * PAGE)[:tokens].astype("int32")
        value = random.standard_normal((tokens, 3, 20)).astype("float32")
        value[0, 1] = 0
        before = paged_caches.empty(pages, 20)
        cache = tensor(before)
        append(cache, tensor(value), tensor(slots), cache)
        held = paged_caches.entries(pages, np.asarray(cache.numpy())).reshape(-1, 3, 20)
        kept = np.setdiff1d(np.arange(20 * PAGE), slots)
        assert np.isnan(held[kept]).all()
        expected = value.astype("float64")
        if dtype == "int8":
            limit = abs(expected).max(axis=2, keepdims=True) / 127 * 0.5001
            assert (abs(held[slots] - expected) <= limit).all()
        else:
            rounded = value.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
            np.testing.assert_array_equal(held[slots], rounded.astype("float64"))
