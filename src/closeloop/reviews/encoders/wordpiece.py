"""Words cut into the pieces that BERT's vocabulary has, lower-cased and without accents."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

MAX_WORD_CHARS = 100
_ASCII_SIGNS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def read_vocabulary(file: Path) -> dict[str, int]:
    """By piece its number, which is its line."""
    lines = file.read_text(encoding="utf-8").split("\n")
    return {piece: number for number, piece in enumerate(lines) if piece}


def encode_pieces(text: str, vocabulary: Mapping[str, int], most: int) -> list[int]:
    """The pieces of a text between the marks of its beginning and its end."""
    pieces: list[int] = []
    for word in split_words(text):
        pieces += _split_pieces(word, vocabulary)
        if len(pieces) >= most - 2:
            break
    return [vocabulary["[CLS]"], *pieces[: most - 2], vocabulary["[SEP]"]]


def split_words(text: str) -> Iterator[str]:
    """Words, each sign and each ideograph by itself."""
    for run in "".join(_normalise_spaces(text)).split():
        plain = unicodedata.normalize("NFD", run.lower())
        yield from _split_punctuation(sign for sign in plain if unicodedata.category(sign) != "Mn")


def _normalise_spaces(text: str) -> Iterator[str]:
    for sign in text:
        if sign in "\t\n\r" or unicodedata.category(sign) == "Zs":
            yield " "
        elif sign in "\0�" or unicodedata.category(sign).startswith("C"):
            continue
        elif any(low <= ord(sign) <= high for low, high in _IDEOGRAPHS if sign > "\u33ff"):
            yield f" {sign} "
        else:
            yield sign


def _split_punctuation(signs: Iterable[str]) -> Iterator[str]:
    word = ""
    for sign in signs:
        if sign in _ASCII_SIGNS or unicodedata.category(sign).startswith("P"):
            yield from (word, sign) if word else (sign,)
            word = ""
        else:
            word += sign
    if word:
        yield word


def _split_pieces(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    """The longest piece that fits, again and again; a word that cannot be cut so is unknown."""
    piece_numbers: list[int] = []
    start = 0
    while start < len(word) <= MAX_WORD_CHARS:
        for end in range(len(word), start, -1):
            number = vocabulary.get(("##" if start else "") + word[start:end])
            if number is not None:
                piece_numbers.append(number)
                start = end
                break
        else:
            return [vocabulary["[UNK]"]]
    return piece_numbers or [vocabulary["[UNK]"]]
