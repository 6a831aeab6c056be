"""Full-text search: the DDL of a `FullText` index, and the queries for each engine.

A query is split into words here, and only these words, quoted, reach an engine, so that no query is a syntax
error. Words are runs of letters and digits; both engines stem them as English. SQLite ranks by BM25,
PostgreSQL by cover density (`ts_rank_cd`), which ignores how rare a word is.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from perdure.kernel.storage.schema import FullText, Table
from perdure.kernel.words import split_words

INDEXED_CHARACTERS = 65_536
"""Indexed characters of a text: PostgreSQL refuses vectors of more than 1 MB."""
MAX_TERMS = 32
"""Maximum number of words in a query."""
MAX_WORD = 64

_PIECES = re.compile(r'(-?)"([^"]*)"|(\S+)')
_WORDS = re.compile(r"[^\W_]+")
_PUNCTUATION = string.punctuation
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about after all also an and any are as at be because been before but by can could did do "
        "does for from had has have how i if in into is it its just me my no not of on or our out "
        "over so some than that the their them then there these they this those to up was we were "
        "what when where which who why will with would you your",
    )
)


class Term(NamedTuple):
    """Consecutive words of a text; with `prefix`, the last one is the beginning of a word."""

    words: tuple[str, ...]
    prefix: bool = False


class TextQuery(NamedTuple):
    """Conditions for a text: all terms, or any of them, and none of the excluded ones."""

    terms: tuple[Term, ...]
    excluded: tuple[Term, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def match(self, engine: str, *, every: bool, tags: Sequence[str] = ()) -> str:
        """Return the query in the engine's syntax. On PostgreSQL `tags` are separate conditions."""
        if engine == "sqlite":
            return self._format_fts5(every, tags)
        wanted = "(" + (" & " if every else " | ").join(map(_format_ts_term, self.terms)) + ")"
        return " & ".join([wanted, *("!" + _format_ts_term(term) for term in self.excluded)])

    def _format_fts5(self, every: bool, tags: Sequence[str]) -> str:
        wanted = (" AND " if every else " OR ").join(map(_format_fts5_term, self.terms))
        text = "{text} : (" + wanted + ")"
        if self.excluded:
            text = "(" + text + " NOT {text} : (" + " OR ".join(map(_format_fts5_term, self.excluded)) + "))"
        return " AND ".join(["{tags} : " + _quote(tag) for tag in tags] + [text])


def parse_query(text: str) -> TextQuery:
    """Parse words, `"phrases"`, `prefix*` and `-excluded` terms; drop stop words if others are left."""
    terms: list[Term] = []
    excluded: list[Term] = []
    for minus, phrase, plain in _PIECES.findall(_normalize(text)):
        words = _words(phrase or plain)
        away = bool(minus) or plain.startswith("-")
        if not words:
            continue
        prefix = plain.endswith("*")
        parsed = [Term(words, prefix)] if phrase or away or prefix else [Term((word,)) for word in words]
        (excluded if away else terms).extend(parsed)
    significant = [term for term in terms if term.prefix or not all(map(is_stop_word, term.words))]
    return TextQuery(tuple((significant or terms)[:MAX_TERMS]), tuple(excluded[:MAX_TERMS]))


def index_words(text: str) -> tuple[str, ...]:
    """Return the words of a text in their normalized form."""
    return tuple(word[:MAX_WORD] for word in split_words(_normalize(text)))


def is_stop_word(word: str) -> bool:
    """Return whether a word is in nearly every text, so that it does not narrow a search."""
    return word in _STOP_WORDS


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFC", text).lower()


def _words(text: str) -> tuple[str, ...]:
    return tuple(word[:MAX_WORD] for word in _WORDS.findall(text))


def _quote(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def _format_fts5_term(term: Term) -> str:
    return _quote(" ".join(term.words)) + ("*" if term.prefix else "")


def _format_ts_term(term: Term) -> str:
    words = ["'" + word.replace("'", "''") + "'" for word in term.words]
    return "(" + " <-> ".join(words) + (":*" if term.prefix else "") + ")"


# --- what the engines create ------------------------------------------------------------------------------


def create_sqlite(table: Table, index: FullText) -> list[str]:
    """Return the DDL of an FTS5 table without its own text, and of the triggers that update it."""
    columns = ("rowid", "tags", "text")
    into = "INSERT INTO " + index.name + " (" + ", ".join(columns) + ")"
    added = into + " SELECT " + _select_values(index, "new")
    removed = "INSERT INTO " + index.name + " (" + index.name + ", " + ", ".join(columns) + ")"
    removed += " SELECT 'delete', " + _select_values(index, "old")
    source = index.name + "_source"
    view = "SELECT place, tags, " + _limit_text(index.text) + " AS text FROM " + table.name
    return [
        "CREATE VIEW " + source + " AS " + view + " WHERE place IS NOT NULL",
        "CREATE VIRTUAL TABLE " + index.name + " USING fts5(tags, text, content='" + source + "',"
        " content_rowid='place', tokenize='porter unicode61 remove_diacritics 2')",
        _trigger(table, index, "INSERT", added),
        _trigger(table, index, "DELETE", removed),
        _trigger(table, index, "UPDATE OF place, tags, " + index.text, removed + "; " + added),
    ]


def _select_values(index: FullText, row: str) -> str:
    names = (row + ".place", row + ".tags", _limit_text(row + "." + index.text))
    return ", ".join(names) + " WHERE " + row + ".place IS NOT NULL"


def _limit_text(column: str) -> str:
    return "substr(" + column + ", 1, " + str(INDEXED_CHARACTERS) + ")"


def _trigger(table: Table, index: FullText, event: str, action: str) -> str:
    name = index.name + "_" + event.partition(" ")[0].lower()
    return " ".join(("CREATE TRIGGER", name, "AFTER", event, "ON", table.name, "BEGIN", action + "; END"))


def create_postgres(table: Table, index: FullText) -> list[str]:
    """Return the DDL of a computed PostgreSQL column and its index."""
    # Otherwise the parser treats paths and addresses as one word each.
    marks = "'" + _PUNCTUATION.replace("'", "''") + "', '" + " " * len(_PUNCTUATION) + "'"
    plain = "translate(left(" + index.text + ", " + str(INDEXED_CHARACTERS) + "), " + marks + ")"
    vector = "CASE WHEN place IS NOT NULL THEN to_tsvector('english', " + plain + ") END"
    column = index.name + " tsvector GENERATED ALWAYS AS (" + vector + ") STORED"
    return [
        "ALTER TABLE " + table.name + " ADD COLUMN " + column,
        "CREATE INDEX " + index.name + "_gin ON " + table.name + " USING gin (" + index.name + ")",
    ]


# --- maintenance ------------------------------------------------------------------------------------------

MERGE_PAGES = 200
"""Number of FTS5 pages merged at once."""
MERGE_POSTGRES = "SELECT gin_clean_pending_list($1::text::regclass)"


def merge_sqlite(index: FullText) -> str:
    """Return the text that merges some segments of an index."""
    words = (
        "INSERT INTO",
        index.name,
        "(" + index.name + ", rank) VALUES ('merge', " + str(MERGE_PAGES) + ")",
    )
    return " ".join(words)
