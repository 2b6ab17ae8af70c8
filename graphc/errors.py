"""The one family of exceptions that graphc raises for what a user can mend.

Every message names the place, the offending value and what to do about it, in one or two lines
and in lower case. The command line prints the message and exits with `exit_status`; nobody sees a
traceback. A fault of our own stays an `AssertionError` with the values in it.
"""

from __future__ import annotations


class GraphcError(Exception):
    """Base of all errors with a remedy; `exit_status` is what the command line returns."""

    exit_status = 2


class ModelError(GraphcError):
    """The model file is broken, contradicts itself, or reaches outside its folder."""


class UnsupportedError(ModelError):
    """The model is well formed but uses something that graphc does not compile.

    `blockers` lists every one of them, so that a user sees all at once.
    """

    def __init__(self, message: str, blockers: tuple[str, ...] = ()) -> None:
        super().__init__("\n".join((message, *(f"  {line}" for line in blockers))))
        self.blockers = blockers


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
