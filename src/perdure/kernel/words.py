"""Words of texts in any script, and positions where a text can be cut.

Thai, Lao, Khmer, Burmese, Chinese and Japanese are written without spaces between words. BudouX has small
models of word boundaries in Thai, Chinese and Japanese. The other three have no such model: their texts are
cut at a space, otherwise between two characters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from importlib import import_module
from importlib.resources import files
from typing import Any, Final

from perdure.kernel.codec import decode_json

_THAI: Final = "\u0e01-\u0e7f"
_HAN: Final = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA: Final = "\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"
_NO_MODEL: Final = "\u0e80-\u0eff\u1000-\u109f\u1780-\u17ff\ua9e0-\ua9ff\uaa60-\uaa7f"
_UNSPACED: Final = re.compile(f"[{_THAI}{_HAN}{_KANA}{_NO_MODEL}]")
_RUNS: Final = re.compile(f"[{_THAI}]+|[{_HAN}{_KANA}]+|[{_NO_MODEL}]+")
_HAS_THAI: Final = re.compile(f"[{_THAI}]")
_HAS_HAN: Final = re.compile(f"[{_HAN}]")
_HAS_KANA: Final = re.compile(f"[{_KANA}]")
_PIECES: Final = re.compile(r"[^\W_]+")

_BEFORE: Final = 120
_AFTER: Final = 40
"""Characters before and after a position that are split to find its word boundaries."""
_KEPT_RUNS: Final = 256

_JOINER: Final = "\u200d"
_FLAGS: Final = "".join(map(chr, range(0x1F1E6, 0x1F200)))
"""Halves of flags: two of them are one character."""
_VIRAMA: Final = 9
"""Combining class of a sign that joins two letters into one character."""
# Vowels and marks that follow their consonant, and are letters to Unicode.
_FOLLOWING: Final = frozenset("\u0e33\u0eb3\uff9e\uff9f")


def is_unspaced(text: str) -> bool:
    """Return whether a text contains a script that writes no spaces between words."""
    return not text.isascii() and _UNSPACED.search(text) is not None


def split_words(text: str) -> tuple[str, ...]:
    """Split a text into words: letters and digits with their marks."""
    if text.isascii():
        return tuple(_PIECES.findall(text))
    return tuple(word for run in _find_letter_runs(text) for word in _split_run(run))


def _find_letter_runs(text: str) -> Iterator[str]:
    """Yield the runs between spaces and punctuation. Combining marks belong to the letter before them."""
    start = end = 0
    for match in _PIECES.finditer(text):
        if match.start() > end or not end:
            if end:
                yield text[start:end]
            start = match.start()
        end = match.end()
        while end < len(text) and unicodedata.category(text[end]).startswith("M"):
            end += 1
    if end:
        yield text[start:end]


def _split_run(run: str) -> Iterator[str]:
    """Yield the words of adjacent letters; a new word begins where the script changes."""
    end = 0
    for match in _RUNS.finditer(run):
        if match.start() > end:
            yield run[end : match.start()]
        yield from _split_unspaced(match.group())
        end = match.end()
    if end < len(run):
        yield run[end:]


@lru_cache(maxsize=_KEPT_RUNS)
def _split_unspaced(run: str) -> tuple[str, ...]:
    """Return the words of a run in one unspaced script. A run without a model is one word."""
    if _HAS_THAI.match(run):
        name = "th"
    elif _HAS_KANA.search(run):
        name = "ja_word"
    elif _HAS_HAN.match(run):
        name = "zh-hans"
    else:
        return (run,)
    words: list[str] = []
    for word in _load_parser(name).parse(run):
        if words and _joins(words[-1], word):
            words[-1] += word
        else:
            words.append(word)
    return tuple(words)


@cache
def _load_parser(name: str) -> Any:
    """Return BudouX with a model, which is read for the first text that needs it."""
    model = files("budoux").joinpath("models", f"{name}.json").read_bytes()
    return import_module("budoux").Parser(decode_json(model))


# --- where a text can be cut ------------------------------------------------------------------------------


def find_cut(text: str, end: int, least: int) -> int:
    """Return where to cut a text to at most `end` characters: after a word that ends at `least` or later.

    If no word ends there, the text is cut between two characters.
    """
    if not 0 < end < len(text):
        return max(0, min(end, len(text)))
    place = text.rfind(" ", least, end + 1)
    if _UNSPACED.match(text, end) and _UNSPACED.match(text, end - 1):
        place = max(place, _find_last_word(text, end))
    if place > 0 and place >= least:
        return place
    while end > 0 and _joins(text[:end], text[end]):
        end -= 1
    return end


def _find_last_word(text: str, end: int) -> int:
    """Return the start of the last word that begins at or shortly before `end`; -1 if none is found."""
    first, last = max(0, end - _BEFORE), end + _AFTER
    for match in _RUNS.finditer(text, first, last):
        if match.start() < end < match.end():
            place = match.start()
            begin = place if place > first else -1
            for word in _split_unspaced(match.group()):
                place += len(word)
                begin = place if place <= end else begin
            return begin
    return -1


def _joins(before: str, after: str) -> bool:
    """Return whether the first character of `after` is part of the last character of `before`."""
    character, last = after[0], before[-1]
    if character.isascii() or last == _JOINER:
        return last == _JOINER
    return (
        character == _JOINER
        or character in _FOLLOWING
        or unicodedata.category(character).startswith("M")
        or "\U0001f3fb" <= character <= "\U0001f3ff"
        or "\U000e0020" <= character <= "\U000e007f"
        or (unicodedata.combining(last) == _VIRAMA and character.isalpha())
        or (character in _FLAGS and (len(before) - len(before.rstrip(_FLAGS))) % 2 == 1)
    )
