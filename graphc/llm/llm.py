"""`graphc.LLM`: an artifact of a language model with text at both ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast, overload

import numpy as np

from graphc.errors import InputError, UnsupportedError
from graphc.llm.chat import ChatTemplate, Message
from graphc.llm.chunk import ALL_ROWS, Chunk, Logits, PagedModel
from graphc.llm.engine import Engine
from graphc.llm.generation_config import GenerationConfig
from graphc.llm.sampling import SamplingParams
from graphc.llm.sequence import Piece
from graphc.llm.sequence import Sequence as Request
from graphc.llm.tokenizer import FILE as TOKENIZER_FILE
from graphc.llm.tokenizer import Tokenizer

Prompt = str | bytes | Sequence[int]
_ROWS_AT_ONCE: Final = 64


@dataclass(frozen=True)
class Answer:
    """What the model wrote; `pieces` has each token with its log-probability.

    `finish_reason` is "stop" (a stop token or string, which `text` leaves out) or "length".
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    prompt_tokens: int
    pieces: tuple[Piece, ...]

    def __str__(self) -> str:
        return self.text


class LLM:
    """A language model ready to answer; may be used from many threads, which share its steps.

    `cache_tokens` is how many tokens of all requests together the cache holds (default: the
    model's). `token_budget` limits a step: larger reads prompts faster, smaller keeps answers that
    run at the same time smoother. `model` takes the place of the compiled one.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        threads: int | None = None,
        cache_tokens: int | None = None,
        token_budget: int = 512,
        max_sequences: int = 64,
        model: PagedModel | None = None,
    ) -> None:
        self.directory = Path(directory)
        self.model = model or _open(self.directory, threads, cache_tokens)
        present = (self.directory / TOKENIZER_FILE).exists()
        self._tokenizer = Tokenizer.open(self.directory) if present else None
        self.chat_template = ChatTemplate.open(self.directory)
        config = GenerationConfig.open(self.directory, self._tokenizer)
        self.defaults = config.defaults
        self.engine = Engine(
            self.model,
            stop_tokens=config.stop_tokens,
            token_budget=token_budget,
            max_sequences=max_sequences,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """ArtifactError when the artifact has none."""
        if self._tokenizer is None:
            self._tokenizer = Tokenizer.open(self.directory)
        return self._tokenizer

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **options: Any
    ) -> Answer: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], params: SamplingParams | None = None, **options: Any
    ) -> list[Answer]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        **options: Any,
    ) -> Answer | list[Answer]:
        """Continue one prompt (text or token ids) or each of a list, all at once.

        `options` are fields of SamplingParams and win over `params`, which wins over the model's
        own defaults. Raises InputError for a prompt that cannot run, before any of them runs.
        """
        if _is_one(prompt):
            return self._answers([self.tokens(cast(Prompt, prompt))], params, options)[0]
        several = cast("Sequence[Prompt]", prompt)
        return self._answers([self.tokens(each) for each in several], params, options)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        template: str | None = None,
        tools: Sequence[Any] | None = None,
        **options: Any,
    ) -> Answer:
        """The model's answer to a conversation, through its own template."""
        tokens = self.chat_tokens(messages, template=template, tools=tools)
        return self._answers([tokens], params, options)[0]

    def stream(
        self,
        prompt: Prompt | None = None,
        params: SamplingParams | None = None,
        *,
        messages: Sequence[Message] | None = None,
        **options: Any,
    ) -> Iterator[Piece]:
        """Pieces of an answer as they come; str(piece) is its text.

        Leaving the iteration ends the request.
        """
        if (prompt is None) == (messages is None):
            raise InputError("stream takes a prompt or messages: give one of the two")
        tokens = self.tokens(prompt) if prompt is not None else self.chat_tokens(messages or ())
        request = self.request(tokens, self.params(params, **options))
        return self.pieces(request)

    def logits(self, tokens: Sequence[int]) -> Logits:
        """Logits [tokens, vocabulary] after each token, computed beside what else runs."""
        checked = self.engine.check_prompt(tokens)
        rows = []
        with self.engine.lock:
            sequence = self.model.create()
            try:
                for start in range(0, len(checked), _ROWS_AT_ONCE):
                    part = checked[start : start + _ROWS_AT_ONCE]
                    rows.append(np.array(self.model.step([Chunk(sequence, part, ALL_ROWS)])))
            finally:
                self.model.free(sequence)
        return np.concatenate(rows)

    def score(self, prompt: Prompt) -> list[float]:
        """The log-probability of each token of a text after its first, given those before it."""
        request = self.engine.add(
            self.tokens(prompt), SamplingParams(max_tokens=0), score_prompt=True
        )
        self._finish([request])
        return [score.logprob for score in request.prompt_scores or ()]

    def embed(self, texts: Sequence[str]) -> Logits:
        """Vectors of texts; UnsupportedError, since a decoder's artifact gives logits only."""
        raise UnsupportedError(
            f"{self.directory} gives logits and no embeddings of {len(texts)} texts: compile an "
            "encoder for that and run it with graphc.load"
        )

    def params(self, params: SamplingParams | None = None, **options: Any) -> SamplingParams:
        """`params`, or the model's defaults, with the options put in."""
        return (params or self.defaults).but(**options)

    def chat_tokens(
        self, messages: Sequence[Message], *, template: str | None = None, tools: Any = None
    ) -> list[int]:
        """A conversation as tokens; the template writes all special ones."""
        text = self.chat_template.render(messages, template=template, tools=tools)
        return self.tokenizer.encode(text, special=False)

    def request(self, tokens: Sequence[int], params: SamplingParams, **more: Any) -> Request:
        """Queue a request on the engine, with its text if there is a tokenizer."""
        if self._tokenizer is None and params.stop:
            self.tokenizer  # noqa: B018 (raises: stop strings need text)
        text = self._tokenizer.stream(params.stop, tokens) if self._tokenizer else None
        return self.engine.add(tokens, params, text=text, **more)

    def pieces(self, request: Request) -> Iterator[Piece]:
        """What a queued request gives, as it comes; leaving the iteration ends it."""
        try:
            while not request.finished or request.pieces:
                while request.pieces:
                    yield request.pieces.popleft()
                self.engine.advance(request)
            if request.error is not None:
                raise request.error
        finally:
            self._abort([request])

    def close(self) -> None:
        """Free the model; later calls fail."""
        close = getattr(self.model, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def tokens(self, prompt: Prompt) -> list[int]:
        """A prompt as token ids, with those that the model wants around a text."""
        if isinstance(prompt, str | bytes):
            return self.tokenizer.encode(prompt)
        return list(prompt)

    def _answers(
        self, prompts: Sequence[list[int]], params: SamplingParams | None, options: dict[str, Any]
    ) -> list[Answer]:
        chosen = self.params(params, **options)
        for prompt in prompts:
            self.engine.check_prompt(prompt)
        requests = [self.request(prompt, chosen) for prompt in prompts]
        self._finish(requests)
        return [_answer(request) for request in requests]

    def _finish(self, requests: Sequence[Request]) -> None:
        """Drive the engine until all have ended; whatever interrupts it ends them too."""
        try:
            for request in requests:
                while not request.finished:
                    self.engine.advance(request)
                if request.error is not None:
                    raise request.error
        finally:
            self._abort(requests)

    def _abort(self, requests: Sequence[Request]) -> None:
        """At once, so that nothing of them is left behind in the cache."""
        left = [request for request in requests if not request.finished]
        for request in left:
            self.engine.abort(request)
        if left:
            self.engine.settle()


def _is_one(prompt: object) -> bool:
    """Text, or a list of token ids; an empty list is a prompt that is refused for it."""
    if isinstance(prompt, str | bytes):
        return True
    if not isinstance(prompt, Sequence | np.ndarray):
        raise InputError(f"the prompt is a {type(prompt).__name__}: expected text or token ids")
    return len(prompt) == 0 or isinstance(prompt[0], int | np.integer)


def _answer(request: Request) -> Answer:
    pieces = tuple(request.pieces)
    reason = request.finish_reason
    assert reason is not None
    return Answer(
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(request.answer),
        finish_reason=reason.value,
        prompt_tokens=request.prompt_length,
        pieces=pieces,
    )


def _open(directory: Path, threads: int | None, cache_tokens: int | None) -> PagedModel:
    from graphc.llm.model import LanguageModel

    return LanguageModel.open(directory, threads=threads, cache_tokens=cache_tokens)
