"""The routes: completions, chat completions, models, health and metrics."""

from __future__ import annotations

import contextlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from graphc.errors import ConfigError, GraphcError
from graphc.llm.llm import LLM
from graphc.llm.server import metrics, protocol
from graphc.llm.server.errors import RequestError, from_graphc
from graphc.llm.server.exchange import Exchange
from graphc.llm.server.protocol import Job
from graphc.llm.server.worker import Worker

Parse = Callable[[LLM, str, Mapping[str, Any]], Job]


@dataclass(frozen=True)
class Settings:
    """`hosts` are the names in a request's Host header that are answered; empty: any."""

    model: str
    api_key: str | None = None
    hosts: tuple[str, ...] = ()
    body_bytes: int = 4 << 20
    queue: int = 256  # sequences that may wait
    choices: int = 32  # sequences that one request may take

    def __post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise ConfigError("the API key is empty or not ASCII: choose another")
        for name in ("body_bytes", "queue", "choices"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: expected at least 1")


class Server:
    """Handlers over one model and its worker."""

    def __init__(self, llm: LLM, settings: Settings) -> None:
        self._llm = llm
        self._settings = settings
        self._started = int(time.time())
        self.worker = Worker(llm.engine)

    def app(self) -> Starlette:
        """The ASGI application; its lifespan starts and stops the worker."""
        routes = [
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
        ]
        hosts = self._settings.hosts
        guard = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))] if hosts else []
        handlers: Any = {
            RequestError: _answer_error,
            GraphcError: _answer_error,
            HTTPException: _answer_error,
        }
        return Starlette(
            routes=routes, middleware=guard, exception_handlers=handlers, lifespan=self._lifespan
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.worker.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.worker.stop)

    async def completions(self, http: Request) -> Response:
        return await self._answer(http, protocol.completion)

    async def chat(self, http: Request) -> Response:
        return await self._answer(http, protocol.chat_completion)

    async def models(self, http: Request) -> Response:
        self._authorise(http)
        return JSONResponse({"object": "list", "data": [self._model_record()]})

    async def model(self, http: Request) -> Response:
        self._authorise(http)
        if http.path_params["model"] != self._settings.model:
            raise RequestError(
                f"this server has {self._settings.model!r} only", status=404, code="model_not_found"
            )
        return JSONResponse(self._model_record())

    async def health(self, _http: Request) -> Response:
        """Open to all, so that a supervisor needs no key."""
        ok = self.worker.failure is None
        return JSONResponse({"status": "ok" if ok else "failed"}, status_code=200 if ok else 503)

    async def metrics(self, http: Request) -> Response:
        self._authorise(http)
        return PlainTextResponse(metrics.text(self._llm.engine))

    async def _answer(self, http: Request, parse: Parse) -> Response:
        self._authorise(http)
        if self.worker.failure is not None:
            raise RequestError("the engine has failed: see the server's log", status=503)
        body = await self._body(http)
        job = await run_in_threadpool(parse, self._llm, self._settings.model, body)
        self._admit(job)
        exchange = Exchange(self._llm, self.worker, self._settings.model, job)
        if job.stream:
            headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
            return StreamingResponse(
                exchange.events(), media_type="text/event-stream", headers=headers
            )
        record = await exchange.whole(http)
        if record is None:  # nobody is left to read it
            return Response(status_code=499)
        return JSONResponse(record)

    def _admit(self, job: Job) -> None:
        if job.total > self._settings.choices:
            raise RequestError(
                f"the request asks for {job.total} answers: this server gives at most "
                f"{self._settings.choices} at once",
                param="n",
            )
        waiting = self._llm.engine.queued
        if waiting + job.total > self._settings.queue:
            raise RequestError(f"the queue is full ({waiting} wait): try again later", status=429)

    def _authorise(self, http: Request) -> None:
        key = self._settings.api_key
        if key is None:
            return
        scheme, _, given = http.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), key.encode())
        if scheme.lower() != "bearer" or not right:
            raise RequestError(
                "wrong or missing API key: send Authorization: Bearer KEY",
                status=401,
                code="invalid_api_key",
            )

    async def _body(self, http: Request) -> dict[str, Any]:
        # A page in a browser can send any other type here without asking first.
        if http.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise RequestError("expected Content-Type: application/json", status=415)
        limit = self._settings.body_bytes
        data = bytearray()
        try:
            async for part in http.stream():
                data += part
                if len(data) > limit:
                    raise RequestError(f"the request is larger than {limit} bytes", status=413)
            body = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the request is not JSON: {error}") from error
        except ClientDisconnect as error:
            raise RequestError("the client has gone") from error
        if not isinstance(body, dict):
            raise RequestError("the request is no JSON object")
        return body

    def _model_record(self) -> dict[str, Any]:
        return {
            "id": self._settings.model,
            "object": "model",
            "created": self._started,
            "owned_by": "graphc",
            "max_model_len": self._llm.engine.limit,
        }


async def _answer_error(_http: Request, error: Exception) -> Response:
    if isinstance(error, GraphcError):
        error = from_graphc(error)
    if isinstance(error, HTTPException):
        error = RequestError(error.detail, status=error.status_code)
    assert isinstance(error, RequestError), error
    headers = {"Retry-After": "1"} if error.status == 429 else {}
    return JSONResponse(error.record(), status_code=error.status, headers=headers)
