"""Where the tokens lie in a value, and the error of a node that lets them meet."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.passes.decoder.specialise import NotADecoder
from graphc.passes.node import Node


@dataclass(frozen=True)
class Lane:
    """Where the tokens lie in a value: on `axis`, whose extent is outer * sequence * inner."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether the axis holds one entry for each token."""
        return self.outer == self.inner == 1


class Mixes(NotADecoder):
    """A node lets tokens of different positions meet outside a recognised attention."""

    def __init__(self, node: Node, how: str) -> None:
        super().__init__(f"{node.name} ({node.op}) mixes positions: {how}")
