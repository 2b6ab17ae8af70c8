"""Compares an artifact's numbers with the reference's, on edge shapes or on given inputs."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from graphc import edges, module, testing
from graphc.errors import InputError, ModelError, VerificationError
from graphc.reference import Eager, Refused, open_reference
from graphc.targets import detect

Arrays: TypeAlias = "Mapping[str, npt.NDArray[np.generic]]"


@dataclass(frozen=True)
class OutputCheck:
    """One output of one case; `limit` is what `worst` may be (see graphc.testing)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    cosine: float
    worst: float
    limit: float

    @property
    def passed(self) -> bool:
        return self.worst <= self.limit


@dataclass(frozen=True)
class Case:
    """One set of inputs: the dimensions' values and what each output showed."""

    label: str
    dims: Mapping[str, int]
    inputs: Arrays
    outputs: tuple[OutputCheck, ...]

    @property
    def passed(self) -> bool:
        return all(output.passed for output in self.outputs)


@dataclass(frozen=True)
class Report:
    """All cases that both sides ran; `refused` says why others did not count."""

    cases: tuple[Case, ...]
    refused: tuple[str, ...] = ()
    reference: str = "onnxruntime"

    @property
    def passed(self) -> bool:
        return all(case.passed for case in self.cases)

    def record(self, exact: bool = False) -> dict[str, object]:
        """Plain data; unless `exact`, rounded up so that equal compiles write equal bytes."""
        return {
            "reference": self.reference,
            "passed": self.passed,
            "cases": [
                {
                    "label": case.label,
                    "dims": dict(case.dims),
                    "outputs": [_output_record(output, exact) for output in case.outputs],
                }
                for case in self.cases
            ],
            "refused": list(self.refused),
        }


def _output_record(output: OutputCheck, exact: bool) -> dict[str, object]:
    rounded = (lambda figure: figure) if exact else round_up
    return {
        "name": output.name,
        "dtype": output.dtype,
        "shape": list(output.shape),
        "max_abs": _finite(rounded(output.max_abs)),
        "max_rel": _finite(rounded(output.max_rel)),
        "cosine": output.cosine if exact else round(output.cosine, 6),
        "worst": _finite(rounded(output.worst)),
        "limit": output.limit,
        "passed": output.passed,
    }


def _finite(figure: float) -> float:
    """JSON has no infinity: the largest double stands for it."""
    return min(figure, sys.float_info.max)


def round_up(figure: float) -> float:
    """The next of 1, 2, 5, 10, 20 ... times a power of ten."""
    if figure == 0 or not math.isfinite(figure):
        return figure
    exponent = math.floor(math.log10(figure))
    for step in (1, 2, 5, 10):
        rounded = float(f"{step}e{exponent}")
        if figure <= rounded * (1 + 1e-9):
            return rounded
    return float(f"1e{exponent + 1}")


def verify(
    directory: Path,
    model: Path,
    dims: Mapping[str, int] | None = None,
    inputs: Arrays | None = None,
    *,
    threads: int | None = None,
    tolerance: float | None = None,
) -> Report:
    """Run both and compare every output.

    With `dims` or `inputs` there is one case, its missing inputs drawn at random; without them
    the cases are the edge shapes of the artifact's dimensions. Raises ModelError when the
    reference does not run the model, InputError for inputs that do not fit, and VerificationError
    when no edge shape was accepted by both. A report out of tolerance is returned, not raised.
    """
    reference = open_reference(model, threads or detect.machine().cores)
    with module.load(directory, threads=threads) as loaded:
        pair = _Pair(loaded, reference, tolerance)
        if dims or inputs:
            feeds = testing.feeds(loaded.inputs, dims or {}, inputs or {})
            return Report((pair.case("given", feeds),), reference=reference.kind)
        return _edge_report(pair)


@dataclass(frozen=True)
class _Pair:
    """The two sides of a comparison."""

    loaded: module.Module
    reference: Eager
    tolerance: float | None

    def case(self, label: str, feeds: Arrays) -> Case:
        """Run both on one set of inputs; what either refuses it raises."""
        expected = self.reference.run(feeds)
        names = [port.name for port in self.loaded.outputs]
        absent = [name for name in names if name not in expected]
        if absent:
            raise ModelError(
                f"{self.reference.path} has no output {absent[0]}: "
                "the artifact was compiled from another model"
            )
        actual = dict(zip(names, self.loaded.run(names, dict(feeds)), strict=True))
        checks = tuple(self._check(name, actual[name], expected[name]) for name in names)
        return Case(label, testing.dims_of(self.loaded.inputs, feeds), feeds, checks)

    def _check(
        self, name: str, actual: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]
    ) -> OutputCheck:
        kind = actual.dtype.name
        difference = testing.compare(actual, expected)
        limit = testing.tolerance(kind, self.tolerance)
        return OutputCheck(name, kind, actual.shape, **asdict(difference), limit=limit)


def _edge_report(pair: _Pair) -> Report:
    cases: list[Case] = []
    refused: list[str] = []
    for label, sizes in edges.shapes(pair.loaded):
        reason = ""
        for attempt in edges.stretched(sizes, pair.loaded):
            try:
                feeds = testing.random_inputs(pair.loaded.inputs, attempt)
                cases.append(pair.case(label, feeds))
                break
            except (InputError, Refused) as error:
                reason = reason or str(error)
        else:
            refused.append(f"{label}: {reason}")
    if not cases:
        raise VerificationError(
            f"no shape could be verified: {refused[0]}\n"
            "fix or bound the dimensions with --dim, or compile with --no-verify"
        )
    return Report(tuple(cases), tuple(refused), pair.reference.kind)
