"""Random small ONNX graphs that ONNX Runtime runs, grown node by node, the same for each seed.

A node is kept when ONNX Runtime runs it at two settings of the symbolic dimensions and its results
do not jump when its inputs move by their rounding errors: what then differs is a fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
import relax_vm
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state as refusals

from graphc import testing

REFUSALS: Final = tuple(
    kind for kind in vars(refusals).values()
    if isinstance(kind, type) and issubclass(kind, Exception)
)  # fmt: skip
FLOATS: Final = ("float32", "float16", "float64")
INTEGERS: Final = ("int64", "int32", "uint8", "int8")
LARGEST: Final = 1e4
EXACT: Final = frozenset(
    {
        "Abs",
        "Add",
        "And",
        "ArgMax",
        "ArgMin",
        "Cast",
        "Ceil",
        "Clip",
        "Concat",
        "Equal",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "Greater",
        "Identity",
        "Less",
        "Max",
        "MaxPool",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pad",
        "ReduceMax",
        "ReduceMin",
        "Relu",
        "Reshape",
        "Round",
        "Sign",
        "Slice",
        "Split",
        "Squeeze",
        "Sub",
        "Tile",
        "TopK",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
        "Xor",
    }
)
"""Operators that give the same bits everywhere for the same inputs."""


@dataclass(frozen=True)
class Value:
    """A tensor at each setting of the dimensions; `tolerance` is that of the coarsest origin.

    `exact`: nothing on the way to it rounds.
    """

    arrays: tuple[np.ndarray, ...]
    tolerance: float
    exact: bool

    @property
    def dtype(self) -> str:
        return str(self.arrays[0].dtype)

    @property
    def rank(self) -> int:
        return self.arrays[0].ndim

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Sizes; None where they depend on the setting."""
        sizes = zip(*(array.shape for array in self.arrays), strict=True)
        return tuple(several[0] if len(set(several)) == 1 else None for several in sizes)


@dataclass(frozen=True)
class Drawn:
    """A finished graph, with one feed for each setting of its dimensions."""

    model: onnx.ModelProto
    feeds: tuple[Mapping[str, np.ndarray], ...]
    tolerances: tuple[float, ...]


class Growing:
    """A graph while it grows; `add` says whether the node was kept."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.rng.choice([17, 18, 20, 21])
        self.values: dict[str, Value] = {}
        self.inputs: dict[str, tuple[str, list[int | str]]] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.nodes: list[onnx.NodeProto] = []
        first, second = self.rng.sample([3, 5, 7], 2), self.rng.sample([11, 13, 17], 2)
        self.settings = [dict(zip("nm", sizes, strict=True)) for sizes in (first, second)]

    def array(self, dtype: str, shape: Sequence[int], low: int = -4, high: int = 5) -> np.ndarray:
        """Multiples of 1/8 for floats, so that sums, halves and ties come up."""
        if dtype == "bool":
            return np.asarray(self.numbers.integers(0, 2, shape), dtype)
        if dtype.startswith("float"):
            return np.asarray(self.numbers.integers(8 * low, 8 * high, shape) / 8, dtype)
        low = 0 if dtype.startswith("u") else low
        return np.asarray(self.numbers.integers(low, high, shape), dtype)

    def input(self, dtype: str, shape: list[int | str]) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = (dtype, shape)
        arrays = (
            self.array(dtype, [setting.get(str(dim), dim) for dim in shape])
            for setting in self.settings
        )
        self.values[name] = Value(tuple(arrays), testing.tolerance(dtype), True)
        return name

    def constant(self, value: Any, dtype: str = "int64") -> str:
        name = f"c{len(self.constants)}"
        array = np.array(value).astype(dtype)
        self.constants[name] = array
        self.values[name] = Value((array, array), testing.tolerance(dtype), True)
        return name

    def pick(
        self, dtypes: Sequence[str], lowest: int = 0, fits: Callable[[Value], bool] | None = None
    ) -> str | None:
        """One of the tensors of such a type, later ones rather than earlier ones."""
        names = [
            name for name, value in self.values.items()
            if name not in self.constants and value.dtype in dtypes and value.rank >= lowest
            and (fits is None or fits(value))
        ]  # fmt: skip
        return names[max(self.rng.randrange(len(names)) for _ in range(2))] if names else None

    def partner(self, name: str, dtype: str, low: int = -4, high: int = 5) -> str:
        """Something that broadcasts with `name`: a tensor of the graph or a new constant."""
        value = self.values[name]

        def fits(other: Value) -> bool:
            try:
                for pair in zip(value.arrays, other.arrays, strict=True):
                    np.broadcast_shapes(*(array.shape for array in pair))
            except ValueError:
                return False
            return True

        other = self.pick([dtype], fits=fits) if low < 0 and self.rng.random() < 0.6 else None
        if other is not None:
            return other
        kept = value.shape[self.rng.randint(0, value.rank) :]
        sizes = [1 if dim is None or self.rng.random() < 0.3 else dim for dim in kept]
        return self.constant(self.array(dtype, sizes, low, high), dtype)

    def add(self, op: str, inputs: Sequence[str], outputs: int = 1, **attributes: Any) -> bool:
        given = [self.values[name] for name in inputs if name]
        names = [f"v{len(self.nodes)}_{position}" for position in range(outputs)]
        node = helper.make_node(op, list(inputs), names, **attributes)
        kinds = {
            name: (self.values[name].dtype, [None] * self.values[name].rank)
            for name in inputs
            if name and name not in self.constants
        }
        constants = {name: self.constants[name] for name in inputs if name in self.constants}
        model = relax_vm.build([node], kinds, names, constants, self.opset)
        exact = all(value.exact for value in given)
        bound = max(value.tolerance for value in given)
        try:
            runs = [self._run(model, kinds, index, 0.0) for index in range(len(self.settings))]
            moved = runs if exact else [self._run(model, kinds, i, 0.1) for i in range(len(runs))]
        except REFUSALS:
            return False
        made = []
        for arrays, others in zip(zip(*runs, strict=True), zip(*moved, strict=True), strict=True):
            limit = max(bound, testing.tolerance(str(arrays[0].dtype)))
            for array, other in zip(arrays, others, strict=True):
                if not array.size or array.size > 20_000 or not calm(array, other, limit):
                    return False
            same = arrays[0].dtype.kind != "f" or (exact and op in EXACT)
            limit = testing.tolerance(str(arrays[0].dtype)) if same else limit
            made.append(Value(arrays, limit, same))
        self.nodes.append(node)
        self.values.update(zip(names, made, strict=True))
        return True

    def _run(
        self, model: onnx.ModelProto, kinds: Mapping[str, Any], index: int, move: float
    ) -> list[np.ndarray]:
        feeds = {}
        for name in kinds:
            value = self.values[name]
            array = value.arrays[index]
            if move and array.dtype.kind == "f" and not value.exact:
                signs = self.numbers.choice([-1.0, 1.0], array.shape)
                moved = array + signs * move * value.tolerance * np.maximum(1, np.abs(array))
                array = moved.astype(array.dtype)
            feeds[name] = np.asarray(array)
        return relax_vm.reference(model, feeds)

    def finish(self) -> Drawn:
        """The graph with every tensor that no node reads as an output, and some others."""
        read = {name for node in self.nodes for name in node.input}
        outputs = [
            name for node in self.nodes for name in node.output
            if name not in read or self.rng.random() < 0.2
        ]  # fmt: skip
        used = {name: array for name, array in self.constants.items() if name in read}
        inputs = {name: info for name, info in self.inputs.items() if name in read}
        model = relax_vm.build(self.nodes, inputs, outputs, used, self.opset)
        feeds = tuple(
            {name: self.values[name].arrays[index] for name in inputs}
            for index in range(len(self.settings))
        )
        return Drawn(model, feeds, tuple(self.values[name].tolerance for name in outputs))


def calm(array: np.ndarray, moved: np.ndarray, tolerance: float) -> bool:
    """Finite, of moderate size, and not far from what moved inputs give."""
    if array.dtype.kind != "f":
        return bool(np.array_equal(array, moved))
    if array.shape != moved.shape or not np.isfinite(array).all():
        return False
    return (
        float(np.abs(array).max()) < LARGEST
        and testing.compare(moved, array).worst <= tolerance / 2
    )  # fmt: skip


def draw(seed: int) -> Drawn:
    """The graph of this seed: 2 to 8 nodes on one to three inputs."""
    from random_nodes import NODES

    graph = Growing(seed)
    for _ in range(graph.rng.randint(1, 3)):
        dtype = graph.rng.choice(["float32"] * 5 + ["float16", "float64", *INTEGERS, "bool"])
        shape = [
            graph.rng.choice([1, 2, 4, 6, 8, "n", "m"]) for _ in range(graph.rng.randint(0, 4))
        ]
        graph.input(dtype, shape)
    count = graph.rng.randint(2, 8)
    for _ in range(200):
        if len(graph.nodes) >= count:
            break
        graph.rng.choice(NODES)(graph)
    return graph.finish()
