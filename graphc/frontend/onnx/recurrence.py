"""The kernel of a recurrent layer: a loop over time in which each step reads the one before.

    for each sequence in the batch, in parallel:
      for each step t, from the first or from the last:
        gates = projected[t] + h R               h is what the step before left
        h, c  = cell(gates, h, c)                LSTM, GRU or RNN
        out[t] = h

`projected` is x W + biases, made for all steps at once by a matrix product before the loop. The
state lies behind the last step in the output: out[steps] is h, and out[steps + 1] is c for an LSTM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

BLOCK = 64
"""Columns of a vector-matrix product that are summed in registers at once."""

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Gates of a cell, in ONNX's order: i o f c, z r h, and the RNN's only one."""


@dataclass(frozen=True)
class Activation:
    """One of ONNX's activation functions with its parameters."""

    name: str
    alpha: float
    beta: float


@dataclass(frozen=True)
class Cell:
    """A recurrent layer in one direction; which optional operands its kernel takes is part of it.

    Operands in order: projected [steps, batch, gates * hidden], weight [hidden, gates * hidden],
    h [batch, hidden], then those that are there of c [batch, hidden], lengths [batch] int32,
    peepholes [3 * hidden] (i o f) and bias [hidden] (the GRU's, added before the reset).
    """

    kind: str
    hidden: int
    dtype: str
    reverse: bool
    activations: tuple[Activation, ...]
    clip: float = 0.0
    lengths: bool = False
    peepholes: bool = False
    coupled: bool = False  # input_forget: f = 1 - i
    reset_after: bool = False  # linear_before_reset

    @property
    def states(self) -> int:
        """Rows of state behind the steps."""
        return 2 if self.kind == "LSTM" else 1


def kernel(cell: Cell, shapes: Sequence[Sequence[Any]], dtypes: Sequence[str]) -> tirx.PrimFunc:
    """The function of a cell over operands of these shapes, the output's the last."""
    buffers = _buffers(shapes, dtypes)
    with IRBuilder() as build, T.prim_func(s_tir=True):
        T.func_name(cell.kind.lower())
        T.func_attr(
            {"tirx.noalias": True, "tirx.is_scheduled": True, "graphc.template": "recurrence/1"}
        )
        for buffer in buffers:
            T.arg(buffer.name, buffer)
        _Loop(cell, buffers).emit()
    return build.get()


def _buffers(shapes: Sequence[Sequence[Any]], dtypes: Sequence[str]) -> list[Any]:
    """Parameters; every different symbolic dimension is read from the shape of an argument."""
    seen: dict[str, tirx.Var] = {}

    def dimension(extent: Any) -> Any:
        if isinstance(extent, int):
            return tirx.const(extent, "int64")
        return seen.setdefault(str(extent), tirx.Var(f"n{len(seen)}", "int64"))

    return [
        tirx.decl_buffer([dimension(extent) for extent in shape], dtype, name=f"x{index}")
        for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]


class _Loop:
    """Writes the loops; the operands are named as in `Cell`."""

    def __init__(self, cell: Cell, buffers: Sequence[Any]) -> None:
        self.cell = cell
        rest = iter(buffers[:-1])
        self.projected, self.weight, self.h = next(rest), next(rest), next(rest)
        self.c = next(rest) if cell.kind == "LSTM" else None
        self.lengths = next(rest) if cell.lengths else None
        self.peepholes = next(rest) if cell.peepholes else None
        self.bias = next(rest) if cell.reset_after else None
        self.out = buffers[-1]
        self.steps, self.batch = self.projected.shape[0], self.projected.shape[1]

    def emit(self) -> None:
        with T.parallel(_i(0), self.batch) as row:
            with T.serial(_i(0), _i(self.cell.hidden)) as j:
                self._store(self._state(row, j), _load(self.h, [row, j]))
                if self.c is not None:
                    self._store(self._state(row, j, 1), _load(self.c, [row, j]))
            gates = self._scratch(GATES[self.cell.kind] * self.cell.hidden)
            extra = self._scratch(self.cell.hidden)
            count = self._count(row)
            with T.serial(_i(0), self.steps) as step:
                self._step_or_zeros(row, step, count, gates, extra)

    def _step_or_zeros(self, row: Any, step: Any, count: Any, gates: Any, extra: Any) -> None:
        """A step; behind the end of a shorter sequence the outputs are 0."""
        if self.lengths is None:
            self._step(row, self._place(step, count), gates, extra)
            return
        with T.If(step < count):
            with T.Then():
                self._step(row, self._place(step, count), gates, extra)
            with T.Else(), self._units() as j:
                self._store([step, row, j], self._number(0.0))

    def _count(self, row: Any) -> Any:
        """The number of steps of a sequence, never more than there are."""
        if self.lengths is None:
            return self.steps
        given = T.alloc_buffer([_i(1)], "int64", scope="global")
        length = tirx.Cast("int64", _load(self.lengths, [row]))
        T.buffer_store(given, tirx.max(tirx.min(length, self.steps), _i(0)), [_i(0)])
        return _load(given, [_i(0)])

    def _place(self, step: Any, count: Any) -> Any:
        return count - step - _i(1) if self.cell.reverse else step

    # One step

    def _step(self, row: Any, at: Any, gates: Any, extra: Any) -> None:
        step = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.cell.kind]
        step(row, at, gates, extra)

    def _rnn(self, row: Any, at: Any, gates: Any, extra: Any) -> None:
        del extra
        self._product(row, gates, 0, 1, lambda n: _load(self.projected, [at, row, n]))
        with self._units() as j:
            self._finish(row, at, j, self._activate(0, _load(gates, [j])))

    def _gru(self, row: Any, at: Any, gates: Any, extra: Any) -> None:
        """z, r, then the candidate from r * h, or from r * (h R + bias) when reset afterwards."""
        hidden = self.cell.hidden

        def projected(n: Any) -> Any:
            return _load(self.projected, [at, row, n])

        self._product(row, gates, 0, 2, projected)
        with self._units() as j:
            for gate in range(2):
                place = j + _i(gate * hidden)
                self._keep(gates, place, self._activate(0, _load(gates, [place])))
        if self.cell.reset_after:
            self._product(row, gates, 2, 1, lambda n: _load(self.bias, [n - _i(2 * hidden)]))
            with self._units() as j:
                reset = _load(gates, [j + _i(hidden)]) * _load(gates, [j + _i(2 * hidden)])
                self._keep(extra, j, projected(j + _i(2 * hidden)) + reset)
        else:
            with self._units() as j:
                reset = _load(gates, [j + _i(hidden)]) * _load(self.out, self._state(row, j))
                self._keep(extra, j, reset)
            self._product(row, gates, 2, 1, projected, lambda k: _load(extra, [k]))
            with self._units() as j:
                self._keep(extra, j, _load(gates, [j + _i(2 * hidden)]))
        with self._units() as j:
            z, candidate = _load(gates, [j]), self._activate(1, _load(extra, [j]))
            before = _load(self.out, self._state(row, j))
            self._finish(row, at, j, (self._number(1.0) - z) * candidate + z * before)

    def _lstm(self, row: Any, at: Any, gates: Any, extra: Any) -> None:
        """i, o, f and the candidate; the output gate sees the new c through its peephole."""
        del extra
        hidden = self.cell.hidden
        self._product(row, gates, 0, 4, lambda n: _load(self.projected, [at, row, n]))
        with self._units() as j:
            before = self._bound(_load(self.out, self._state(row, j, 1)))

            def gate(number: int, seen: Any) -> Any:
                value = _load(gates, [j + _i(number * hidden)])
                if self.peepholes is not None:
                    value = value + _load(self.peepholes, [j + _i(number * hidden)]) * seen
                return value

            i = self._bound(self._activate(0, gate(0, before)))
            if self.cell.coupled:
                f = self._number(1.0) - i
            else:
                f = self._bound(self._activate(0, gate(2, before)))
            candidate = self._activate(1, _load(gates, [j + _i(3 * hidden)]))
            c = self._bound(f * before + i * candidate)
            o = self._activate(0, gate(1, c))
            self._store(self._state(row, j, 1), c)
            self._finish(row, at, j, o * self._activate(2, c))

    def _finish(self, row: Any, at: Any, j: Any, value: Any) -> None:
        """The new h of a unit is the step's output and the state."""
        value = self._bound(value)
        self._store([at, row, j], value)
        self._store(self._state(row, j), value)

    def _product(
        self,
        row: Any,
        gates: Any,
        first: int,
        count: int,
        start: Callable[[Any], Any],
        source: Callable[[Any], Any] | None = None,
    ) -> None:
        """gates[first:first + count] = start + h R, or with `source` in the place of h."""
        hidden = self.cell.hidden
        read = source or (lambda k: _load(self.out, self._state(row, k)))

        def block(begin: Any, width: int) -> None:
            total = T.alloc_buffer([_i(width)], self.cell.dtype, scope="global")
            with T.vectorized(_i(0), _i(width)) as lane:
                T.buffer_store(total, start(begin + lane), [lane])
            with T.serial(_i(0), _i(hidden)) as k, T.vectorized(_i(0), _i(width)) as lane:
                term = read(k) * _load(self.weight, [k, begin + lane])
                T.buffer_store(total, _load(total, [lane]) + term, [lane])
            with T.vectorized(_i(0), _i(width)) as lane:
                T.buffer_store(gates, _load(total, [lane]), [begin + lane])

        columns, begin, width = count * hidden, first * hidden, BLOCK
        whole = columns // BLOCK
        if whole:
            with T.serial(_i(0), _i(whole)) as number:
                block(_i(begin) + number * _i(BLOCK), BLOCK)
        done = whole * BLOCK
        while done < columns:
            width //= 2
            if columns - done >= width:
                block(_i(begin + done), width)
                done += width

    # Words

    def _units(self) -> Any:
        return T.serial(_i(0), _i(self.cell.hidden))

    def _scratch(self, size: int) -> Any:
        return T.alloc_buffer([_i(size)], self.cell.dtype, scope="global")

    def _state(self, row: Any, j: Any, number: int = 0) -> list[Any]:
        return [self.steps + _i(number), row, j]

    def _store(self, at: Sequence[Any], value: Any) -> None:
        T.buffer_store(self.out, value, list(at))

    @staticmethod
    def _keep(buffer: Any, at: Any, value: Any) -> None:
        T.buffer_store(buffer, value, [at])

    def _bound(self, value: Any) -> Any:
        """The value, computed here: what it reads may change before it is used."""
        scalar = T.alloc_buffer([_i(1)], self.cell.dtype, scope="global")
        T.buffer_store(scalar, value, [_i(0)])
        return _load(scalar, [_i(0)])

    def _number(self, value: float) -> Any:
        return tirx.const(value, self.cell.dtype)

    def _activate(self, index: int, x: Any) -> Any:
        clip = self.cell.clip
        # ONNX Runtime clips what goes into the gates, not the cell's state on its way out.
        if clip > 0 and index < 2:
            x = tirx.max(tirx.min(x, self._number(clip)), self._number(-clip))
        return activate(self.cell.activations[index], x, self.cell.dtype)


def activate(function: Activation, x: Any, dtype: str) -> Any:
    """An activation function of ONNX's recurrent operators."""

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    one, zero = number(1.0), number(0.0)
    alpha, beta = number(function.alpha), number(function.beta)
    functions: dict[str, Callable[[], Any]] = {
        "sigmoid": lambda: one / (one + tirx.exp(-x)),
        "tanh": lambda: tirx.tanh(x),
        "relu": lambda: tirx.max(x, zero),
        "affine": lambda: alpha * x + beta,
        "leakyrelu": lambda: tirx.Select(x >= zero, x, alpha * x),
        "thresholdedrelu": lambda: tirx.Select(x > alpha, x, zero),
        "scaledtanh": lambda: alpha * tirx.tanh(beta * x),
        "hardsigmoid": lambda: tirx.max(tirx.min(alpha * x + beta, one), zero),
        "elu": lambda: tirx.Select(x >= zero, x, alpha * (tirx.exp(x) - one)),
        "softsign": lambda: x / (one + tirx.abs(x)),
        "softplus": lambda: tirx.max(x, zero) + tirx.log(one + tirx.exp(-tirx.abs(x))),
    }
    return functions[function.name]()


DEFAULTS: dict[str, tuple[float | None, float | None]] = {
    "sigmoid": (None, None),
    "tanh": (None, None),
    "relu": (None, None),
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01, None),
    "thresholdedrelu": (1.0, None),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, None),
    "softsign": (None, None),
    "softplus": (None, None),
}
"""alpha and beta where the model gives none; None: the function does not take it."""


def _load(buffer: Any, at: Sequence[Any]) -> Any:
    return tirx.BufferLoad(buffer, list(at))


def _i(value: int) -> Any:
    return tirx.const(value, "int64")
