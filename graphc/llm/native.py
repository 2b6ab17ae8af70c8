"""The part of graphc.h that is about language models, through ctypes: one cache in one context."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from graphc.errors import GraphcError
from graphc.llm.sampling import SamplingParams
from graphc.native import ErrorRecord, Library, raise_recorded

_INTS = ctypes.POINTER(ctypes.c_int32)
_FLOATS = ctypes.POINTER(ctypes.c_float)


class Language(ctypes.Structure):
    """gc_language."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("vocabulary", ctypes.c_int64),
        ("max_context", ctypes.c_int64),
        ("page_size", ctypes.c_int64),
        ("bytes_per_token", ctypes.c_int64),
    )


class Stats(ctypes.Structure):
    """gc_cache_stats."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("pages_total", ctypes.c_int64),
        ("pages_free", ctypes.c_int64),
        ("pages_kept", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("sequences", ctypes.c_int64),
        ("tokens_held", ctypes.c_int64),
        ("tokens_reused", ctypes.c_int64),
        ("pages_evicted", ctypes.c_int64),
        ("pages_copied", ctypes.c_int64),
    )


class _CacheOptions(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("tokens", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("context", ctypes.c_int64),
    )


class _Sampling(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("seed", ctypes.c_uint64),
        ("temperature", ctypes.c_float),
        ("top_k", ctypes.c_int32),
        ("top_p", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("typical_p", ctypes.c_float),
        ("repetition_penalty", ctypes.c_float),
        ("frequency_penalty", ctypes.c_float),
        ("presence_penalty", ctypes.c_float),
        ("n_bias", ctypes.c_int32),
        ("bias_tokens", _INTS),
        ("bias", _FLOATS),
    )


class NativeCache:
    """A gc_cache and the context that steps it; used by one thread at a time."""

    def __init__(self, library: Library, tokens: int, size: int, context: int) -> None:
        self._library, self._dll = library, library.dll
        _declare(library.dll)
        self.language = Language(size=ctypes.sizeof(Language))
        error = ErrorRecord()
        described = ctypes.byref(self.language)
        if self._dll.gc_language_info(library.model, described, ctypes.byref(error)):
            raise_recorded(error)
        self._context = library.context()
        options = _CacheOptions(
            size=ctypes.sizeof(_CacheOptions), tokens=tokens, bytes=size, context=context
        )
        self._cache = self._dll.gc_cache_create(
            library.model, ctypes.byref(options), ctypes.byref(error)
        )
        if not self._cache:
            raise_recorded(error)
        self._destroy = weakref.finalize(self, _destroy, library, self._cache)
        self._destroy.atexit = False

    def close(self) -> None:
        """Free the pages and end the threads; later calls fail."""
        self._destroy()
        self._cache = None
        self._context.destroy()

    def stats(self) -> Stats:
        stats = Stats(size=ctypes.sizeof(Stats))
        self._call(self._dll.gc_cache_get_stats, ctypes.byref(stats), failed=_is_code)
        return stats

    def create(self) -> int:
        return self._call(self._dll.gc_sequence_create, failed=_is_zero)

    def fork(self, sequence: int) -> int:
        return self._call(self._dll.gc_sequence_fork, sequence, failed=_is_zero)

    def free(self, sequence: int) -> None:
        self._call(self._dll.gc_sequence_free, sequence, failed=_is_code)

    def length(self, sequence: int) -> int:
        return self._call(self._dll.gc_sequence_length, sequence, failed=_is_negative)

    def reuse(self, sequence: int, tokens: npt.NDArray[np.int32]) -> int:
        values, count = _ints(tokens)
        return self._call(self._dll.gc_sequence_reuse, sequence, values, count, failed=_is_negative)

    def step(
        self,
        sequences: Sequence[int],
        counts: Sequence[int],
        tokens: npt.NDArray[np.int32],
        wanted: Sequence[int],
    ) -> npt.NDArray[np.float32]:
        """gc_step; the rows are the runtime's memory, valid until the next step."""
        n = len(sequences)
        logits, rows, error = _FLOATS(), ctypes.c_int64(), ErrorRecord()
        values, _ = _ints(tokens)
        code = self._dll.gc_step(
            self._context.handle,
            self._open(),
            n,
            (ctypes.c_int64 * n)(*sequences),
            (ctypes.c_int32 * n)(*counts),
            values,
            (ctypes.c_int32 * n)(*wanted),
            ctypes.byref(logits),
            ctypes.byref(rows),
            ctypes.byref(error),
        )
        if code:
            raise_recorded(error)
        width = int(self.language.vocabulary)
        if not rows.value:
            return np.empty((0, width), np.float32)
        return np.ctypeslib.as_array(logits, (rows.value, width))

    def sample(
        self,
        logits: npt.NDArray[np.float32],
        params: SamplingParams,
        history: npt.NDArray[np.int32],
        counter: int,
    ) -> tuple[int, float]:
        """gc_sample; the last `counter` tokens of the history are the answer's."""
        logits = np.ascontiguousarray(logits, np.float32)
        values, count = _ints(history)
        record, kept = _record(params)
        token, logprob, error = ctypes.c_int32(), ctypes.c_float(), ErrorRecord()
        code = self._dll.gc_sample(
            logits.ctypes.data_as(_FLOATS),
            logits.size,
            ctypes.byref(record),
            values,
            count,
            min(counter, count),
            counter,
            ctypes.byref(token),
            ctypes.byref(logprob),
            ctypes.byref(error),
        )
        del kept
        if code:
            raise_recorded(error)
        return token.value, logprob.value

    def _open(self) -> int:
        if self._cache is None:
            raise GraphcError("the language model was closed: open it again")
        return int(self._cache)

    def _call(self, function: Any, *arguments: Any, failed: Any) -> int:
        error = ErrorRecord()
        result: int = function(self._open(), *arguments, ctypes.byref(error))
        if failed(result):
            raise_recorded(error)
        return result


def _is_code(result: int) -> bool:
    return result != 0


def _is_zero(result: int) -> bool:
    return result == 0


def _is_negative(result: int) -> bool:
    return result < 0


def _ints(values: npt.NDArray[np.int32]) -> tuple[Any, int]:
    """The values for an `const int32_t *`; the pointer keeps the array alive."""
    array = np.ascontiguousarray(values, np.int32)
    return array.ctypes.data_as(_INTS), array.size


def _record(params: SamplingParams) -> tuple[_Sampling, object]:
    """gc_sampling, and what its pointers point to."""
    tokens = (ctypes.c_int32 * len(params.logit_bias))(*params.logit_bias)
    bias = (ctypes.c_float * len(params.logit_bias))(*params.logit_bias.values())
    record = _Sampling(
        size=ctypes.sizeof(_Sampling),
        seed=(params.seed or 0) & 0xFFFFFFFFFFFFFFFF,
        temperature=params.temperature,
        top_k=min(params.top_k, (1 << 31) - 1),
        top_p=params.top_p,
        min_p=params.min_p,
        typical_p=params.typical_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        n_bias=len(params.logit_bias),
        bias_tokens=ctypes.cast(tokens, _INTS),
        bias=ctypes.cast(bias, _FLOATS),
    )
    return record, (tokens, bias)


def _destroy(library: Library, cache: int) -> None:
    library.dll.gc_cache_destroy(cache)


def _declare(dll: ctypes.CDLL) -> None:
    pointer, error = ctypes.c_void_p, ctypes.POINTER(ErrorRecord)
    long, number = ctypes.c_int64, ctypes.c_int32
    signatures: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "gc_language_info": (ctypes.c_int, (pointer, ctypes.POINTER(Language), error)),
        "gc_cache_create": (pointer, (pointer, ctypes.POINTER(_CacheOptions), error)),
        "gc_cache_destroy": (None, (pointer,)),
        "gc_cache_get_stats": (ctypes.c_int, (pointer, ctypes.POINTER(Stats), error)),
        "gc_sequence_create": (long, (pointer, error)),
        "gc_sequence_fork": (long, (pointer, long, error)),
        "gc_sequence_free": (ctypes.c_int, (pointer, long, error)),
        "gc_sequence_length": (long, (pointer, long, error)),
        "gc_sequence_reuse": (long, (pointer, long, _INTS, long, error)),
        "gc_step": (
            ctypes.c_int,
            (
                *(pointer, pointer, number, ctypes.POINTER(long), _INTS, _INTS, _INTS),
                *(ctypes.POINTER(_FLOATS), ctypes.POINTER(long), error),
            ),
        ),
        "gc_sample": (
            ctypes.c_int,
            (
                *(_FLOATS, long, ctypes.POINTER(_Sampling), _INTS, long, long, ctypes.c_uint64),
                *(ctypes.POINTER(number), ctypes.POINTER(ctypes.c_float), error),
            ),
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(dll, name)
        function.restype, function.argtypes = result, arguments
