"""The typed face of the model's pages: what a chunk would take, and who holds a sequence there.

All bookkeeping (tables, reference counts, copy on write, prefix hashes) is the runtime's.
"""

from __future__ import annotations

from graphc.llm.chunk import PagedModel
from graphc.llm.sequence import Sequence


class BlockManager:
    """Pages of one model."""

    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self._page = model.page_size

    @property
    def free(self) -> int:
        return self._model.pages_free

    @property
    def capacity(self) -> int:
        """Tokens that a sequence alone can have in the cache."""
        return self._model.pages_total * self._page

    def open(self, sequence: Sequence) -> None:
        """Give it a place in the cache, and the pages of a prefix that is there already."""
        sequence.handle = self._model.create()
        if sequence.prompt_scores is None:
            sequence.cached = self._model.reuse_prefix(sequence.handle, sequence.tokens)
        sequence.borrowed = sequence.cached % self._page != 0

    def close(self, sequence: Sequence) -> None:
        """Give its pages back; its tokens stay and can be computed again."""
        if sequence.handle is not None:
            self._model.free(sequence.handle)
        sequence.handle, sequence.cached, sequence.borrowed = None, 0, False

    def needed(self, sequence: Sequence, count: int) -> int:
        """Pages that its next `count` tokens take, a copy of a borrowed one included."""
        before = -(-sequence.cached // self._page)
        after = -(-(sequence.cached + count) // self._page)
        return after - before + (sequence.borrowed and count > 0)

    def fitting(self, sequence: Sequence, count: int, pages: int) -> int:
        """How many of its next `count` tokens fit into `pages` more pages."""
        pages -= sequence.borrowed
        if pages < 0:
            return 0
        room = -sequence.cached % self._page + pages * self._page
        return min(count, room)
