"""Products with packed weights of few bits: C[m, n] = epilogue(sum_k x[m, k] w[k, n]).

    w[k, n] = scale[g, n] * (code[k, n] - offset) + minimum[g, n]         g = k // group

    for (panel, row block) in parallel:          a panel is `lanes` outputs, one vector register
      sum[rows] = 0                              float32
      for g:                                     one record of weights, read once for all rows
        acc[rows] = correction or 0              int32
        for vectors of codes:                    halves of 4 bits are taken apart in registers
          acc += dot(codes, x[rows, 4 values])   codegen/instructions/dot_codes.py
        sum += float(acc) * (scale * x scale) + minimum * correction

With float activations each code is expanded to float32 instead, exactly, and multiplied there.
Memory formats are in nbits_format.py. Any number of rows
is covered by blocks of a few sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx
from tvm.ir import TensorLoad

from graphc.codegen import builder as tir
from graphc.codegen.instructions.convert import halves
from graphc.codegen.instructions.dot_codes import dot_codes
from graphc.codegen.instructions.instruction import imported, store_vector, vector
from graphc.codegen.kernel import FusedKernel, Stage, is_param
from graphc.codegen.rewrite import walk
from graphc.codegen.templates import nbits_format as nbits
from graphc.codegen.templates.nbits_format import HEADER, Format
from graphc.codegen.templates.rows import Rows, output_of
from graphc.targets.target import Target

NAME = "gemm_nbits"
VERSION = 1

# Vectors of codes that are written out in a row; longer groups are loops over such pieces.
_WRITTEN_OUT = 8


@dataclass(frozen=True)
class Decisions:
    """Rows of a block, whose accumulators and sums are registers: from the largest down."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        assert self.sizes and list(self.sizes) == sorted(self.sizes, reverse=True), self

    def __str__(self) -> str:
        return f"{NAME}/{VERSION} {self.sizes[0]} rows"


def default_decisions(target: Target) -> Decisions:
    """Two registers a row, and six for codes, scales, minima and what is on the way."""
    return Decisions((12, 8, 4)) if target.vector_bits >= 512 else Decisions((5, 2))


def compute(form: Format, width: int, quantized: bool) -> Any:
    """The TE computation over packed weights that the layout pass emits; `NAME` annotates it.

    `quantized`: the first operand is records of int8 activations, else x [.., K] in float32.
    """

    def gemm_nbits(a: te.Tensor, packed: te.Tensor) -> te.Tensor:
        groups = int(packed.shape[1])
        g = te.reduce_axis((0, groups), name="g")
        k = te.reduce_axis((0, form.group), name="k")
        lead = a.shape[:-2] if quantized else a.shape[:-1]

        def element(*at: Any) -> Any:
            *row, n = at
            panel, lane = n // form.lanes, n % form.lanes
            code = nbits.code(form, packed, panel, g, lane, k)
            scale = nbits.scale(form, packed, panel, g, lane)
            if not quantized:
                weight = (code - form.offset).astype("float32") * scale
                if not form.symmetric:
                    weight = weight + nbits.minimum(form, packed, panel, g, lane)
                return te.sum(a[(*row, g * form.group + k)] * weight, axis=[g, k])
            record = (*row, g)
            x_scale = tirx.reinterpret("float32", a[(*record, 0)])
            word = a[(*record, k // 4 + HEADER)]
            x = (word << (24 - 8 * (k % 4)).astype("int32")) >> 24
            correction = a[(*record, 1)]
            if form.symmetric:
                once = correction.astype("float32") * (scale * x_scale)
            else:
                minimum = nbits.minimum(form, packed, panel, g, lane)
                once = tirx.reinterpret("float32", correction) * minimum
            once = tirx.Select(k == 0, once, tir.f32(0.0))
            return te.sum((code * x).astype("float32") * (scale * x_scale) + once, axis=[g, k])

        attrs = {"graphc.template": NAME, "graphc.quantized": quantized, **_record(form)}
        return te.compute([*lead, tir.const(width)], element, name=NAME, attrs=attrs)

    return gemm_nbits


def _record(form: Format) -> dict[str, Any]:
    return {
        "graphc.bits": form.bits,
        "graphc.group": form.group,
        "graphc.lanes": form.lanes,
        "graphc.symmetric": form.symmetric,
        "graphc.half": form.half,
    }


def _form(annotations: Any) -> Format:
    values = {key: int(annotations[f"graphc.{key}"]) for key in ("bits", "group", "lanes")}
    return Format(
        **values,
        symmetric=bool(annotations["graphc.symmetric"]),
        half=bool(annotations["graphc.half"]),
    )


def apply(kernel: FusedKernel, target: Target) -> tirx.PrimFunc | None:
    """Tiles a kernel whose root the layout pass packed; None when there is no such root."""
    root = kernel.root(NAME)
    if root is None:
        return None
    output = output_of(kernel, root)
    if output is None:
        return None
    sources = list(
        dict.fromkeys(
            n.source
            for n in walk(root.value)
            if isinstance(n, TensorLoad) and not n.source.same_as(root.buffer)
        )
    )
    if not all(is_param(kernel, source) for source in sources):
        return None
    form = _form(root.annotations)
    # Only a packed weight has int32 rows of so many words: records of activations are shorter.
    packed = next(
        s for s in sources if str(s.dtype) == "int32" and tir.static(s.shape[-1]) == form.words
    )
    (a,) = (source for source in sources if not source.same_as(packed))
    return _Gemm(kernel, root, output, (a, packed), form, target).build()


class _Gemm:
    """Writes the loops of one kernel."""

    def __init__(
        self,
        kernel: FusedKernel,
        root: Stage,
        output: Stage,
        operands: Sequence[Any],
        form: Format,
        target: Target,
    ) -> None:
        self.kernel, self.root, self.output, self.form = kernel, root, output, form
        self.a, self.packed = operands
        self.quantized = bool(root.annotations["graphc.quantized"])
        self.decisions = default_decisions(target)
        self.dot = dot_codes(target, form.lanes, form.bits)
        self.halves = halves(form.lanes)
        self.panels, self.groups, _ = (int(n) for n in self.packed.shape)
        width = tir.static(root.spatial_extents[-1])
        assert width is not None, root.spatial_extents
        self.width = width

    def build(self) -> tirx.PrimFunc:
        d, form = self.decisions, self.form
        used = [*([self.dot] if self.quantized else []), *([self.halves] if form.half else [])]
        with tir.function(self.kernel.name, self.kernel.params, str(d)) as build, imported(used):
            self.rows = Rows(self.kernel, self.root, self.output)
            count = self.rows.count
            length = self.panels * self.groups * form.words
            self.words = tir.view(self.packed, [length])
            self.word_floats = tir.view_as(self.packed, "float32", [length])
            length = self.groups * (form.activation_words if self.quantized else form.group)
            self.x = tir.view(self.a, [count, length])
            if self.quantized:
                self.x_floats = tir.view_as(self.a, "float32", [count, length])
            self._cover(count)
        return build.get()

    def _cover(self, count: Any) -> None:
        """Blocks of every size in turn take what larger ones leave, the last one overlapping.

        Where there are fewer rows than the smallest size, blocks of one row.
        """
        sizes = self.decisions.sizes
        counts, left = [], count
        for size in sizes:
            fits = left // tir.const(size)
            counts.append(tir.let(fits))
            left = left - counts[-1] * tir.const(size)
        over = (left + tir.const(sizes[-1] - 1)) // tir.const(sizes[-1])
        counts[-1] = tir.let(counts[-1] + over)
        blocks = tir.let(sum(counts[1:], counts[0]))
        panels = tir.const(self.panels)
        with tir.when(count >= tir.const(sizes[-1])):
            with tir.then(), tir.parallel(blocks * panels) as task:
                panel, block = tir.bind(task // blocks), tir.bind(task % blocks)
                self._one_of(block, panel, count, list(zip(sizes, counts, strict=True)), None)
            with tir.otherwise(), tir.parallel(count * panels) as task:
                panel, row = tir.bind(task // count), tir.bind(task % count)
                self._block(row, panel, 1)

    def _one_of(
        self, block: Any, panel: Any, count: Any, sizes: list[tuple[int, Any]], first: Any
    ) -> None:
        """The block of this number: those of the first size come first, from row `first` on."""
        (size, fits), rest = sizes[0], sizes[1:]
        start = block * tir.const(size) if first is None else first + block * tir.const(size)
        if not rest:
            self._block(tirx.min(start, count - tir.const(size)), panel, size)
            return
        with tir.when(block < fits):
            with tir.then():
                self._block(start, panel, size)
            with tir.otherwise():
                done = fits * tir.const(size)
                after = tir.bind(done if first is None else first + done)
                self._one_of(tir.bind(block - fits), panel, count, rest, after)

    def _block(self, start: Any, panel: Any, rows: int) -> None:
        """sum[rows, lanes] over all groups, then the epilogue of each row."""
        form, lanes = self.form, self.form.lanes
        start = tir.bind(start)
        record = tir.local([1], "int64")
        zero = tir.const(0)
        tir.store(record, [zero], panel * tir.const(self.groups * form.words))
        sums = [tir.local([lanes]) for _ in range(rows)]
        for total in sums:
            tir.fill(total, lanes, tir.f32(0.0))
        group = self._quantized_group if self.quantized else self._float_group
        with tir.serial(self.groups) as g:
            group(tir.load(record, [zero]), [start + tir.const(i) for i in range(rows)], g, sums)
            tir.store(record, [zero], tir.load(record, [zero]) + tir.const(form.words))
        self.rows.store(sums, start, panel, lanes, lanes)

    def _quantized_group(self, record: Any, rows: Sequence[Any], g: Any, sums: list[Any]) -> None:
        form, lanes = self.form, self.form.lanes
        begin = tir.bind(g * tir.const(form.activation_words))
        acc = [tir.local([lanes], "int32") for _ in rows]
        for row, total in zip(rows, acc, strict=True):
            first = tirx.const(0, "int32")
            if form.symmetric:
                first = tir.load(self.x, [row, begin + tir.const(1)])
            tir.fill(total, lanes, first)
        start = [tir.const(0)]
        with self._vectors() as (place, written_out):
            for v in range(written_out):
                words = self._vector(record, place + tir.const(v))
                for part, codes in enumerate(self._codes(words)):
                    word = (place + tir.const(v)) * tir.const(form.depth // 4) + tir.const(part)
                    for row, total in zip(rows, acc, strict=True):
                        four = tir.load(self.x, [row, begin + tir.const(HEADER) + word])
                        value = self.dot(vector(total, start, lanes), codes, four)
                        store_vector(total, start, lanes, value)
        scale, minimum = self._scales(record)
        for row, total, result in zip(rows, acc, sums, strict=True):
            x_scale = self._spread(tir.load(self.x_floats, [row, begin]))
            value = vector(result, start, lanes)
            if minimum is not None:
                correction = tir.load(self.x_floats, [row, begin + tir.const(1)])
                value = value + vector(minimum, start, lanes) * self._spread(correction)
            whole = vector(total, start, lanes).astype(f"float32x{lanes}")
            value = value + whole * (vector(scale, start, lanes) * x_scale)
            store_vector(result, start, lanes, value)

    def _float_group(self, record: Any, rows: Sequence[Any], g: Any, sums: list[Any]) -> None:
        form, lanes = self.form, self.form.lanes
        start = [tir.const(0)]
        scale, minimum = self._scales(record)
        begin = tir.bind(g * tir.const(form.group))
        weight = tir.local([lanes])
        with tir.serial(form.vectors) as v:
            words = self._vector(record, v)
            for part, codes in enumerate(self._codes(words)):
                for byte in range(4):
                    shifted = codes >> self._spread(tirx.const(8 * byte, "int32"))
                    plain = shifted & self._spread(tirx.const(255, "int32"))
                    plain = plain - self._spread(tirx.const(form.offset, "int32"))
                    value = plain.astype(f"float32x{lanes}") * vector(scale, start, lanes)
                    if minimum is not None:
                        value = value + vector(minimum, start, lanes)
                    store_vector(weight, start, lanes, value)
                    k = begin + v * tir.const(form.depth) + tir.const(4 * part + byte)
                    for row, total in zip(rows, sums, strict=True):
                        term = vector(weight, start, lanes) * self._spread(
                            tir.load(self.x, [row, k])
                        )
                        store_vector(total, start, lanes, vector(total, start, lanes) + term)

    def _vectors(self) -> Any:
        """Loops over the vectors of a record: the place of a piece and how many it has."""
        count = self.form.vectors
        if count <= _WRITTEN_OUT:
            return nullcontext((tir.const(0), count))
        piece = next(n for n in range(_WRITTEN_OUT, 0, -1) if count % n == 0)
        return _Pieces(count // piece, piece)

    def _vector(self, record: Any, place: Any) -> Any:
        """One vector of words, in registers."""
        lanes = self.form.lanes
        words = tir.local([lanes], "int32")
        at = record + place * tir.const(lanes)
        store_vector(words, [tir.const(0)], lanes, vector(self.words, [at], lanes))
        return words

    def _codes(self, words: Any) -> list[Any]:
        """Vectors of four codes to a lane, in the order of k."""
        lanes, start = self.form.lanes, [tir.const(0)]
        value = vector(words, start, lanes)
        if self.form.bits == 8:
            return [value]
        low = self._spread(tirx.const(0x0F0F0F0F, "int32"))
        high = value >> self._spread(tirx.const(4, "int32"))
        parts = []
        for part in (value & low, high & low):
            local = tir.local([lanes], "int32")
            store_vector(local, start, lanes, part)
            parts.append(vector(local, start, lanes))
        return parts

    def _scales(self, record: Any) -> tuple[Any, Any]:
        """Scales and minima (None when symmetric) of a record, in registers."""
        form = self.form
        first = record + tir.const(form.vectors * form.lanes)
        scale = self._floats(first)
        minimum = None if form.symmetric else self._floats(first + tir.const(form.scale_words))
        return scale, minimum

    def _floats(self, first: Any) -> Any:
        form, lanes = self.form, self.form.lanes
        local = tir.local([lanes])
        if form.half:
            value = self.halves(vector(self.words, [first], lanes // 2))
        else:
            value = vector(self.word_floats, [first], lanes)
        store_vector(local, [tir.const(0)], lanes, value)
        return local

    def _spread(self, value: Any) -> Any:
        return tirx.Broadcast(value, tirx.const(self.form.lanes, "int32"))


class _Pieces:
    """A loop over `count` pieces of `size` vectors."""

    def __init__(self, count: int, size: int) -> None:
        self.loop, self.size = tir.serial(count), size

    def __enter__(self) -> tuple[Any, int]:
        index = self.loop.__enter__()
        return index * tir.const(self.size), self.size

    def __exit__(self, *error: Any) -> None:
        self.loop.__exit__(*error)
