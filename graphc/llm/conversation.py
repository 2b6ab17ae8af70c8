"""A conversation that grows turn by turn, and how fast its answers came."""

from __future__ import annotations

import time
from collections.abc import Iterator

from graphc.llm.llm import LLM
from graphc.llm.sampling import SamplingParams


class Conversation:
    """Messages so far; what turns share is computed once, as the cache finds it again."""

    def __init__(
        self,
        llm: LLM,
        params: SamplingParams,
        *,
        system: str | None = None,
        template: str | None = None,
    ) -> None:
        self._llm = llm
        self._params = params
        self._template = template
        self._system = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._system)
        self.ended_by_itself = True
        self._prompt_tokens = self._answer_tokens = 0
        self._first = self._total = 0.0

    def reset(self) -> None:
        """Forget all but what the model was told at first."""
        self.messages = list(self._system)

    def ask(self, text: str) -> Iterator[str]:
        """The answer to one more message, in pieces; it becomes part of the conversation.

        A conversation that is refused (too long, for instance) stays as it was before.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        tokens = self._llm.chat_tokens(messages, template=self._template)
        request = self._llm.request(tokens, self._params)
        self.ended_by_itself = True
        start = time.perf_counter()
        self._first = 0.0
        answer = ""
        for piece in self._llm.pieces(request):
            if not self._first:
                self._first = time.perf_counter() - start
            answer += piece.text
            yield piece.text
            if not self.ended_by_itself:
                break
        self._total = time.perf_counter() - start
        self._prompt_tokens, self._answer_tokens = len(tokens), request.generated
        self.messages = [*messages, {"role": "assistant", "content": answer}]

    def stop(self) -> None:
        """End the answer in progress after the piece that was just given."""
        self.ended_by_itself = False

    def speed(self) -> str:
        """A line on the last answer."""
        later = self._total - self._first
        rate = (self._answer_tokens - 1) / later if later > 0 and self._answer_tokens > 1 else 0.0
        return (
            f"{self._answer_tokens} tokens, {rate:.1f} tokens/s; first of them after "
            f"{self._first:.2f} s ({self._prompt_tokens} tokens of prompt)"
        )
