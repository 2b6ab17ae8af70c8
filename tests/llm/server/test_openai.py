"""OpenAI's own client against the server: what it understands is what its users rely on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from fake_model import FakeModel
from server.running import Running, running

from graphc.llm.llm import LLM
from graphc.llm.server.app import Settings

MESSAGES = [{"role": "user", "content": "fox"}]


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Running]:
    llm = LLM(folder, model=FakeModel(vocabulary=600, pages=400))
    with running(llm, Settings("fake", api_key="secret")) as place:
        yield place


@pytest.fixture(scope="module")
def client(served: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="secret", max_retries=0, timeout=30
    ) as made:
        yield made


@pytest.fixture(scope="module")
def alone(folder: Path) -> LLM:
    return LLM(folder, model=FakeModel(vocabulary=600, pages=400))


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "graphc"
    with pytest.raises(openai.NotFoundError, match="'fake' only"):
        client.models.retrieve("other")


def test_completion(client: openai.OpenAI, alone: LLM) -> None:
    done = client.completions.create(model="fake", prompt="The quick", temperature=0)
    expected = alone.generate("The quick", temperature=0, max_tokens=16)
    (choice,) = done.choices
    assert choice.text == expected.text and choice.finish_reason == expected.finish_reason
    assert choice.logprobs is None and done.object == "text_completion"
    assert done.usage is not None
    assert done.usage.prompt_tokens == expected.prompt_tokens
    assert done.usage.completion_tokens == len(expected.token_ids)


def test_several_prompts_and_choices(client: openai.OpenAI, alone: LLM) -> None:
    done = client.completions.create(
        model="fake", prompt=["The quick", "fox"], n=2, seed=7, max_tokens=8
    )
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3]
    expected = [
        alone.generate(prompt, seed=seed, max_tokens=8).text
        for prompt in ("The quick", "fox")
        for seed in (7, 8)
    ]
    assert [choice.text for choice in done.choices] == expected
    ids = alone.tokenizer.encode("fox")
    by_ids = client.completions.create(model="fake", prompt=ids, seed=7, max_tokens=8)
    assert by_ids.choices[0].text == expected[2]


def test_completion_stream_with_usage(client: openai.OpenAI, alone: LLM) -> None:
    chunks = list(
        client.completions.create(
            model="fake",
            prompt="fox",
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    expected = alone.generate("fox", temperature=0, max_tokens=12)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == expected.text
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    assert reasons[-1] == expected.finish_reason and not any(reasons[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(expected.token_ids)
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_and_its_stream(client: openai.OpenAI, alone: LLM) -> None:
    expected = alone.chat(MESSAGES, temperature=0, max_tokens=12)
    options = {"model": "fake", "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
    done = client.chat.completions.create(**options)
    assert done.object == "chat.completion"
    assert done.choices[0].message.content == expected.text
    assert done.choices[0].message.role == "assistant"
    chunks = list(client.chat.completions.create(**options, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected.text
    assert chunks[-1].choices[0].finish_reason == expected.finish_reason
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)


def test_chat_stream_of_several_choices(client: openai.OpenAI) -> None:
    options = {"model": "fake", "messages": MESSAGES, "seed": 1, "max_completion_tokens": 9, "n": 3}
    done = client.chat.completions.create(**options)
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**options, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in done.choices]


def test_stop_strings(client: openai.OpenAI, alone: LLM) -> None:
    options = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
    full = alone.generate("fox", **options).text
    stop = full[9:12]
    for stream in (False, True):
        given = {**options, "model": "fake", "prompt": "fox", "stop": [stop], "stream": stream}
        extra = {"extra_body": {"ignore_eos": given.pop("ignore_eos")}}
        done = client.completions.create(**given, **extra)
        chunks = list(done) if stream else [done]
        assert "".join(c.choices[0].text for c in chunks) == full[: full.index(stop)]
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_chat_logprobs(client: openai.OpenAI, alone: LLM) -> None:
    expected = alone.chat(MESSAGES, temperature=0, max_tokens=6, logprobs=3)
    options = {"model": "fake", "messages": MESSAGES, "temperature": 0, "max_tokens": 6}
    done = client.chat.completions.create(**options, logprobs=True, top_logprobs=3)
    streamed = client.chat.completions.create(**options, logprobs=True, top_logprobs=3, stream=True)
    chunks = [chunk.choices[0].logprobs for chunk in streamed]
    logprobs = done.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [row for part in chunks if part for row in part.content or ()] == logprobs.content
    for row, piece in zip(logprobs.content, expected.pieces, strict=True):
        assert row.logprob == pytest.approx(piece.logprob)
        assert [top.logprob for top in row.top_logprobs] == pytest.approx(
            [other.logprob for other in piece.alternatives]
        )
        assert row.bytes is None or bytes(row.bytes).decode() == row.token


def test_completion_logprobs_and_echo(client: openai.OpenAI, alone: LLM) -> None:
    prompt = "The quick brown fox"
    done = client.completions.create(
        model="fake", prompt=prompt, echo=True, logprobs=2, max_tokens=4, temperature=0
    )
    (choice,) = done.choices
    table = choice.logprobs
    assert table is not None and table.token_logprobs is not None and table.tokens is not None
    assert choice.text.startswith(prompt)
    assert table.token_logprobs[0] is None
    count = len(alone.tokenizer.encode(prompt))
    assert table.token_logprobs[1:count] == pytest.approx(alone.score(prompt))
    answer = alone.generate(prompt, max_tokens=4, temperature=0)
    assert len(table.tokens) == count + len(answer.token_ids)
    for token, offset in zip(table.tokens[:count], table.text_offset or (), strict=False):
        assert prompt[offset:].startswith(token)
    assert table.top_logprobs is not None and all(table.top_logprobs[1:])
    chunks = client.completions.create(
        model="fake", prompt=prompt, echo=True, max_tokens=4, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    scored = client.completions.create(model="fake", prompt=prompt, echo=True, max_tokens=0)
    assert scored.choices[0].text == prompt


def test_requests_at_the_same_time_share_steps(client: openai.OpenAI, alone: LLM) -> None:
    texts: dict[int, str] = {}

    def work(n: int) -> None:
        done = client.completions.create(
            model="fake", prompt=f"fox {n}", temperature=0, max_tokens=20
        )
        texts[n] = done.choices[0].text

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for n in range(12):
        assert texts[n] == alone.generate(f"fox {n}", temperature=0, max_tokens=20).text


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"model": "other"}, openai.NotFoundError, "no model 'other'"),
        ({"temperature": -1}, openai.BadRequestError, "temperature is -1"),
        ({"temperature": "hot"}, openai.BadRequestError, "temperature"),
        ({"n": 0}, openai.BadRequestError, "n is 0"),
        ({"n": 99}, openai.BadRequestError, "at most 32"),
        ({"prompt": ""}, openai.BadRequestError, "empty"),
        ({"prompt": []}, openai.BadRequestError, "empty"),
        ({"prompt": [7, "x"]}, openai.BadRequestError, "neither text nor token ids"),
        ({"prompt": [[7], "x", None]}, openai.BadRequestError, "neither text nor token ids"),
        ({"prompt": [600]}, openai.BadRequestError, "vocabulary"),
        ({"prompt": "fox " * 300}, openai.BadRequestError, "context holds 256"),
        ({"best_of": 2}, openai.BadRequestError, "best_of"),
        ({"suffix": "x"}, openai.BadRequestError, "suffix is not supported"),
        ({"logit_bias": {"x": 1}}, openai.BadRequestError, "logit_bias"),
        ({"stop": [""]}, openai.BadRequestError, "stop"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "unknown field 'temprature'"),
        ({"extra_body": {"stream": 3}}, openai.BadRequestError, "stream is 3"),
    ],
)
def test_bad_requests(
    client: openai.OpenAI, body: dict, kind: type[openai.APIStatusError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        client.completions.create(**{"model": "fake", "prompt": "fox", **body})
    assert isinstance(caught.value.body, dict) and caught.value.body["type"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"messages": []}, "conversation is empty"),
        ({"messages": [{"role": "user", "content": 3}]}, "expected text"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stream_options": {"include_usage": True}}, "needs stream"),
    ],
)
def test_bad_chat_requests(client: openai.OpenAI, body: dict, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        client.chat.completions.create(**{"model": "fake", "messages": MESSAGES, **body})


def test_a_wrong_key(served: Running) -> None:
    for key in ("wrong", "secre", "secret2"):
        with (
            openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0) as client,
            pytest.raises(openai.AuthenticationError, match="API key"),
        ):
            client.models.list()
