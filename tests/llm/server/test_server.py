"""What a server must survive: clients that vanish, floods, large bodies, faults, its own end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fake_model import FakeModel
from server.running import Running, running
from support import CommandLine

from graphc.errors import ConfigError
from graphc.llm.chunk import Chunk, Logits
from graphc.llm.llm import LLM
from graphc.llm.server.app import Settings
from graphc.llm.server.serve import is_loopback, serve


class SlowModel(FakeModel):
    """Waits in each step until it is let go, or a moment."""

    broken = False

    def step(self, chunks: list[Chunk]) -> Logits:
        if self.broken:
            raise RuntimeError("planted")
        time.sleep(0.005)
        return super().step(chunks)


@pytest.fixture
def served(folder: Path) -> Iterator[Running]:
    llm = LLM(folder, model=SlowModel(vocabulary=600, pages=400), max_sequences=2)
    settings = Settings("fake", body_bytes=20000, queue=4, hosts=("127.0.0.1",))
    with running(llm, settings) as place:
        yield place


def test_a_client_that_vanishes_from_a_stream(served: Running) -> None:
    body = {"prompt": "fox", "stream": True, "max_tokens": 200, "ignore_eos": True}
    with httpx.stream("POST", f"{served.url}/v1/completions", json=body) as response:
        next(response.iter_lines())
    served.wait_until_idle()
    assert served.llm.engine.counters.answer_tokens < 150


def test_a_client_that_vanishes_while_waiting(served: Running) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{served.url}/v1/completions",
            json={"prompt": "fox", "max_tokens": 200, "ignore_eos": True},
            timeout=0.1,
        )
    served.wait_until_idle()
    assert served.llm.engine.counters.answer_tokens < 150


def test_a_flood_is_turned_away(served: Running) -> None:
    statuses = []

    def work() -> None:
        done = served.post("/v1/completions", prompt="fox", max_tokens=60, ignore_eos=True)
        statuses.append((done.status_code, done.headers.get("retry-after")))

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert {status for status, _ in statuses} == {200, 429}
    assert (429, "1") in statuses
    served.wait_until_idle()


def test_bodies_that_are_no_requests(served: Running) -> None:
    url = f"{served.url}/v1/completions"
    kind = {"content-type": "application/json"}
    assert httpx.post(url, content=b"{" * 30000, headers=kind).status_code == 413
    for content in (b"", b"{", b"[]", b"\xff", b"[" * 10000, b'{"prompt": "\\ud800"}'):
        done = httpx.post(url, content=content, headers=kind)
        assert done.status_code == 400, content
        assert done.json()["error"]["message"]
    assert httpx.post(url, content=b'{"prompt": "x"}').status_code == 415
    assert httpx.get(url).status_code == 405
    assert httpx.get(f"{served.url}/nowhere").json()["error"]["message"] == "Not Found"


def test_a_foreign_host_name_is_refused(served: Running) -> None:
    done = httpx.get(f"{served.url}/v1/models", headers={"host": "evil.example"})
    assert done.status_code == 400


def test_health_and_metrics(served: Running) -> None:
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok"}
    served.post("/v1/completions", prompt="fox", max_tokens=5, ignore_eos=True)
    lines = httpx.get(f"{served.url}/metrics").text.splitlines()
    values = dict(line.split() for line in lines if not line.startswith("#"))
    assert values["graphc_answer_tokens_total"] == "5"
    assert values["graphc_requests_total"] == "1" and values["graphc_running"] == "0"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_the_engine_is_an_answer(served: Running) -> None:
    assert isinstance(served.llm.model, SlowModel)
    served.llm.model.broken = True
    assert served.post("/v1/completions", prompt="fox").status_code == 500
    assert served.post("/v1/completions", prompt="fox").status_code == 503
    assert httpx.get(f"{served.url}/health").status_code == 503


def test_nan_logits_are_the_servers_fault(served: Running) -> None:
    assert isinstance(served.llm.model, FakeModel)
    served.llm.model.poison = served.llm.tokenizer.encode("fox")[-1]
    done = served.post("/v1/completions", prompt="fox")
    assert done.status_code == 500 and "not numbers" in done.json()["error"]["message"]
    body = {"prompt": "fox", "stream": True}
    lines = httpx.post(f"{served.url}/v1/completions", json=body).text.split("\n\n")
    assert "not numbers" in json.loads(lines[0].removeprefix("data: "))["error"]["message"]


SERVER = """
import sys, time
sys.path.insert(0, sys.argv.pop(1))
from fake_model import FakeModel
from graphc import cli
from graphc.llm import llm
class Slow(FakeModel):
    def step(self, chunks):
        time.sleep(0.01)
        return super().step(chunks)
llm._open = lambda *_: Slow(vocabulary=600, pages=400)
cli.main()
"""


def test_graphc_serve_ends_what_runs_and_then_itself(folder: Path) -> None:
    tests = str(Path(__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, tests, "serve", str(folder), "--port", "0", "--name", "m"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "GRAPHC_API_KEY": "secret"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        assert line[:3] == ["serving", "m", "at"]
        results = []

        def work() -> None:
            results.append(
                httpx.post(
                    f"{line[3]}/v1/completions",
                    json={"model": "m", "prompt": "fox", "max_tokens": 40, "ignore_eos": True},
                    headers={"authorization": "Bearer secret"},
                    timeout=30,
                )
            )

        assert httpx.get(f"{line[3]}/v1/models").status_code == 401
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.15)
        process.send_signal(signal.SIGTERM)
        thread.join(20)
        assert results[0].status_code == 200
        assert results[0].json()["usage"]["completion_tokens"] == 40
        assert process.wait(20) == 0
        assert process.stderr is not None and process.stderr.read() == ""
    finally:
        process.kill()


def test_a_port_that_is_taken(graphc_cli: CommandLine, faked: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port}" in graphc_cli.refused("serve", faked, "--port", port)


def test_settings_that_cannot_be(folder: Path) -> None:
    llm = LLM(folder, model=FakeModel(vocabulary=600))
    with pytest.raises(ConfigError, match="API key"):
        serve(llm, model="m", api_key=" ")
    with pytest.raises(ConfigError, match="queue"):
        serve(llm, model="m", queue=0)
    assert is_loopback("localhost") and is_loopback("::1") and is_loopback("127.0.0.2")
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")
