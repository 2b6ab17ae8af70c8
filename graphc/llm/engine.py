"""The engine: many requests through one model, a step at a time."""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphc.errors import CacheExhaustedError, GraphcError, InputError, NumericsError
from graphc.llm.block_manager import BlockManager
from graphc.llm.chunk import Logits, PagedModel, Tokens
from graphc.llm.logprobs import alternatives
from graphc.llm.rows import chunk_of, rows_of, score_prompt
from graphc.llm.sampling import SamplingParams
from graphc.llm.scheduler import Scheduler
from graphc.llm.sequence import Alternative, FinishReason, Piece, Sequence
from graphc.llm.text_stream import TextStream


@dataclass
class Counters:
    """Totals since the engine began."""

    steps: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    requests: int = 0


class Engine:
    """Runs requests over a paged model; `add`, `abort` and `advance` may be called from any thread.

    Whoever waits for an answer drives the steps (`advance`), so no thread of its own is needed;
    requests of several threads share every step.
    """

    def __init__(
        self,
        model: PagedModel,
        *,
        stop_tokens: Iterable[int] = (),
        token_budget: int = 512,
        max_sequences: int = 64,
    ) -> None:
        self.model = model
        self.stop_tokens = frozenset(stop_tokens)
        self.counters = Counters()
        self.blocks = BlockManager(model)
        self.scheduler = Scheduler(self.blocks, token_budget, min(max_sequences, token_budget))
        self.lock = threading.RLock()  # held during a step, and by whoever uses the model itself
        self._arrivals: deque[Sequence] = deque()
        self._aborted: deque[Sequence] = deque()

    @property
    def limit(self) -> int:
        """Tokens of prompt and answer together."""
        return min(self.model.max_context, self.blocks.capacity)

    @property
    def has_work(self) -> bool:
        queues = (self.scheduler.running, self.scheduler.waiting, self._arrivals, self._aborted)
        return any(queues)

    @property
    def queued(self) -> int:
        """Requests that have not begun, or begin anew."""
        return len(self.scheduler.waiting) + len(self._arrivals)

    def add(
        self,
        prompt: Iterable[int],
        params: SamplingParams,
        *,
        text: TextStream | None = None,
        score_prompt: bool = False,
        listener: Callable[[Sequence], None] | None = None,
    ) -> Sequence:
        """Queue a request; InputError when its prompt can never run."""
        tokens = self.check_prompt(prompt)
        if params.seed is None:
            params = params.but(seed=random.getrandbits(63))
        sequence = Sequence(
            tokens,
            params,
            stop_tokens=(*params.stop_token_ids, *(() if params.ignore_eos else self.stop_tokens)),
            text=text,
            score_prompt=score_prompt,
            listener=listener,
        )
        self._arrivals.append(sequence)
        return sequence

    def check_prompt(self, prompt: Iterable[int]) -> Tokens:
        """The prompt as int32 [tokens]; InputError says why it cannot be one."""
        given = np.asarray(prompt if isinstance(prompt, np.ndarray) else list(prompt))
        if given.size == 0:
            raise InputError("the prompt is empty: give at least one token")
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise InputError(f"the prompt is {given.dtype}{list(given.shape)}: expected token ids")
        low, high = int(given.min()), int(given.max())
        if low < 0 or high >= self.model.vocabulary_size:
            raise InputError(
                f"the prompt has token {low if low < 0 else high}: the vocabulary has 0 to "
                f"{self.model.vocabulary_size - 1}"
            )
        if len(given) > self.model.max_context:
            raise InputError(
                f"the prompt has {len(given)} tokens: the model's context holds "
                f"{self.model.max_context}; shorten it or compile with a larger --max-context"
            )
        if len(given) > self.blocks.capacity:
            raise CacheExhaustedError(
                f"the prompt has {len(given)} tokens: the cache holds {self.blocks.capacity}; "
                "open the model with more cache_tokens"
            )
        return given.astype(np.int32)

    def abort(self, sequence: Sequence) -> None:
        """End a request at the next step; one that has ended already stays as it is."""
        self._aborted.append(sequence)

    def settle(self) -> None:
        """Take in new requests and let aborted ones go, without a step."""
        with self.lock:
            while self._arrivals:
                self.scheduler.waiting.append(self._arrivals.popleft())
                self.counters.requests += 1
            while self._aborted:
                sequence = self._aborted.popleft()
                if not sequence.finished:
                    self._end(sequence, FinishReason.ABORT)
                    _tell(sequence)

    def advance(self, sequence: Sequence) -> None:
        """Let a step happen for `sequence`, unless another thread's step has just ended it."""
        with self.lock:
            if not sequence.finished:
                self.step()

    def step(self) -> list[Sequence]:
        """One step of the model for all that can move; returns the sequences that did."""
        with self.lock:
            plan = self._schedule()
            plan, logits = self._run(plan)
            self._append(self._sample(plan, logits))
            return self._finish(plan)

    def _schedule(self) -> dict[Sequence, int]:
        self.settle()
        plan = self.scheduler.schedule()
        while not plan and self.scheduler.running:  # somebody else holds the pages
            self._exhausted(self.scheduler.running[0])
            plan = self.scheduler.schedule()
        return plan

    def _run(self, plan: dict[Sequence, int]) -> tuple[dict[Sequence, int], Logits | None]:
        """The model's step; if it needs more pages than were counted, one without the newest."""
        while plan:
            try:
                return plan, self.model.step([chunk_of(s, count) for s, count in plan.items()])
            except CacheExhaustedError:
                if not self.scheduler.preempt_newest():
                    self._exhausted(self.scheduler.running[0])
                plan = self.scheduler.schedule(admit=False)
        return plan, None

    def _exhausted(self, sequence: Sequence) -> None:
        error = CacheExhaustedError(
            f"the cache of {self.blocks.capacity} tokens is exhausted at token {sequence.length}: "
            "open the model with more cache_tokens, or free the sequences made by hand"
        )
        self._end(sequence, FinishReason.ERROR, error)
        _tell(sequence)

    def _sample(self, plan: dict[Sequence, int], logits: Logits | None) -> list[_Draw]:
        """Account for what the step put into the cache; draw where it reached the last token."""
        drawn = []
        row = 0
        for sequence, count in plan.items():
            rows = rows_of(sequence, count)
            sequence.cached += count
            sequence.borrowed = False
            if not rows:
                continue
            assert logits is not None
            if sequence.scoring:
                score_prompt(sequence, logits[row : row + rows])
            row += rows
            if not sequence.uncached and (draw := self._draw(sequence, logits[row - 1])):
                drawn.append(draw)
        return drawn

    def _draw(self, sequence: Sequence, logits: Logits) -> _Draw | None:
        params = sequence.params
        if sequence.generated == 0:
            self.counters.prompt_tokens += sequence.prompt_length
        if params.max_tokens == 0:
            self._end(sequence, FinishReason.LENGTH)
            return None
        try:
            token, logprob = self.model.sample(logits, params, sequence.tokens, sequence.generated)
        except GraphcError as error:
            self._end(sequence, FinishReason.ERROR, error)
            return None
        if math.isnan(logprob):
            self._end(sequence, FinishReason.ERROR, _not_numbers(sequence))
            return None
        return _Draw(sequence, token, logprob, alternatives(logits, params.logprobs or 0))

    def _append(self, drawn: list[_Draw]) -> None:
        """Add the tokens and their text to the answers; end those that are complete."""
        self.counters.answer_tokens += len(drawn)
        for sequence, token, logprob, others in drawn:
            ends = token in sequence.stop_tokens
            sequence.append(token)
            text = sequence.text.push(token) if sequence.text is not None and not ends else ""
            sequence.pieces.append(Piece(text, token, logprob, others))
            most = sequence.params.max_tokens
            if ends or (sequence.text is not None and sequence.text.stopped):
                self._end(sequence, FinishReason.STOP)
            elif sequence.generated == most or sequence.length >= self.limit:
                self._end(sequence, FinishReason.LENGTH)

    def _finish(self, plan: dict[Sequence, int]) -> list[Sequence]:
        """Tell the readers of what moved; the sequences that ended have left their queues."""
        self.counters.steps += bool(plan)
        for sequence in plan:
            _tell(sequence)
        return list(plan)

    def _end(
        self, sequence: Sequence, reason: FinishReason, error: GraphcError | None = None
    ) -> None:
        self.scheduler.finish(sequence)
        sequence.finish(reason, error)


class _Draw(NamedTuple):
    sequence: Sequence
    token: int
    logprob: float
    alternatives: tuple[Alternative, ...]


def _tell(sequence: Sequence) -> None:
    if sequence.listener is not None:
        sequence.listener(sequence)


def _not_numbers(sequence: Sequence) -> GraphcError:
    return NumericsError(
        f"the logits after token {sequence.length} are not numbers: verify the artifact against "
        "its model, or compile it without quantisation"
    )
