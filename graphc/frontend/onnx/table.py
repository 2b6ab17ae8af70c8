"""What an operator's entry in a table is, and how a node finds its entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from tvm import relax

from graphc.frontend.onnx.context import Context
from graphc.frontend.onnx.node import Node
from graphc.frontend.onnx.values import Interval, KnownValue, Value

Result: TypeAlias = "relax.Expr | Value | Sequence[relax.Expr | Value | None]"
Convert: TypeAlias = "Callable[[Context, Node], Result]"
Fold: TypeAlias = (
    "Callable[[Context, Node, Sequence[np.ndarray | None]], np.ndarray | KnownValue | None]"
)
IntervalRule: TypeAlias = "Callable[[Context, Node], Interval | None]"


@dataclass(frozen=True)
class Operator:
    """How to import one operator.

    `convert` gives a Relax expression (not yet bound), a value, or several of them. `fold`
    computes small known inputs, numeric or symbolic, in numpy; None means "not mine", and a bare
    array of dtype object has the type of the first input that is not boolean. `interval` bounds
    the elements of an integer result. `moves` says that the result's elements are "all" or "some"
    of input 0's, in another order or shape. `narrow`: what it does with element types that TVM does
    not compute with (narrow.py): "reads" them, or "carries" them unread like all that `moves`.
    """

    convert: Convert
    fold: Fold | None = None
    interval: IntervalRule | None = None
    moves: Literal["", "all", "some"] = ""
    narrow: Literal["", "reads", "carries"] = ""


Table: TypeAlias = "Mapping[tuple[str, str, int], Operator]"
"""(domain, operator, first version of the operator set with this meaning) -> entry."""


class Registry:
    """Tables joined, looked up by version."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._versions: dict[tuple[str, str], list[tuple[int, Operator]]] = {}
        for table in tables:
            for (domain, op_type, since), operator in table.items():
                versions = self._versions.setdefault((domain, op_type), [])
                assert all(since != other for other, _ in versions), (domain, op_type, since)
                versions.append((since, operator))
        for versions in self._versions.values():
            versions.sort(key=lambda entry: entry[0], reverse=True)

    def find(self, domain: str, op_type: str, version: int) -> Operator | None:
        """The newest meaning that is not newer than `version`."""
        for since, operator in self._versions.get((domain, op_type), ()):
            if since <= version:
                return operator
        return None

    def versions(self, domain: str, op_type: str) -> list[int]:
        """The first versions of all meanings that are compiled, oldest first."""
        return sorted(since for since, _ in self._versions.get((domain, op_type), ()))

    def names(self) -> list[tuple[str, str]]:
        return sorted(self._versions)
