"""Small tokenizers of each kind, trained when asked for; and text in many scripts."""

# ruff: noqa: RUF001 (letters that look alike are what this is about)
from __future__ import annotations

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import processors as post

TEXT = [
    "The quick brown fox jumps over the lazy dog; it's 12:45 and they'll pay 1,234.50 dollars.",
    "Die Straße nach Köln führt über die Brücke. Ça va? Où est l'hôtel?",
    "Быстрая коричневая лиса прыгает. Η γρήγορη αλεπού. الثعلب البني السريع",
    "快速的棕色狐狸跳过了懒狗。素早い茶色の狐 갈색 여우가 뛰어넘는다 हिन्दी में लिखा हुआ",
    "def f(x):\n    return x ** 2  # tabs\tand spaces\n\n\nemoji 👩‍👩‍👧 🇩🇪 é e\u0301",
]
# What people write, and what they never should: scripts, combining marks, emoji, controls, spaces.
_RANGES = (
    (0x20, 0x7F), (0x20, 0x7F), (0x20, 0x7F), (0x30, 0x3A), (0xA0, 0x250), (0x300, 0x370),
    (0x370, 0x530), (0x590, 0x700), (0x900, 0xA00), (0xE00, 0xE80), (0x1100, 0x1200),
    (0x1E00, 0x2070), (0x2070, 0x2400), (0x3000, 0x3100), (0x4E00, 0x5000), (0xAC00, 0xAD00),
    (0xF900, 0xFB10), (0xFE00, 0x10000), (0x1D400, 0x1D500), (0x1F1E6, 0x1F200),
    (0x1F300, 0x1F700), (0x20000, 0x20100), (0x2F800, 0x2F900), (0x0, 0x20), (0xE0000, 0xE0080),
)  # fmt: skip
_PIECES = (
    "the", " of", "Hello", "'ll", "'S", "  ", "\n\n", "\r\n", "\t ", "2024", " 3.14", "don't",
    "e\u0301", "ｆｕｌｌ", "ﬁ", "Ⅷ", "İ", "ẞ", "Σς", "한국", "각", "가\u11a8", "👩‍👩‍👧", "🇩🇪",
    "\u200b", "\u00a0", "\u3000", "\ufeff", "中文", "ไทย", "क्षि", "<s>", "</s>", "[MASK]", "▁",
)  # fmt: skip


def random_text(source: random.Random, longest: int = 40) -> str:
    """A string of pieces and of characters of one or several scripts."""
    scripts = source.sample(_RANGES, 3)
    parts = []
    for _ in range(source.randrange(1, longest)):
        choice = source.random()
        if choice < 0.3:
            parts.append(source.choice(_PIECES))
        elif choice < 0.4:
            parts.append(source.choice(" \n.,!-"))
        else:
            low, high = source.choice(scripts)
            parts.append(chr(source.randrange(low, high)))
    return "".join(part for part in parts if not "\ud800" <= part <= "\udfff")


def byte_level_bpe(size: int = 600) -> Tokenizer:
    """As GPT-2 has it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer


def sentencepiece_bpe() -> Tokenizer:
    """As Llama 2 has it: spaces as a visible character, bytes for what is not in the vocabulary."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([line[:60] for line in TEXT[:3]], trainer)
    record = json.loads(tokenizer.to_str())
    record["added_tokens"] = [t for t in record["added_tokens"] if t["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(record))
    tokenizer.post_processor = post.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def unigram() -> Tokenizer:
    """As T5 and XLM-R have it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, unk_token="<unk>", special_tokens=["<unk>", "</s>"], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.post_processor = post.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT has it."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.post_processor = post.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


KINDS = {
    "byte-level": byte_level_bpe,
    "sentencepiece": sentencepiece_bpe,
    "unigram": unigram,
    "wordpiece": word_piece,
}


def write(tokenizer: Tokenizer, folder: Path, **config: object) -> Path:
    """The files of a model folder: tokenizer.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
