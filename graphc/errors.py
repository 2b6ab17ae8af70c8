"""The one family of exceptions that graphc raises for what a user can mend.

Every message names the place, the offending value and what to do about it, in one or two lines
and in lower case. The command line prints the message and exits with `exit_status`; nobody sees a
traceback. A fault of our own stays an `AssertionError` with the values in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MOST_LINES: Final = 20


class GraphcError(Exception):
    """Base of all errors with a remedy; `exit_status` is what the command line returns."""

    exit_status = 2


class ModelError(GraphcError):
    """The model file is broken, contradicts itself, or reaches outside its folder.

    `blockers` lists every reason that was found, so that a user sees all at once; it is empty when
    the message is the only one.
    """

    def __init__(self, message: str, blockers: Sequence[Blocker] = ()) -> None:
        lines = [str(blocker) for blocker in blockers[:_MOST_LINES]]
        if len(blockers) > _MOST_LINES:
            lines.append(f"and {len(blockers) - _MOST_LINES} more: see graphc check")
        super().__init__("\n".join((message, *(f"  {line}" for line in lines))))
        self.blockers = tuple(blockers)


class UnsupportedError(ModelError):
    """The model is well formed but uses something that graphc does not compile."""


@dataclass(frozen=True)
class Blocker:
    """One thing that keeps a model from being compiled; `text` says all of it in a line.

    `node` is the name of the node, tensor or input; `operator`, `domain` and `opset` are those of
    a node. `broken`: the model contradicts itself, whatever compiles it.
    """

    text: str
    why: str
    repair: str = ""
    node: str = ""
    operator: str = ""
    domain: str = ""
    opset: int | None = None
    broken: bool = False

    def __str__(self) -> str:
        return self.text


_REPAIRS: Final = {
    False: "export the model without it, or rewrite it with other operators",
    True: "the file contradicts itself: export it again, onnx.checker may say more",
}


def blockers_of(
    error: ModelError,
    *,
    node: str = "",
    label: str = "",
    operator: str = "",
    domain: str = "",
    opset: int | None = None,
) -> tuple[Blocker, ...]:
    """The blockers that an error lists, or the one that it is, about the node called `label`.

    What follows the last colon of an unsupported feature is what repairs it.
    """
    if error.blockers:
        return error.blockers
    broken = not isinstance(error, UnsupportedError)
    text = str(error)
    if label and not text.startswith(label):
        text = f"{label}: {text}"
    why, repair = text.removeprefix(f"{label}: ") if label else text, ""
    if not broken and ": " in why:
        why, _, repair = why.rpartition(": ")
    return (Blocker(text, why, repair or _REPAIRS[broken], node, operator, domain, opset, broken),)


def refusal(source: str, blockers: Sequence[Blocker]) -> ModelError:
    """The error that tells of all blockers at once."""
    broken = all(blocker.broken for blocker in blockers)
    if broken and len(blockers) == 1:
        error = ModelError(str(blockers[0]))
        error.blockers = tuple(blockers)
        return error
    kind = ModelError if broken else UnsupportedError
    return kind(f"{source}: graphc does not compile:", blockers)


class ConfigError(GraphcError):
    """An option, a target or an environment variable has a value that cannot be used."""


class InputError(GraphcError):
    """A tensor given at run time has a wrong name, dtype, rank, dimension or value."""


class CacheExhaustedError(InputError):
    """A language model's cache has too few free pages for what was asked of it."""


class NumericsError(GraphcError):
    """A model's output has no meaning: NaN where numbers should be."""

    exit_status = 1


class ArtifactError(GraphcError):
    """An artifact is missing, damaged, or made for another machine or format."""


class ToolError(GraphcError):
    """A tool that graphc calls (C compiler, linker) is missing or failed; says how to repeat it."""


class VerificationError(GraphcError):
    """Numbers depart from the reference: the artifact is not written."""

    exit_status = 1
