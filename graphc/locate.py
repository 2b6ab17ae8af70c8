"""Finds the first ONNX node whose value departs, by recompiling with inner values as outputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from graphc import env, module, testing
from graphc.frontend.onnx.graph import describe
from graphc.reference import Reference

# Values observed in one recompile: three rounds find one node among several thousand.
_PER_ROUND: Final = 16
_FLOATING: Final = {f"tensor({kind})" for kind in ("float", "float16", "double", "bfloat16")}

Observe = Callable[[Sequence[str], Path], None]
"""Compiles the model with those values as further outputs into a directory."""


@dataclass(frozen=True)
class _Value:
    """One output of one node."""

    name: str
    node: str


def first_departure(
    model: Path,
    feeds: Mapping[str, npt.NDArray[np.generic]],
    observe: Observe,
    *,
    threads: int,
    tolerance: float | None = None,
) -> str | None:
    """Describe the first node in topological order whose value is out of tolerance.

    None when every observed value agrees: watching a value keeps it from being fused, so the
    fault then lies in a fusion or a schedule and not in one operator.
    """
    values = _floating_values(model, threads)
    low, high = -1, len(values)  # values[low] agrees and values[high] departs, as far as is known
    while high - low > 1:
        picks = sorted({round(i) for i in np.linspace(low + 1, high - 1, _PER_ROUND)})
        names = [values[i].name for i in picks]
        departing = _departing(names, model, feeds, observe, threads, tolerance)
        env.log(2, f"locate: of values {low + 1}..{high - 1} depart {departing or 'none'}")
        first = next((k for k, name in enumerate(names) if name in departing), len(picks))
        low = picks[first - 1] if first > 0 else low
        high = picks[first] if first < len(picks) else high
    return values[high].node if high < len(values) else None


def _floating_values(model: Path, threads: int) -> list[_Value]:
    """What the graph's nodes compute in floating point, in the order in which they do."""
    graph = onnx.load(str(model), load_external_data=False).graph
    values = [
        _Value(name, f"{describe(node)}, output {name!r}")
        for node in graph.node
        if node.op_type != "Constant"
        for name in node.output
        if name
    ]
    kinds = Reference(model, threads, [value.name for value in values]).types
    return [value for value in values if kinds[value.name] in _FLOATING]


def _departing(
    names: Sequence[str],
    model: Path,
    feeds: Mapping[str, npt.NDArray[np.generic]],
    observe: Observe,
    threads: int,
    tolerance: float | None,
) -> list[str]:
    """Those of the values that are out of tolerance when all of them are observed."""
    expected = Reference(model, threads, names).run(feeds)
    with tempfile.TemporaryDirectory(prefix="graphc-locate-") as folder:
        directory = Path(folder) / "observed.gc"
        observe(names, directory)
        with module.load(directory, threads=threads) as loaded:
            actual = dict(zip(names, loaded.run(list(names), dict(feeds)), strict=True))
    return [
        name
        for name in names
        if testing.compare(actual[name], expected[name]).worst
        > testing.tolerance(expected[name].dtype.name, tolerance)
    ]
