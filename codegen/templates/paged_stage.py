"""Reads keys and values of a unit: from their pages, or from float32 tiles made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.templates.paged_problem import Decisions, Problem
from graphc.codegen.templates.pages import PAGE

if TYPE_CHECKING:
    from graphc.codegen.templates.paged_tiles import Unit

_LINE = 64  # bytes of a cache line
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}


class Caches:
    """The two caches of a problem and the page table."""

    def __init__(self, problem: Problem, decisions: Decisions, buffers: dict[str, Any]) -> None:
        self.problem, self.lanes, self.table = problem, decisions.lanes, buffers["table"]
        self.keys = problem.keys.view(buffers["keys"])
        self.values = problem.values.view(buffers["values"])
        self.key_scales = self.value_scales = None
        if problem.keys.has_scales:
            self.key_scales = problem.keys.scales(buffers["keys"])
        if problem.values.has_scales:
            self.value_scales = problem.values.scales(buffers["values"])

    def page(self, unit: Unit, number: Any) -> Any:
        """The page that holds the sequence's page `number`; beyond the last: the last."""
        last = (unit.length - tir.const(1)) // PAGE
        at = [unit.sequence, tirx.min(number, last)]
        return tir.bind(tirx.Cast("int64", tir.load(self.table, at)))

    def key(self, unit: Unit, number: Any, page: Any, token: Any, feature: Any) -> Any:
        """A key's feature, without the scale of codes unless it is staged; `number` in the tile."""
        if unit.keys is not None:
            return tir.load(unit.keys, [number, feature * tir.const(PAGE) + token])
        return self._key(page, unit.head, token, feature)

    def scaled(self, unit: Unit, score: Any, page: Any, token: Any) -> Any:
        """A score with the scale of the key's codes."""
        if self.key_scales is None or unit.keys is not None:
            return score
        at = self.problem.keys.scale_at(page, unit.head, token)
        return score * tir.load(self.key_scales, at)

    def value(self, unit: Unit, first: Any, page: Any, token: Any, feature: Any) -> Any:
        """A value's feature; `first` is the page's first token in the tile."""
        if unit.values is not None:
            return tir.load(unit.values, [first + token, feature])
        return self._value(page, unit.head, token, feature)

    def value_scale(self, unit: Unit, page: Any, token: Any) -> Any | None:
        """What a value that is not staged must be scaled by."""
        if self.value_scales is None or unit.values is not None:
            return None
        at = self.problem.values.scale_at(page, unit.head, token)
        return tir.bind(tir.load(self.value_scales, at))

    def prefetch_key(self, page: Any, head: Any, feature: Any) -> None:
        """Asks for one feature of a page's keys."""
        tir.prefetch(self.keys, self.problem.keys.at(page, head, tir.const(0), feature))

    def prefetch_value(self, page: Any, head: Any, token: Any, at: Any, width: int) -> None:
        """Asks for the features at .. at + width of a value."""
        for feature in range(0, width, _LINE // _BYTES[self.problem.values.dtype]):
            place = self.problem.values.at(page, head, token, at + tir.const(feature))
            tir.prefetch(self.values, place)

    def stage(self, unit: Unit, base: Any, keys: Any) -> None:
        """Fills the unit's tiles, if it has some, with `keys` keys from the key `base` on."""
        if unit.keys is None and unit.values is None:
            return
        with tir.serial((keys + tir.const(PAGE - 1)) // PAGE) as number:
            page = self.page(unit, base // PAGE + number)
            if unit.keys is not None:
                self._stage_keys(unit, number, page)
            if unit.values is not None:
                self._stage_values(unit, number, page)

    def _stage_keys(self, unit: Unit, number: Any, page: Any) -> None:
        """[page, d, 16], whatever order the cache has."""
        with tir.serial(self.problem.depth) as feature:

            def copy(at: Any, width: int) -> None:
                with tir.vector(width) as lane:
                    value = self._key(page, unit.head, at + lane, feature)
                    if self.key_scales is not None:
                        place = self.problem.keys.scale_at(page, unit.head, at + lane)
                        value = value * tir.load(self.key_scales, place)
                    place = [number, feature * tir.const(PAGE) + at + lane]
                    tir.store(unit.keys, place, value)

            tir.lanes_over(PAGE, self.lanes, copy)

    def _stage_values(self, unit: Unit, number: Any, page: Any) -> None:
        with tir.serial(PAGE) as token:
            scale = None
            if self.value_scales is not None:
                at = self.problem.values.scale_at(page, unit.head, token)
                scale = tir.bind(tir.load(self.value_scales, at))

            def copy(at: Any, width: int) -> None:
                with tir.vector(width) as lane:
                    value = self._value(page, unit.head, token, at + lane)
                    value = value if scale is None else value * scale
                    place = [number * tir.const(PAGE) + token, at + lane]
                    tir.store(unit.values, place, value)

            tir.lanes_over(self.problem.width, self.lanes, copy)

    def _key(self, page: Any, head: Any, token: Any, feature: Any) -> Any:
        return _float(tir.load(self.keys, self.problem.keys.at(page, head, token, feature)))

    def _value(self, page: Any, head: Any, token: Any, feature: Any) -> Any:
        return _float(tir.load(self.values, self.problem.values.at(page, head, token, feature)))


def _float(value: Any) -> Any:
    """In float32; a vector's type is not the element's."""
    return value if str(value.ty).startswith("float32") else tirx.Cast("float32", value)
