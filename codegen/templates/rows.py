"""The rows of a product and what is fused behind it, for every template that computes blocks of C.

    C[lead.., n]   is seen as   C[row, n]       with row = the leading indices, counted through

A template fills a tile [rows, columns] of the root's values; `Rows.epilogue` computes the fused
pointwise stages from it and stores them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from graphc.codegen import builder as tir
from graphc.codegen.kernel import FusedKernel, Stage
from graphc.codegen.rewrite import rewrite


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

        def write(i: Any, offset: Any, width: int) -> None:
            place = row + i

            def load(buffer: Any, at: Sequence[Any]) -> Any:
                if buffer.same_as(self.root.buffer):
                    return tir.load(tile, [i, at[-1] - first])
                return self._load(buffer, at, place)

            self.kernel.store_vector(
                self.output,
                lambda lane: [*self._vars, first + offset + lane],
                width,
                load,
                lambda at, value: self._store(at, value, place),
            )

        with tir.serial(rows) as i:
            tir.lanes_over(columns, lanes, lambda at, width: write(i, at, width))

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
