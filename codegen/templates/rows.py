"""The rows of a product and what is fused behind it, for every template that computes blocks of C.

    C[lead.., n]   is seen as   C[row, n]       with row = the leading indices, counted through

A template computes a block [rows, columns] of the root's values; `Rows.store` computes the fused
pointwise stages from it and stores them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.kernel import FusedKernel, Stage
from graphc.codegen.rewrite import rewrite, walk

# Nodes of the fused expressions up to which an epilogue is written out for each row.
_SHORT = 16


def output_of(kernel: FusedKernel, root: Stage) -> Stage | None:
    """The one output, when everything but `root` is pointwise; else None."""
    if len(kernel.outputs) != 1:
        return None
    output = kernel.outputs[0]
    rest = [stage for stage in kernel.stages if stage is not root]
    if not all(stage.is_pointwise for stage in rest):
        return None
    same = output is root or len(output.spatial_vars) == len(root.spatial_vars)
    return output if same and (output is root or output.is_pointwise) else None


class Rows:
    """The leading dimensions of `root` as one dimension; created inside the function's scope."""

    def __init__(self, kernel: FusedKernel, root: Stage, output: Stage) -> None:
        self.kernel, self.root, self.output = kernel, root, output
        self.lead = root.spatial_extents[:-1]
        self.count = tir.product(self.lead)
        self._vars = [tirx.Var(f"lead{i}", "int64") for i in range(len(self.lead))]
        self._views = {
            buffer: tir.view(buffer, [self.count, buffer.shape[-1]])
            for buffer in kernel.params
            if self._has_rows(buffer)
        }

    def epilogue(
        self, tile: Any, row: Any, rows: int, first: Any, columns: int, lanes: int
    ) -> None:
        """Stores C[row + i, first + j] for a tile [rows, columns] of the root's values."""
        with tir.serial(rows) as i:
            self._store_row(lambda at: tir.load(tile, [i, at]), row + i, first, columns, lanes)

    def store(self, acc: Sequence[Any], row: Any, panel: Any, columns: int, lanes: int) -> None:
        """Stores a register block: acc[i] holds the root's values of row + i, panel `panel`.

        A short epilogue is written out for each row and reads the registers. A long one is a loop
        over rows, written once, and reads a copy: indexing the accumulators with a variable would
        push them out of the registers.
        """
        if self._is_short:
            self._store_rows(
                lambda i, at: tir.load(acc[i], [at]), True, len(acc), row, panel, columns, lanes
            )
            return
        tile = tir.local([len(acc), columns], str(acc[0].dtype))
        for i, at in tir.over_tile(len(acc), columns // lanes, lanes):
            tir.store(tile, [tir.const(i), at], tir.load(acc[i], [at]))
        self._store_rows(
            lambda i, at: tir.load(tile, [i, at]), False, len(acc), row, panel, columns, lanes
        )

    @property
    def _is_short(self) -> bool:
        stages = [stage for stage in self.kernel.stages if stage is not self.root]
        return sum(len(list(walk(stage.value))) for stage in stages) <= _SHORT

    def _store_rows(
        self,
        value: Callable[[Any, Any], Any],
        unrolled: bool,
        rows: int,
        row: Any,
        panel: Any,
        columns: int,
        lanes: int,
    ) -> None:
        """The epilogue, the last panel's with the columns that it has."""
        first = panel * tir.const(columns)
        width = tir.static(self.root.spatial_extents[-1])
        assert width is not None, self.root.spatial_extents

        def emit(count: int) -> None:
            if unrolled:
                for i in range(rows):
                    of_row = functools.partial(value, i)
                    self._store_row(of_row, row + tir.const(i), first, count, lanes)
                return
            with tir.serial(rows) as i:
                self._store_row(functools.partial(value, i), row + i, first, count, lanes)

        if width % columns == 0:
            emit(columns)
            return
        with tir.when(panel < tir.const(width // columns)):
            with tir.then():
                emit(columns)
            with tir.otherwise():
                emit(width % columns)

    def _store_row(
        self, value: Callable[[Any], Any], row: Any, first: Any, columns: int, lanes: int
    ) -> None:
        def load(buffer: Any, at: Sequence[Any]) -> Any:
            if buffer.same_as(self.root.buffer):
                return value(at[-1] - first)
            return self._load(buffer, at, row)

        def write(offset: Any, width: int) -> None:
            self.kernel.store_vector(
                self.output,
                lambda lane: [*self._vars, first + offset + lane],
                width,
                load,
                lambda at, value: self._store(at, value, row),
            )

        tir.lanes_over(columns, lanes, write)

    def prefetch(self, row: Any, rows: int, first: Any, columns: int) -> None:
        """Asks for the lines of C, and of operands like it, that the epilogue will touch.

        They lie far apart, one row in each page: waiting for them would hold up the next block.
        """
        for view in self._views.values():
            if tir.static(view.shape[-1] - self.root.spatial_extents[-1]) != 0:
                continue
            for i in range(rows):
                for line in range(0, columns, tir.LINE_FLOATS):
                    tir.prefetch(view, [row + tir.const(i), first + tir.const(line)])

    def _has_rows(self, buffer: Any) -> bool:
        """The buffer's leading dimensions are the product's: it can be seen as [M, last]."""
        shape = getattr(buffer.ty, "shape", None)
        if shape is None or len(shape) != len(self.lead) + 1:
            return False
        pairs = zip(shape[:-1], self.lead, strict=True)
        return all(tir.static(tir.simplify(a - b)) == 0 for a, b in pairs)

    def _load(self, buffer: Any, at: Sequence[Any], row: Any) -> Any:
        if buffer in self._views and self._is_row(at):
            return tir.load(self._views[buffer], [row, at[-1]])
        return tir.load(buffer, [self._in_rows(i, row) for i in at])

    def _store(self, at: Sequence[Any], value: Any, row: Any) -> None:
        assert self._is_row(at), at
        tir.store(self._views[self.output.buffer], [row, at[-1]], self._in_rows(value, row))

    def _is_row(self, at: Sequence[Any]) -> bool:
        lead = at[:-1]
        return len(lead) == len(self._vars) and all(
            i.same_as(v) for i, v in zip(lead, self._vars, strict=True)
        )

    def _in_rows(self, value: Any, row: Any) -> Any:
        return rewrite(value, lambda node: self._lead_value(node, row))

    def _lead_value(self, node: Any, row: Any) -> Any | None:
        """The value of one leading index in terms of the row: row // inner % extent."""
        for position, variable in enumerate(self._vars):
            if variable.same_as(node):
                inner = tir.product(self.lead[position + 1 :])
                index = row if tir.static(inner) == 1 else row // inner
                return index if position == 0 else index % self.lead[position]
        return None
