"""Summaries without a model: the most telling sentences of the events, unchanged."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from perdure.kernel.storage.fulltext import index_words, is_stop_word
from perdure.kernel.words import is_unspaced
from perdure.memory.summarisers.port import Child, NoEvents, Said, Summary, shorten

BULLETS = 5
ROLLED_BULLETS = 6
KEYWORDS = 5
ROLLED_KEYWORDS = 7
BULLET_LENGTH = 200
TITLE_LENGTH = 72
SHORTEST_WORD = 3
KEYWORD_LENGTH = 4
SHORTEST_UNSPACED = 2
"""Length of the shortest words that count in scripts without spaces."""
READ_CHARACTERS = 4000
"""Number of characters read from one event."""
SIMILAR = 0.6
"""Two sentences count as equal if they share this part of their words."""
ASKED = "Asked: "

_WEIGHTS = {"user": 1.3, "assistant": 1.0, "system": 0.5, "tool": 0.35}
_FENCE = re.compile(r"```.*?(?:```|$)", re.DOTALL)
_FENCES = re.compile(r"^[ \t]*```[^\n]*\n?", re.MULTILINE)
_MARKUP = re.compile(r"^\s*(?:[#>*+-]+|\d+[.)])\s+|`+|\*{1,3}|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)")
_ENDS = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9À-ÖØ-Þ])|(?<=[。！？])")
_LETTERS = re.compile(r"[^\W\d_]")
_POLITE = frozenset({"please", "thanks", "thank", "hello", "hey", "okay", "yes", "sure", "want", "need"})
_OPENING = re.compile(r"(?i)^(?:please|can you|could you|would you|great|ok|okay|now|then|and|so|,|:|\s)+\b")


class _Sentence(NamedTuple):
    text: str
    words: frozenset[str]
    place: int
    asked: bool
    score: float


class ExtractiveSummariser:
    """Summariser that selects sentences. It is deterministic and needs no network."""

    name = "extractive"

    async def summarise(self, events: Sequence[Said]) -> Summary:
        if not events:
            raise NoEvents("there are no events to summarise")
        return await asyncio.to_thread(build_summary, events)

    async def roll_up(self, title: str, children: Sequence[Child]) -> Summary:
        if not children:
            raise NoEvents(f"{title} has nothing to summarise")
        return await asyncio.to_thread(rolled_up, title, children)


def build_summary(events: Sequence[Said]) -> Summary:
    """Summarise a segment: its question, its findings and its result."""
    own = [event for event in events if not event.repeated] or list(events)
    weights = _weigh_words(event.text for event in own)
    framing = _find_frame(own)
    sentences = [
        each
        for place, event in enumerate(own)
        for each in _list_sentences(event, place, place in framing, weights)
    ]
    count = max(1, min(BULLETS, round(math.sqrt(len(own))) + 1))
    chosen = _pick_different(sentences, count)
    bullets = tuple((ASKED if each.asked else "") + each.text for each in sorted(chosen, key=_get_place))
    bullets = bullets or _take_beginnings(own, count)
    keywords = _find_keywords(own)
    return Summary(title=_build_title(own, keywords), bullets=bullets, keywords=keywords)


def _take_beginnings(events: Sequence[Said], count: int) -> tuple[str, ...]:
    """Return the beginnings of events without prose, such as JSON, code and emoji."""
    texts = (_FENCES.sub("", event.text[:READ_CHARACTERS]).strip() or event.text.strip() for event in events)
    lines = dict.fromkeys(shorten(text[:READ_CHARACTERS], BULLET_LENGTH) for text in texts if text)
    return tuple(lines)[:count]


def _find_keywords(events: Sequence[Said]) -> tuple[str, ...]:
    """Return the most important words; of equally important words, the first."""
    totals: dict[str, float] = {}
    for event in events:
        text = event.text[:READ_CHARACTERS]
        wanted = content_words(text)
        for word in dict.fromkeys(index_words(text)):
            if word in wanted and says_enough(word, KEYWORD_LENGTH):
                totals[word] = totals.get(word, 0.0) + _WEIGHTS.get(event.role, 1.0) * _weigh_length(word)
    return tuple(sorted(totals, key=lambda word: -round(totals[word], 3))[:KEYWORDS])


def _get_place(sentence: _Sentence) -> int:
    return sentence.place


def _build_title(events: Sequence[Said], keywords: Sequence[str]) -> str:
    for role in ("user", "assistant"):
        for event in events:
            if event.role == role:
                for text in split_sentences(event.text):
                    return shorten(_strip_politeness(text), TITLE_LENGTH).rstrip(".!")
    if keywords:
        return ", ".join(keywords)
    return f"{len(events)} events" if len(events) > 1 else "1 event"


def _find_frame(events: Sequence[Said]) -> set[int]:
    """Return the places of a session's frame: its first question and its last answer."""
    asked: dict[str, int] = {}
    answered: dict[str, int] = {}
    for place, event in enumerate(events):
        if event.role == "user":
            asked.setdefault(event.session_id, place)
        elif event.role == "assistant":
            answered[event.session_id] = place
    return {*asked.values(), *answered.values()}


def _list_sentences(event: Said, place: int, framing: bool, weights: Counter[str]) -> Iterable[_Sentence]:
    """Return the sentences of an event, each with its score."""
    weight = _WEIGHTS.get(event.role, 1.0) * (1.25 if framing else 1.0)
    for number, text in enumerate(split_sentences(event.text)):
        words = content_words(text)
        if not words:
            continue
        information = sum(weights[word] for word in words) / math.sqrt(len(words) + 2)
        score = weight * information * (1.0 if number else 1.15)
        is_question = event.role == "user"
        shown = _strip_politeness(text) if is_question else text
        yield _Sentence(shorten(shown, BULLET_LENGTH - len(ASKED)), words, place, is_question, score)


def _strip_politeness(text: str) -> str:
    """Return a request without its polite beginning."""
    bare = _OPENING.sub("", text)
    return bare[:1].upper() + bare[1:] if bare else text


def _pick_different(sentences: Iterable[_Sentence], count: int) -> list[_Sentence]:
    """Return the best sentences, no two of which are similar."""
    chosen: list[_Sentence] = []
    for candidate in sorted(sentences, key=lambda sentence: (-sentence.score, sentence.place)):
        if len(chosen) == count:
            break
        if all(_compute_likeness(candidate.words, other.words) < SIMILAR for other in chosen):
            chosen.append(candidate)
    return chosen


def _compute_likeness(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / min(len(one), len(other))


def rolled_up(title: str, children: Sequence[Child]) -> Summary:
    """Summarise a longer period by lines of its parts, from as many parts as fit."""
    weights = _weigh_words(" ".join([*child.bullets, *child.keywords]) for child in children)
    best: list[_Sentence] = []
    for place, child in enumerate(children):
        lines = [_score_line(text, place, weights) for text in child.bullets]
        best += sorted((line for line in lines if line.words), key=lambda line: -line.score)[:3]
    firsts: dict[int, _Sentence] = {}
    for line in best:
        firsts.setdefault(line.place, line)
    chosen = _pick_different(firsts.values(), ROLLED_BULLETS)
    if len(chosen) < ROLLED_BULLETS:
        rest = [line for line in best if line not in chosen]
        chosen += [line for line in _pick_different([*chosen, *rest], ROLLED_BULLETS) if line not in chosen]
    bullets = tuple(line.text for line in sorted(chosen[:ROLLED_BULLETS], key=_get_place))
    if not bullets:
        bullets = tuple(dict.fromkeys(text for child in children for text in child.bullets))[:ROLLED_BULLETS]
    counted: Counter[str] = Counter()
    for child in children:
        counted.update(child.keywords)
    keywords = sorted(counted, key=lambda word: (-counted[word], word))[:ROLLED_KEYWORDS]
    return Summary(title=title, bullets=bullets, keywords=tuple(keywords))


def _score_line(text: str, place: int, weights: Counter[str]) -> _Sentence:
    words = content_words(text)
    score = sum(weights[word] for word in words) / math.sqrt(len(words) + 2)
    return _Sentence(text, words, place, False, score)


def _weigh_words(texts: Iterable[str]) -> Counter[str]:
    """Return the weight of each word: more if several texts have it, a bit more if it is long."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(content_words(text[:READ_CHARACTERS]))
    weights: Counter[str] = Counter()
    for word, count in counts.items():
        weights[word] = round(1000 * math.log1p(count) * _weigh_length(word))
    return weights


def _weigh_length(word: str) -> float:
    return 1 + min(len(word), 12) / 24


def says_enough(word: str, least: int) -> bool:
    """Return whether a word is long enough: `least` characters, or two in a script without spaces."""
    return len(word) >= (SHORTEST_UNSPACED if is_unspaced(word) else least)


def content_words(text: str) -> frozenset[str]:
    """Return the words that carry the content of a text."""
    return frozenset(
        word
        for word in index_words(text)
        if says_enough(word, SHORTEST_WORD)
        and not word.isdigit()
        and not is_stop_word(word)
        and word not in _POLITE
    )


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text without code, markup and other text that is not prose."""
    plain = _FENCE.sub("\n", text[:READ_CHARACTERS])
    sentences: list[str] = []
    for line in plain.splitlines():
        for part in _ENDS.split(_MARKUP.sub("", line).strip()):
            sentence = " ".join(part.split())
            if len(sentence) >= 4 and len(_LETTERS.findall(sentence)) * 2 > len(sentence):
                sentences.append(sentence)
    return sentences
