"""Answers in the shapes of OpenAI's API: whole ones, chunks of a stream, log-probabilities."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphc.llm.sequence import Alternative, Piece
from graphc.llm.sequence import Sequence as Request
from graphc.llm.server.protocol import Job
from graphc.llm.tokenizer import Tokenizer


@dataclass
class Reply:
    """One request's answer in the making; `requests` are its sequences in order of choices."""

    job: Job
    model: str
    tokenizer: Tokenizer
    requests: Sequence[Request]
    created: int = field(default_factory=lambda: int(time.time()))
    id: str = ""

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.job.chat else 'cmpl'}-{uuid.uuid4().hex}"

    def usage(self) -> dict[str, int]:
        prompt = sum(map(len, self.job.prompts))
        answer = sum(request.generated for request in self.requests)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": answer,
            "total_tokens": prompt + answer,
        }

    def whole(self) -> dict[str, Any]:
        """The answer at once."""
        choices = [self._choice(n, request) for n, request in enumerate(self.requests)]
        return {**self._head(False), "choices": choices, "usage": self.usage()}

    def opening(self, index: int) -> dict[str, Any] | None:
        """The first chunk of a choice: the role of a chat, the prompt of an echo."""
        if self.job.chat:
            return self._chunk(index, {"delta": {"role": "assistant", "content": ""}})
        if self.job.echo:
            request = self.requests[index]
            return self._chunk(index, {"text": self._echo(request)}, self._scores(request))
        return None

    def piece(self, index: int, piece: Piece) -> dict[str, Any] | None:
        """A chunk for a piece; None when it would say nothing."""
        wants = self.job.params.logprobs is not None and piece.token is not None
        if not piece.text and not wants:
            return None
        logprobs = self._logprobs([piece]) if wants else None
        if self.job.chat:
            return self._chunk(index, {"delta": {"content": piece.text}}, logprobs)
        return self._chunk(index, {"text": piece.text}, logprobs)

    def closing(self, index: int) -> dict[str, Any]:
        """The last chunk of a choice."""
        reason = self.requests[index].finish_reason
        body: dict[str, Any] = {"delta": {}} if self.job.chat else {"text": ""}
        return self._chunk(index, {**body, "finish_reason": reason.value if reason else None})

    def totals(self) -> dict[str, Any]:
        """The chunk after all others, when the usage is wanted."""
        return {**self._head(True), "choices": [], "usage": self.usage()}

    def _head(self, stream: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.job.chat else "text_completion"
        return {
            "id": self.id,
            "object": kind + (".chunk" if stream and self.job.chat else ""),
            "created": self.created,
            "model": self.model,
        }

    def _chunk(self, index: int, body: dict[str, Any], logprobs: Any = None) -> dict[str, Any]:
        choice = {"index": index, "logprobs": logprobs, "finish_reason": None, **body}
        usage = {"usage": None} if self.job.with_usage else {}
        return {**self._head(True), "choices": [choice], **usage}

    def _choice(self, index: int, request: Request) -> dict[str, Any]:
        text = "".join(piece.text for piece in request.pieces)
        logprobs = None
        if self.job.params.logprobs is not None:
            logprobs = self._logprobs([p for p in request.pieces if p.token is not None])
        reason = request.finish_reason
        end = {"finish_reason": reason.value if reason else None}
        if self.job.chat:
            message = {"role": "assistant", "content": text, "refusal": None}
            return {"index": index, "message": message, "logprobs": logprobs, **end}
        if self.job.echo:
            text = self._echo(request) + text
            scores = self._scores(request)
            if scores is not None and logprobs is not None:
                logprobs = _joined(scores, logprobs)
        return {"index": index, "text": text, "logprobs": logprobs, **end}

    def _echo(self, request: Request) -> str:
        prompt: list[int] = request.tokens[: request.prompt_length].tolist()
        return self.tokenizer.decode(prompt)

    def _logprobs(self, pieces: Iterable[Piece]) -> dict[str, Any]:
        rows = [
            (piece.token, piece.logprob, piece.alternatives)
            for piece in pieces
            if piece.token is not None
        ]
        if self.job.chat:
            content = [
                {**self._token(token, logprob), "top_logprobs": [self._token(*a) for a in others]}
                for token, logprob, others in rows
            ]
            return {"content": content, "refusal": None}
        return self._table(rows)

    def _scores(self, request: Request) -> dict[str, Any] | None:
        """Log-probabilities of the prompt's own tokens; the first has none."""
        if request.prompt_scores is None:
            return None
        prompt: list[int] = request.tokens[: request.prompt_length].tolist()
        scores = [(None, ()), *request.prompt_scores]
        return self._table(
            [(t, logprob, others) for t, (logprob, others) in zip(prompt, scores, strict=True)]
        )

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.tokenizer.spelling(token)
        # A token that is a part of a character has no text of its own.
        encoded = None if "�" in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": encoded}

    def _table(
        self, rows: Iterable[tuple[int, float | None, tuple[Alternative, ...]]]
    ) -> dict[str, Any]:
        """The four lists of /v1/completions."""
        table: dict[str, Any] = {
            "tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": [],
        }  # fmt: skip
        offset = 0
        for token, logprob, others in rows:
            text = self.tokenizer.spelling(token)
            table["tokens"].append(text)
            table["token_logprobs"].append(logprob)
            best = {self.tokenizer.spelling(other): value for other, value in others}
            table["top_logprobs"].append(best if logprob is not None else None)
            table["text_offset"].append(offset)
            offset += len(text)
        return table


def _joined(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    start = 0
    if first["tokens"]:
        start = first["text_offset"][-1] + len(first["tokens"][-1])
    moved = {**second, "text_offset": [start + offset for offset in second["text_offset"]]}
    return {name: first[name] + moved[name] for name in first}
