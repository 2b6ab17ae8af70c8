"""Listens on a socket until it is told to end; then what runs may finish first."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable
from types import FrameType
from typing import Final

from graphc.errors import ConfigError, ToolError
from graphc.llm.llm import LLM

LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]", "::1")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def serve(
    llm: LLM,
    *,
    model: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key: str | None = None,
    queue: int = 256,
    grace_seconds: int = 30,
    ready: Callable[[str], None] = print,
) -> None:
    """Answer requests until SIGINT or SIGTERM; `ready` is told the address once it is open.

    A loopback address answers only to loopback names, so that no page in a browser can reach it
    through a name of its own. On a signal no request is taken any more; those that run have
    `grace_seconds` to end.
    """
    try:
        import uvicorn

        from graphc.llm.server.app import Server, Settings
    except ImportError as error:
        raise ToolError(
            f"serving needs more packages: pip install 'graphc[serve]' ({error})"
        ) from (error)
    hosts = LOOPBACK if is_loopback(host) else ()
    server = Server(llm, Settings(model, api_key=api_key, hosts=hosts, queue=queue))
    with _listen(host, port) as listener:
        config = uvicorn.Config(
            server.app(),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=grace_seconds,
            server_header=False,
        )
        name = f"[{host}]" if ":" in host else host
        ready(f"http://{name}:{listener.getsockname()[1]}")
        # uvicorn takes the signals itself and repeats them in the end to whom they belonged.
        before = {number: signal.signal(number, _ignore) for number in _SIGNALS}
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _ignore(_number: int, _frame: FrameType | None) -> None:
    pass


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --host or --port"
        ) from error
    return listener
