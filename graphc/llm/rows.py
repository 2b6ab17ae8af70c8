"""Which rows of logits a step gives for a sequence, and what its prompt's own rows say."""

from __future__ import annotations

from graphc.llm.chunk import ALL_ROWS, Chunk, Logits
from graphc.llm.logprobs import alternatives, logprobs_of
from graphc.llm.sequence import PromptScore, Sequence


def rows_of(sequence: Sequence, count: int) -> int:
    """Logits that the next `count` tokens of a sequence are to give."""
    if sequence.scoring:
        return count
    return 1 if count == sequence.uncached else 0


def chunk_of(sequence: Sequence, count: int) -> Chunk:
    """The next `count` tokens of a sequence, as the model takes them."""
    rows = ALL_ROWS if sequence.scoring else rows_of(sequence, count)
    assert sequence.handle is not None
    return Chunk(sequence.handle, sequence.next_tokens(count), rows)


def score_prompt(sequence: Sequence, logits: Logits) -> None:
    """Log-probabilities of the prompt's tokens from the rows [rows, V] just before them.

    After a preemption the rows come again; those that are known are left out.
    """
    scores = sequence.prompt_scores
    assert scores is not None
    first = sequence.cached - len(logits)  # position of the first row, which predicts the next
    begin = len(scores)
    wanted = sequence.tokens[begin + 1 : min(sequence.cached + 1, sequence.prompt_length)]
    rows = logits[begin - first : begin - first + len(wanted)]
    count = sequence.params.logprobs or 0
    for logprob, row in zip(logprobs_of(rows, wanted), rows, strict=True):
        scores.append(PromptScore(logprob, alternatives(row, count)))
