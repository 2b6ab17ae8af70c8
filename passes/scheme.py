"""What a quantisation scheme is: a pass that may look at the target, the options and the data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from graphc.config import CompileConfig
from graphc.ir import Model
from graphc.targets.target import Target

Feeds: TypeAlias = Mapping[str, npt.NDArray[np.generic]]
"""One set of inputs by name."""

Run: TypeAlias = Callable[[Model, Sequence[Feeds]], list[list[npt.NDArray[np.generic]]]]
"""Compiles a model for the machine at hand and runs it: the outputs of each set of inputs."""


Time: TypeAlias = Callable[[Model, Sequence[Feeds]], float]
"""Compiles a model and times it: seconds for all sets of inputs together."""


@dataclass(frozen=True)
class Request:
    """One quantisation: the scheme's name and what it may use.

    `data` are sets of inputs, from the calibration file or drawn at random; None where the scheme
    is used without a way to run models. `keep` names products that stay as they are.
    """

    scheme: str
    target: Target
    config: CompileConfig
    run: Run | None = None
    data: Sequence[Feeds] = ()
    time: Time | None = None
    keep: frozenset[str] = frozenset()


Scheme: TypeAlias = Callable[[Model, Request], Model]
