"""How the next token is drawn from the logits, and when an answer ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final

from graphc.errors import InputError

_MAX_STOPS: Final = 64
_MAX_LOGPROBS: Final = 64
_MAX_SEED: Final = 1 << 63


@dataclass(frozen=True)
class SamplingParams:
    """One request's wishes; values that mean nothing are an InputError.

    `temperature` 0 takes the largest logit whatever else is asked for. `top_k` 0, `top_p` 1,
    `min_p` 0 and `typical_p` 1 switch those filters off. `repetition_penalty` divides positive
    logits (and multiplies negative ones) of tokens seen in prompt or answer (Keskar et al. 2019);
    `frequency_penalty` and `presence_penalty` are subtracted for tokens of the answer, as OpenAI's
    API has them. With the same `seed` the same prompt gives the same answer, whatever else runs
    at the time. `max_tokens` None is as many as the context holds, 0 only
    computes the prompt. `logprobs` is the number of
    alternatives to report for each token, None for no report.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    max_tokens: int | None = None
    logprobs: int | None = None
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))
        _between("temperature", self.temperature, 0.0, 100.0)
        _between("top_k", self.top_k, 0, 1 << 30)
        _between("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _between("min_p", self.min_p, 0.0, 1.0)
        _between("typical_p", self.typical_p, 0.0, 1.0, above_low=True)
        _between("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above_low=True)
        _between("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _between("presence_penalty", self.presence_penalty, -100.0, 100.0)
        if self.seed is not None:
            _between("seed", self.seed, -_MAX_SEED, _MAX_SEED - 1)
        if self.max_tokens is not None:
            _between("max_tokens", self.max_tokens, 0, 1 << 30)
        if self.logprobs is not None:
            _between("logprobs", self.logprobs, 0, _MAX_LOGPROBS)
        if len(stop) > _MAX_STOPS or not all(isinstance(s, str) and s for s in stop):
            raise InputError(f"stop is {stop!r:.80}: expected up to {_MAX_STOPS} non-empty strings")
        for token, bias in self.logit_bias.items():
            _between("a token of logit_bias", token, 0, (1 << 31) - 1)
            _between(f"logit_bias[{token}]", bias, -1e4, 1e4)
        for token in self.stop_token_ids:
            _between("a token of stop_token_ids", token, 0, (1 << 31) - 1)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def but(self, **changes: Any) -> SamplingParams:
        """These with some fields replaced; an unknown name is an InputError listing the names."""
        names = [item.name for item in fields(self)]
        unknown = [name for name in changes if name not in names]
        if unknown:
            raise InputError(f"no sampling option {unknown[0]!r}: there is {', '.join(names)}")
        return replace(self, **changes)


def _between(name: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    """The type of `low` is the type expected: int, or any real number."""
    kinds: tuple[type, ...] = (int,) if isinstance(low, int) else (int, float)
    fits = isinstance(value, kinds) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or not low <= value <= high or (above_low and value == low):
        bound = f"more than {low}" if above_low else f"at least {low}"
        kind = "an integer" if isinstance(low, int) else "a number"
        raise InputError(f"{name} is {value!r:.40}: expected {kind}, {bound} and at most {high}")
