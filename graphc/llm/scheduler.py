"""Iteration-level scheduling (Orca, OSDI 2022) with chunked prefill (Sarathi-Serve, OSDI 2024).

Every step is planned afresh under a token budget: first one token for each answer in progress, so
that no prompt stalls it, then chunks of prompts, the oldest first, then new requests in order of
arrival. When pages run out the newest sequence gives its own back and starts over later. So the
oldest sequence always moves on, and every request ends.
"""

from __future__ import annotations

from collections import deque

from graphc.errors import ConfigError
from graphc.llm.block_manager import BlockManager
from graphc.llm.sequence import Sequence


class Scheduler:
    """Queues; both are in order of arrival, and everything that runs came before what waits."""

    def __init__(self, blocks: BlockManager, token_budget: int, max_sequences: int) -> None:
        if not 1 <= max_sequences <= token_budget:
            raise ConfigError(
                f"max_sequences is {max_sequences}: expected 1 to the token budget, {token_budget}"
            )
        self._blocks = blocks
        self._token_budget = token_budget
        self._max_sequences = max_sequences
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._plan: dict[Sequence, int] = {}  # of the step being planned, as are the next two
        self._tokens_left = 0
        self._pages_left = blocks.free

    def schedule(self, *, admit: bool = True) -> dict[Sequence, int]:
        """How many tokens of which sequences the next step takes.

        Empty when nothing is left, or when the oldest finds no page though nobody else has any.
        """
        self._plan = {}
        self._tokens_left = self._token_budget
        self._pages_left = self._blocks.free
        answering = [sequence for sequence in self.running if sequence.uncached == 1]
        reading = [sequence for sequence in self.running if sequence.uncached > 1]
        for sequence in (*answering, *reading):
            self._continue(sequence)
        while admit and self.waiting and self._admit():
            pass
        return self._plan

    @property
    def pages_left(self) -> int:
        """Pages that the last plan left free."""
        return self._pages_left

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence that has ended out of its queue."""
        if sequence.handle is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self._blocks.close(sequence)

    def preempt_newest(self) -> bool:
        """Send the newest sequence back for its pages; False when only one runs."""
        if len(self.running) < 2:
            return False
        self._preempt(self.running[-1])
        return True

    def _continue(self, sequence: Sequence) -> None:
        """Plan the next tokens of a sequence that runs, at the expense of newer ones."""
        count = min(sequence.uncached, sequence.longest_chunk, self._tokens_left)
        if sequence.handle is None or count == 0:  # it was preempted a moment ago
            return
        while not (fitting := self._blocks.fitting(sequence, count, self._pages_left)):
            newest = self.running[-1]
            if newest is sequence:
                if len(self.running) > 1:
                    self._preempt(sequence)  # the others can use its pages meanwhile
                return
            self._preempt(newest)
        self._take(sequence, fitting)

    def _admit(self) -> bool:
        """Start the first that waits, if all of it fits beside what the others still need."""
        if self._tokens_left == 0 or len(self.running) >= self._max_sequences:
            return False
        reserved = sum(self._still_needed(other) for other in self.running)
        if self.running and reserved >= self._pages_left:
            return False
        sequence = self.waiting[0]
        self._blocks.open(sequence)
        self._count_pages()  # a prefix that was kept for later is in use now
        needed = self._blocks.needed(sequence, sequence.uncached)
        if self.running and needed > self._pages_left - reserved:
            self._blocks.close(sequence)
            self._count_pages()
            return False
        self.waiting.popleft()
        self.running.append(sequence)
        count = min(sequence.uncached, sequence.longest_chunk, self._tokens_left)
        if fitting := self._blocks.fitting(sequence, count, self._pages_left):
            self._take(sequence, fitting)
        return fitting > 0

    def _still_needed(self, sequence: Sequence) -> int:
        """Pages beyond those planned: for the rest of its tokens, and one to go on with."""
        needed = self._blocks.needed
        return needed(sequence, sequence.uncached) + 1 - needed(sequence, self._planned(sequence))

    def _planned(self, sequence: Sequence) -> int:
        return self._plan.get(sequence, 0)

    def _take(self, sequence: Sequence, count: int) -> None:
        self._plan[sequence] = count
        self._tokens_left -= count
        self._pages_left -= self._blocks.needed(sequence, count)

    def _count_pages(self) -> None:
        planned = (self._blocks.needed(sequence, count) for sequence, count in self._plan.items())
        self._pages_left = self._blocks.free - sum(planned)

    def _preempt(self, sequence: Sequence) -> None:
        self._tokens_left += self._plan.pop(sequence, 0)
        self._blocks.close(sequence)
        self._count_pages()
        self.running.remove(sequence)
        self.waiting.appendleft(sequence)
        self.preemptions += 1
