"""One HTTP request's sequences on the engine, awaited from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request as HttpRequest

from graphc.llm.llm import LLM
from graphc.llm.sequence import FinishReason
from graphc.llm.sequence import Sequence as Request
from graphc.llm.server.errors import RequestError, from_graphc
from graphc.llm.server.protocol import Job
from graphc.llm.server.responses import Reply
from graphc.llm.server.worker import Worker


class Exchange:
    """Puts a job's sequences on the engine; whatever ends the exchange early aborts them."""

    def __init__(self, llm: LLM, worker: Worker, model: str, job: Job) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        for prompt in job.prompts:
            llm.engine.check_prompt(prompt)
        seed = job.params.seed
        self._requests = [
            llm.request(
                prompt,
                job.params if seed is None else job.params.but(seed=seed + choice),
                score_prompt=job.echo and job.params.logprobs is not None,
                listener=self._tell,
            )
            for prompt in job.prompts
            for choice in range(job.choices)
        ]
        self._reply = Reply(job, model, llm.tokenizer, self._requests)
        worker.wake()

    async def whole(self, http: HttpRequest) -> dict[str, Any] | None:
        """The answer at once; None when the client has gone."""
        gone = asyncio.create_task(_disconnected(http))
        try:
            while not all(request.finished for request in self._requests):
                self._changed.clear()
                news = asyncio.create_task(self._changed.wait())
                if all(request.finished for request in self._requests):
                    news.cancel()
                    break
                await asyncio.wait({news, gone}, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    news.cancel()
                    return None
            for request in self._requests:
                self._check(request)
            return self._reply.whole()
        finally:
            gone.cancel()
            self._abort()

    async def events(self) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        opened: set[int] = set()
        closed: set[int] = set()
        try:
            while len(closed) < len(self._requests):
                self._changed.clear()
                for index, request in enumerate(self._requests):
                    if index not in closed:
                        for chunk in self._news(index, request, opened, closed):
                            yield _event(chunk)
                if len(closed) < len(self._requests):
                    await self._changed.wait()
            if self._reply.job.with_usage:
                yield _event(self._reply.totals())
        except RequestError as error:
            yield _event(error.record())
        finally:
            self._abort()
        yield "data: [DONE]\n\n"

    def _news(
        self, index: int, request: Request, opened: set[int], closed: set[int]
    ) -> list[dict[str, Any]]:
        """Chunks for what a sequence gave since the last time."""
        finished = request.finished  # before its pieces are read, or the last would be missed
        chunks = []
        if index not in opened and (request.pieces or finished):
            opened.add(index)
            chunks.append(self._reply.opening(index))
        while request.pieces:
            chunks.append(self._reply.piece(index, request.pieces.popleft()))
        if finished:
            self._check(request)
            closed.add(index)
            chunks.append(self._reply.closing(index))
        return [chunk for chunk in chunks if chunk is not None]

    def _check(self, request: Request) -> None:
        """RequestError for a sequence that did not end as it should."""
        if request.error is not None:
            raise from_graphc(request.error)
        if request.finish_reason == FinishReason.ABORT:
            if self._worker.failure is not None:
                raise RequestError("the engine has failed: see the server's log", status=500)
            raise RequestError("the server is shutting down", status=503)

    def _tell(self, _request: Request) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self._changed.set)

    def _abort(self) -> None:
        left = [request for request in self._requests if not request.finished]
        for request in left:
            self._worker.engine.abort(request)
        if left:
            self._worker.wake()


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _event(record: dict[str, Any]) -> str:
    return f"data: {json.dumps(record, ensure_ascii=False, separators=(',', ':'))}\n\n"
