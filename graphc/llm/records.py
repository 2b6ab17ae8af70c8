"""Answers as plain data for JSON."""

from __future__ import annotations

from graphc.llm.llm import Answer
from graphc.llm.tokenizer import Tokenizer


def answer_record(answer: Answer, tokenizer: Tokenizer) -> dict[str, object]:
    """Text, tokens and log-probabilities; alternatives where they were asked for."""
    drawn = [piece for piece in answer.pieces if piece.token is not None]
    return {
        "text": answer.text,
        "finish_reason": answer.finish_reason,
        "prompt_tokens": answer.prompt_tokens,
        "token_ids": list(answer.token_ids),
        "logprobs": [
            {
                "token": tokenizer.spelling(piece.token),
                "logprob": piece.logprob,
                **(
                    {
                        "alternatives": [
                            {"token": tokenizer.spelling(token), "logprob": logprob}
                            for token, logprob in piece.alternatives
                        ]
                    }
                    if piece.alternatives
                    else {}
                ),
            }
            for piece in drawn
            if piece.token is not None
        ],
    }
