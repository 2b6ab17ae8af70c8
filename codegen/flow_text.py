"""Prints the steps of a plan as the body of a C function, branches and loops as C's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from graphc.codegen.expression import c_text, text
from graphc.codegen.literals import comment, quote
from graphc.codegen.plan import (
    Assign,
    Branch,
    Clear,
    Continue,
    Enter,
    Expose,
    Loop,
    Measure,
    Observe,
    Step,
    Store,
)
from graphc.ir import Dim

PlainStep = Callable[[int, Step], str]
"""Prints a step without control flow, with its number."""


class FlowText:
    """`places` are the C expressions of dimensions in a run function."""

    def __init__(
        self, plain: PlainStep, tensor: Callable[[int], str], places: Mapping[str, str]
    ) -> None:
        self._plain, self._tensor, self._places = plain, tensor, places
        self._number = -1

    def lines(self, steps: Sequence[Step], running: str = "") -> list[str]:
        """Statements; `running` is the variable that keeps the loop around them going."""
        return [line for step in steps for line in self._step(step, running)]

    def _step(self, step: Step, running: str) -> list[str]:
        self._number += 1
        number = self._number
        if isinstance(step, Branch):
            return self._branch(number, step, running)
        if isinstance(step, Loop):
            return self._loop(number, step)
        if isinstance(step, Measure):
            title = f"{_names(step.dims)} = {self._tensor(step.tensor)}"
            calls = [
                f"gc_step_measure(f, {step.tensor}, {element}, {self._binding(dim, step.where)})"
                for element, dim in enumerate(step.dims)
            ]
            return [_title(number, title), *map(_checked, calls)]
        if isinstance(step, Assign):
            title = f"{_names(step.dims)} = {', '.join(map(text, step.extents))}"
            return [_title(number, title), *self._assign(number, step)]
        if isinstance(step, Observe):
            return self._observe(number, step)
        if isinstance(step, Continue):
            title = f"until {self._tensor(step.condition)} is false"
            call = f"gc_step_truth(f, {step.condition}, &{running})"
            return [_title(number, title), _checked(call)]
        if isinstance(step, Enter):
            return [_title(number, f"shapes of stage {step.stage}"),
                    _checked(f"gc_step_enter(f, {step.stage})")]  # fmt: skip
        if isinstance(step, Clear):
            return [f"  gc_step_clear(f, {step.slot}); /* {number} */"]
        if isinstance(step, Store):
            verb, sign = ("append", "+=") if step.append else ("store", "=")
            return [_title(number, f"slot {step.slot} {sign} {self._tensor(step.source)}"),
                    _checked(f"gc_step_{verb}(f, {step.source}, {step.slot})")]  # fmt: skip
        if isinstance(step, Expose):
            return [_title(number, f"tensors in slot {step.slot}"),
                    _checked(f"gc_step_expose(f, {step.slot}, {step.stage})")]  # fmt: skip
        return [self._plain(number, step)]

    def _branch(self, number: int, step: Branch, running: str) -> list[str]:
        truth = f"truth{number}"
        return [
            _title(number, f"if {self._tensor(step.condition)}"),
            f"  int {truth} = 0;",
            _checked(f"gc_step_truth(f, {step.condition}, &{truth})"),
            f"  if ({truth}) {{",
            *self.lines(step.then, running),
            "  } else {",
            *self.lines(step.other, running),
            "  }",
        ]

    def _loop(self, number: int, step: Loop) -> list[str]:
        running, place = f"running{number}", self._places[step.step]
        lines = [_title(number, f"for {step.step} < {text(step.limit)}"), f"  int {running} = 1;"]
        if step.condition is not None:
            lines.append(_checked(f"gc_step_truth(f, {step.condition}, &{running})"))
        return [
            *lines,
            f"  const int64_t limit{number} = {c_text(step.limit, self._places)};",
            f"  for ({place} = 0; {running} && {place} < limit{number}; {place}++) {{",
            *self.lines(step.body, running),
            "  }",
        ]

    def _assign(self, number: int, step: Assign) -> list[str]:
        lines = [
            f"  const int64_t value{number}_{at} = {c_text(extent, self._places)};"
            for at, extent in enumerate(step.extents)
        ]
        for at, dim in enumerate(step.dims):
            place = self._place(dim)
            rest = self._bounds(dim, step.where)
            lines.append(_checked(f"gc_step_assign(f, {place}, value{number}_{at}, {rest})"))
        return lines

    def _observe(self, number: int, step: Observe) -> list[str]:
        lines = [_title(number, f"{_names(step.dims)} in every iteration")]
        for dim, extent in zip(step.dims, step.extents, strict=True):
            value, place = c_text(extent, self._places), self._places[dim.name]
            lines.append(f"  if ({self._places[step.step]} == 0) {place} = {value};")
            equation = quote(f"{dim.name} == {text(extent)}")
            call = f"gc_require(f, {place}, {value}, {equation}, {quote(step.where)})"
            lines.append(_checked(call))
        return lines

    def _binding(self, dim: Dim, where: str) -> str:
        return f"{self._place(dim)}, {self._bounds(dim, where)}"

    def _place(self, dim: Dim) -> str:
        return self._places[dim.name].removeprefix("f->dims[").removesuffix("]")

    def _bounds(self, dim: Dim, where: str) -> str:
        upper = "INT64_MAX" if dim.upper is None else f"INT64_C({dim.upper})"
        return f"{dim.lower}, {upper}, {quote(dim.name)}, {quote(where)}"


def _names(dims: Sequence[Dim]) -> str:
    return ", ".join(dim.name for dim in dims)


def _title(number: int, text: str) -> str:
    return f"  /* {number}: {comment(text)} */"


def _checked(call: str) -> str:
    return f"  if ({call}) return f->error->code;"
