"""Requests of OpenAI's API, checked field by field; what would do nothing is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from graphc.errors import InputError
from graphc.llm.llm import LLM
from graphc.llm.sampling import SamplingParams
from graphc.llm.server.errors import RequestError

_COMPLETION_TOKENS: Final = 16  # OpenAI's default for completions
_MAX_ALTERNATIVES: Final = 20
# Fields that are SamplingParams' own; OpenAI's first, then those that other servers have too.
_SAMPLING: Final = frozenset(
    {
        "temperature", "top_p", "presence_penalty", "frequency_penalty", "seed", "stop",
        "top_k", "min_p", "typical_p", "repetition_penalty", "stop_token_ids", "ignore_eos",
    }
)  # fmt: skip
_SHARED: Final = _SAMPLING | {"model", "n", "stream", "stream_options", "logit_bias", "logprobs"}
_COMPLETION: Final = _SHARED | {"prompt", "echo", "best_of", "max_tokens"}
_CHAT: Final = _SHARED | {"messages", "top_logprobs", "max_tokens", "max_completion_tokens"}
# Said by clients, and changing nothing about the answer.
_IGNORED: Final = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier"})
# Accepted with the one value that asks for nothing.
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "suffix": (None, ""),
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "functions": (None, []),
    "response_format": (None, {"type": "text"}),
    "parallel_tool_calls": (None, True, False),
    "modalities": (None, ["text"]),
}


@dataclass(frozen=True)
class Job:
    """Prompts as tokens, what to draw for each, and how to answer."""

    chat: bool
    prompts: tuple[list[int], ...]
    params: SamplingParams
    choices: int = 1
    stream: bool = False
    with_usage: bool = False
    echo: bool = False

    @property
    def total(self) -> int:
        """Sequences that it takes."""
        return self.choices * len(self.prompts)


def completion(llm: LLM, model: str, body: Mapping[str, Any]) -> Job:
    """A request to /v1/completions."""
    _check_fields(body, _COMPLETION)
    _check_model(body, model)
    prompts = _prompts(llm, body.get("prompt"))
    choices = _number(body, "n", 1, 1, 128)
    if _number(body, "best_of", choices, 1, 128) != choices:
        raise RequestError("best_of other than n is not supported", param="best_of")
    alternatives = body.get("logprobs")
    if alternatives is not None:
        alternatives = _number(body, "logprobs", 0, 0, _MAX_ALTERNATIVES)
    max_tokens = _number(body, "max_tokens", _COMPLETION_TOKENS, 0, 1 << 30)
    return Job(
        chat=False,
        prompts=prompts,
        params=_params(llm, body, max_tokens=max_tokens, logprobs=alternatives),
        choices=choices,
        echo=_flag(body, "echo"),
        **_streaming(body),
    )


def chat_completion(llm: LLM, model: str, body: Mapping[str, Any]) -> Job:
    """A request to /v1/chat/completions."""
    _check_fields(body, _CHAT)
    _check_model(body, model)
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise RequestError("messages is missing: expected a list", param="messages")
    tokens = _blamed("messages", lambda: llm.chat_tokens(messages))
    alternatives = None
    if _flag(body, "logprobs"):
        alternatives = _number(body, "top_logprobs", 0, 0, _MAX_ALTERNATIVES)
    elif body.get("top_logprobs") is not None:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    longest = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    max_tokens = None
    if body.get(longest) is not None:
        max_tokens = _number(body, longest, 0, 1, 1 << 30)
    return Job(
        chat=True,
        prompts=(tokens,),
        params=_params(llm, body, max_tokens=max_tokens, logprobs=alternatives),
        choices=_number(body, "n", 1, 1, 128),
        **_streaming(body),
    )


def _check_fields(body: Mapping[str, Any], known: frozenset[str]) -> None:
    for name, value in body.items():
        if name in known or name in _IGNORED:
            continue
        if name in _NEUTRAL:
            if value not in _NEUTRAL[name]:
                raise RequestError(f"{name} is not supported", param=name)
            continue
        raise RequestError(f"unknown field {name!r}", param=name)


def _check_model(body: Mapping[str, Any], model: str) -> None:
    wanted = body.get("model", model)
    if wanted != model:
        raise RequestError(
            f"no model {wanted!r}: this server has {model!r}",
            status=404,
            param="model",
            code="model_not_found",
        )


def _prompts(llm: LLM, given: Any) -> tuple[list[int], ...]:
    """One prompt or several; each is text or token ids."""
    if given is None:
        raise RequestError("prompt is missing: expected text or token ids", param="prompt")
    several = given
    if isinstance(given, str) or (isinstance(given, list) and given and _is_id(given[0])):
        several = [given]
    if not isinstance(several, list) or not several:
        raise RequestError("prompt is empty, or neither text nor a list", param="prompt")
    for each in several:
        if not isinstance(each, str) and not (
            isinstance(each, list) and each and all(_is_id(token) for token in each)
        ):
            raise RequestError("a prompt is neither text nor token ids", param="prompt")
    return tuple(_blamed("prompt", functools.partial(llm.tokens, each)) for each in several)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _blamed(param: str, make: Callable[[], list[int]]) -> list[int]:
    try:
        return make()
    except InputError as error:
        raise RequestError(str(error), param=param) from error


def _params(llm: LLM, body: Mapping[str, Any], **more: Any) -> SamplingParams:
    given = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    if body.get("logit_bias"):
        given["logit_bias"] = _bias(body["logit_bias"])
    try:
        return llm.params(None, **given, **more)
    except (InputError, TypeError) as error:
        named = next((name for name in given if str(error).startswith(name)), None)
        raise RequestError(str(error), param=named) from error


def _bias(given: Any) -> dict[int, float]:
    try:
        return {int(token): float(value) for token, value in given.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise RequestError(
            "logit_bias is no object of token ids and numbers", param="logit_bias"
        ) from error


def _streaming(body: Mapping[str, Any]) -> dict[str, bool]:
    stream = _flag(body, "stream")
    options = body.get("stream_options") or {}
    if options and not stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise RequestError("stream_options knows include_usage only", param="stream_options")
    return {"stream": stream, "with_usage": _flag(options, "include_usage")}


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value not in (None, True, False):
        raise RequestError(f"{name} is {value!r:.40}: expected true or false", param=name)
    return bool(value)


def _number(body: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = body.get(name)
    if value is None:
        return default
    if not _is_id(value) or not low <= value <= high:
        raise RequestError(
            f"{name} is {value!r:.40}: expected an integer from {low} to {high}", param=name
        )
    return int(value)
