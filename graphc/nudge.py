"""How far a reference departs from itself when its weights move by a last place.

A model that rounds its activations to 8 bits is a staircase: a difference in the last place of a
float moves a value by a whole step. What an artifact may differ by is a few times what the
reference differs by from itself; where that is too much, the shape proves nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from graphc import testing

Arrays = Mapping[str, npt.NDArray[np.generic]]

TIMES: Final = 4.0
"""An artifact differs from the reference in every operator, the nudged one in its vectors."""
LOWEST: Final = testing.STEPS_TOLERANCE
"""A single step, which nudges may miss: they move few of the floats that decide on one."""
COMPARABLE: Final = 0.1
"""Above this a limit would no more tell a right operator from a wrong one, which gives about 1."""
SEEDS: Final = (1, 2)
_SIZING: Final = frozenset({"Resize", "Upsample"})
"""Their floats are sizes: a last place less, and the output has a row less."""
TOO_FAR: Final = (
    f"the reference moves by more than {COMPARABLE} when its weights move by a last place"
)


def nudged_model(path: Path, seed: int) -> bytes:
    """The model with its vectors of floats (scales and shifts of norms, biases) so moved."""
    model = onnx.load(str(path), load_external_data=False)
    rng = np.random.default_rng(seed)
    sizes = {name for node in model.graph.node if node.op_type in _SIZING for name in node.input}
    for tensor in model.graph.initializer:
        inline = tensor.data_location != onnx.TensorProto.EXTERNAL
        is_vector = tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 1
        if inline and is_vector and tensor.name not in sizes:
            moved = _nudged(onnx.numpy_helper.to_array(tensor), rng)
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved, tensor.name))
    data: bytes = model.SerializeToString()
    return data


def limit(spread: float) -> float | None:
    """What the norm of an output's error may be, None when the reference moves too much itself."""
    return max(LOWEST, round(TIMES * spread, 2)) if spread <= COMPARABLE else None


def spread(expected: Arrays, others: Sequence[Arrays]) -> dict[str, float]:
    """The largest norm of a difference, over the output's norm, for each output."""
    return {
        name: max(testing.compare(other[name], value).norm for other in others)
        for name, value in expected.items()
    }


def _nudged(value: npt.NDArray[np.generic], rng: np.random.Generator) -> npt.NDArray[np.generic]:
    """Every value up or down by chance; the largest stays, as beyond it lies infinity."""
    ends = np.where(rng.integers(0, 2, value.shape) == 1, np.inf, -np.inf).astype(np.float32)
    with np.errstate(over="ignore"):
        moved = np.nextafter(value, ends)
    return np.where(np.isfinite(moved), moved, value)
