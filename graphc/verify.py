"""Compares an artifact's numbers with the reference's, on edge shapes or on given inputs."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from graphc import artifact, edges, module, nudge, testing
from graphc.emulation import EmulatedModule
from graphc.errors import ConfigError, InputError, ModelError, VerificationError
from graphc.reference import Eager, Reference, Refused, open_reference, quantises_activations
from graphc.targets import detect
from graphc.targets import load as targets

Arrays: TypeAlias = "Mapping[str, npt.NDArray[np.generic]]"
Outputs: TypeAlias = "Sequence[npt.NDArray[np.generic]]"
Loaded: TypeAlias = "module.Module | EmulatedModule"


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
    rounds: bool = False,
) -> Report:
    """Run both and compare every output.

    Of a language model all logits of some sequences are compared, stepped by chunks; `rounds` says
    that its weights are of few bits.

    With `dims` or `inputs` there is one case, its missing inputs drawn at random; without them
    the cases are the edge shapes of the artifact's dimensions. Raises ModelError when the
    reference does not run the model, InputError for inputs that do not fit, and VerificationError
    when no edge shape was accepted by both. A report out of tolerance is returned, not raised.
    An artifact for another machine runs under qemu, on smaller edge shapes; without qemu it is an
    ArtifactError.
    """
    stepped = quantises_activations(model)
    reference = open_reference(model, threads or detect.machine().cores)
    if artifact.read_manifest(directory).llm is not None:
        from graphc.verify_decoder import verify_steps

        return verify_steps(
            directory, reference, threads=threads, tolerance=tolerance, rounds=stepped or rounds
        )
    with _open(directory, threads) as loaded:
        refused: list[str] = []
        if dims or inputs:
            feeds = testing.feeds(loaded.inputs, dims or {}, inputs or {})
            questions = [_Question("given", feeds, reference.run(feeds))]
        else:
            questions = [
                question
                for view in _views(loaded)
                for question in _edge_questions(view, reference, refused)
            ]
        # The reference holds the weights too: it goes before a nudged one comes and before the
        # artifact's are read, so that no two of them take twice the memory.
        kind, rounds_too = reference.kind, isinstance(reference, Reference)
        del reference
        if stepped and tolerance is None and rounds_too:
            questions = _with_limits(questions, model, threads, loaded)
        elif stepped and tolerance is None:
            questions = [_with_one_limit(question) for question in questions]
        cases = []
        for question in questions:
            try:
                view = question.view or loaded
                cases.append(_answer(question, view, model, tolerance))
            except _NotComparableError as error:
                refused.append(f"{question.label}: {error}")
            except InputError as error:
                if dims or inputs:
                    raise
                refused.append(f"{question.label}: {error}")
    if not cases:
        raise VerificationError(
            f"no shape could be verified: {refused[0]}\n"
            "fix or bound the dimensions with --dim, or compile with --no-verify"
        )
    return Report(tuple(cases), tuple(refused), kind)


def _open(directory: Path, threads: int | None) -> Loaded:
    target = artifact.read_manifest(directory).target
    if target.machine == platform.machine():
        return module.load(directory, threads=threads)
    try:
        cpu = targets.get(target.name).qemu_cpu
    except ConfigError:  # a target of somebody else's
        cpu = ""
    return EmulatedModule(directory, cpu)


def verify_against(directory: Path, run: Callable[[Sequence[Arrays]], Sequence[Outputs]]) -> Report:
    """Compare with what `run` gives for small edge shapes: the same quantised computation.

    Errors are judged by their norm: a last place that differs moves an activation by a step.
    """
    with module.load(directory) as loaded:
        cases = [(label, sizes) for label, sizes in edges.shapes(loaded) if label in ("one", "odd")]
        asked = [testing.random_inputs(loaded.inputs, sizes) for _, sizes in cases]
        names = [port.name for port in loaded.outputs]
        answers = [loaded.run(names, dict(feeds)) for feeds in asked]
    made = []
    for (label, sizes), feeds, found, expected in zip(
        cases, asked, answers, run(asked), strict=True
    ):
        checks = tuple(
            _check_steps(name, *pair) for name, *pair in zip(names, found, expected, strict=True)
        )
        made.append(Case(label, sizes, feeds, checks))
    return Report(tuple(made), reference="the quantised graph in plain loops")


def _check_steps(
    name: str, actual: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]
) -> OutputCheck:
    difference = asdict(testing.compare(actual, expected))
    difference["worst"] = difference.pop("norm")
    kind = actual.dtype.name
    return OutputCheck(name, kind, actual.shape, **difference, limit=testing.STEPS_TOLERANCE)


class _NotComparableError(Exception):
    """The reference departs from itself too much at these inputs."""


@dataclass(frozen=True)
class _Question:
    """Inputs and what the reference makes of them."""

    label: str
    feeds: Arrays
    expected: Arrays
    view: _View | None = None
    limits: Mapping[str, float | None] = field(default_factory=dict)


def _with_limits(
    questions: Sequence[_Question], model: Path, threads: int | None, loaded: Loaded
) -> list[_Question]:
    """With what the error's norm may be for each output, from a reference that is nudged."""
    moved: list[list[Arrays]] = [[] for _ in questions]
    for seed in nudge.SEEDS:
        data = nudge.nudged_model(model, seed)
        other = Reference(model, threads or detect.machine().cores, data=data)
        for found, question in zip(moved, questions, strict=True):
            found.append(_expected(other, question.view or loaded, question.feeds))
        del other
    made = []
    for question, found in zip(questions, moved, strict=True):
        spreads = nudge.spread(question.expected, found)
        limits = {name: nudge.limit(spread) for name, spread in spreads.items()}
        made.append(replace(question, limits=limits))
    return made


def _with_one_limit(question: _Question) -> _Question:
    """For a reference that keeps the floats which the artifact rounds: no nudge shows a step."""
    limits = dict.fromkeys(question.expected, testing.QUANTISED_TOLERANCE)
    return replace(question, limits=limits)


class _View:
    """One function of an artifact, for a choice that is an input of the exported model."""

    def __init__(self, loaded: module.Module, info: artifact.FunctionInfo) -> None:
        self.info, self.inputs, self.outputs = info, info.inputs, info.outputs
        self.functions = {"main": info}
        self._loaded = loaded

    def infer_shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        return self._loaded.infer_shapes(shapes, self.info.name)

    def run(self, names: Sequence[str], feeds: Arrays) -> list[npt.NDArray[np.generic]]:
        return self._loaded.run(names, feeds, self.info.name)


def _views(loaded: Loaded) -> list[Loaded | _View]:
    """What is verified: the artifact, or each function of it where the model had a choice."""
    chosen = [info for info in loaded.functions.values() if info.choice is not None]
    if not chosen or not isinstance(loaded, module.Module):
        return [loaded]
    return [_View(loaded, info) for info in chosen]


def _expected(reference: Eager, loaded: Loaded | _View, feeds: Arrays) -> Arrays:
    if isinstance(loaded, _View) and isinstance(reference, Reference):
        assert loaded.info.choice is not None
        feeds = reference.completed(feeds, *loaded.info.choice)
    return reference.run(feeds)


def _edge_questions(
    loaded: Loaded | _View, reference: Eager, refused: list[str]
) -> Iterator[_Question]:
    """One question for each edge shape that both sides accept; `refused` gains the others."""
    largest = loaded.largest_dimension if isinstance(loaded, EmulatedModule) else edges.LARGE
    for label, sizes in edges.shapes(loaded, largest):
        reason = ""
        for attempt in edges.stretched(sizes, loaded):
            try:
                feeds = testing.random_inputs(loaded.inputs, attempt)
                loaded.infer_shapes({name: value.shape for name, value in feeds.items()})
                view = loaded if isinstance(loaded, _View) else None
                name = label if view is None else f"{view.info.name}: {label}"
                question = _Question(name, feeds, _expected(reference, loaded, feeds), view)
            except (InputError, Refused) as error:
                reason = reason or str(error)
            else:
                yield question
                break
        else:
            refused.append(f"{label}: {reason}")


def _answer(
    question: _Question,
    loaded: Loaded | _View,
    model: Path,
    tolerance: float | None,
) -> Case:
    """What the artifact makes of the inputs, compared."""
    names = [port.name for port in loaded.outputs]
    absent = [name for name in names if name not in question.expected]
    if absent:
        raise ModelError(
            f"{model} has no output {absent[0]}: the artifact was compiled from another model"
        )
    found = loaded.run(names, dict(question.feeds))
    checks = tuple(
        _check(name, actual, question.expected[name], tolerance, question.limits.get(name))
        for name, actual in zip(names, found, strict=True)
    )
    incomparable = any(question.limits.get(name, 0.0) is None for name in names)
    # Infinite: another shape, or NaN in other places, which is wrong however far a step goes.
    if incomparable and all(math.isfinite(check.max_abs) for check in checks):
        raise _NotComparableError(
            f"not comparable: {nudge.TOO_FAR}, so nothing is proved at this shape"
        )
    sizes = testing.dims_of(loaded.inputs, question.feeds)
    return Case(question.label, sizes, question.feeds, checks)


def _check(
    name: str,
    actual: npt.NDArray[np.generic],
    expected: npt.NDArray[np.generic],
    override: float | None,
    by_norm: float | None,
) -> OutputCheck:
    """`by_norm`: what the error's norm may be, where the model rounds activations."""
    kind = actual.dtype.name
    difference = asdict(testing.compare(actual, expected))
    norm = difference.pop("norm")
    limit = testing.tolerance(kind, override)
    if by_norm is not None and limit and override is None:
        difference["worst"], limit = norm, by_norm
    return OutputCheck(name, kind, actual.shape, **difference, limit=limit)
