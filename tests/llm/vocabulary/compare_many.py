"""Encodes many random strings with the C tokenizer and with `tokenizers`, and says if they differ.

python tests/llm/vocabulary/compare_many.py tokenizer.json... [--count 100000] [--seed 0]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[depth]) for depth in range(3)]

import tokenizers  # noqa: E402
from c_tokenizer import compare  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for file in arguments.files:
        start = time.perf_counter()
        compare(tokenizers.Tokenizer.from_file(str(file)), arguments.count, arguments.seed)
        seconds = time.perf_counter() - start
        print(f"{file}: {arguments.count} strings are equal, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
