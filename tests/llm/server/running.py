"""A server in a thread of this process, on a free port of the loopback."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import uvicorn

from graphc.llm.llm import LLM
from graphc.llm.server.app import Server, Settings


@dataclass
class Running:
    """Its address without a slash at the end, and what runs there."""

    url: str
    llm: LLM
    server: Server

    def post(self, path: str, **body: object) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json=body, timeout=30)

    def wait_until_idle(self, seconds: float = 10.0) -> None:
        """Until no request is left; AssertionError when one stays."""
        end = time.monotonic() + seconds
        while self.llm.engine.has_work:
            assert time.monotonic() < end, "a request was left behind"
            time.sleep(0.005)
        with self.llm.engine.lock:
            assert self.llm.model.pages_free == self.llm.model.pages_total


@contextmanager
def running(llm: LLM, settings: Settings) -> Iterator[Running]:
    """Serve until the block ends."""
    server = Server(llm, settings)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.app(), log_level="warning", timeout_graceful_shutdown=5)
    http = uvicorn.Server(config)
    thread = threading.Thread(target=http.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not http.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", llm, server)
    finally:
        http.should_exit = True
        thread.join(20)
        listener.close()
    assert not thread.is_alive()
