"""How one cache lies in its pages of 16 tokens: the agreement between its writers and readers.

    rows     [pages, 16, heads, width]    what any operator of the graph can read
    keys     [pages, heads, width, 16]    16 keys are one vector: q k^T needs no transpose
    values   [pages, heads, 16, width]    one head's values of a page are contiguous

The tensor's shape is [pages, 16, heads, stored] under every order; `stored` is the width, or for
int8 codes four bytes more: the page of a head ends with 16 float32 scales, one for each token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from graphc.codegen import builder as tir

PAGE = 16
ORDERS = ("rows", "keys", "values")
DTYPES = ("float32", "float16", "bfloat16", "int8")
_SCALE_BYTES = 4


@dataclass(frozen=True)
class Pages:
    """One cache: `heads` x `width` values of type `dtype` for every token."""

    order: str
    heads: int
    width: int
    dtype: str

    def __post_init__(self) -> None:
        assert self.order in ORDERS and self.dtype in DTYPES, self
        assert self.order != "rows" or not self.has_scales, "codes have no order of rows"

    @property
    def has_scales(self) -> bool:
        return self.dtype == "int8"

    @property
    def stored(self) -> int:
        """The last extent of the tensor."""
        return self.width + (_SCALE_BYTES if self.has_scales else 0)

    def view(self, cache: Any) -> Any:
        """The cache under the shape that `at` indexes."""
        if self.order == "rows":
            return cache
        return tir.view(cache, [cache.shape[0], self.heads, PAGE * self.stored])

    def scales(self, cache: Any) -> Any:
        """The scales of a cache of codes, indexed by `scale_at`."""
        shape = [cache.shape[0], self.heads, PAGE * self.stored // _SCALE_BYTES]
        return tir.view(cache, shape, "float32")

    def at(self, page: Any, head: Any, token: Any, feature: Any) -> list[Any]:
        """Where a value lies in the view; `token` is its number in the page."""
        if self.order == "rows":
            return [page, token, head, feature]
        if self.order == "keys":
            return [page, head, feature * tir.const(PAGE) + token]
        return [page, head, token * tir.const(self.width) + feature]

    def scale_at(self, page: Any, head: Any, token: Any) -> list[Any]:
        """Where a token's scale lies in the view of scales."""
        return [page, head, tir.const(PAGE * self.width // _SCALE_BYTES) + token]


def of_cache(ty: Any, order: str) -> Pages | None:
    """How a cache tensor of this type lies; None when its heads or width are not known."""
    heads, stored = (tir.static(extent) for extent in list(ty.shape)[2:])
    dtype = str(ty.dtype)
    if heads is None or stored is None or dtype not in DTYPES:
        return None
    return Pages(order, heads, stored - (_SCALE_BYTES if dtype == "int8" else 0), dtype)
