"""The log of a server: lines on stderr for people or for machines, without a secret in them."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterable
from typing import TextIO
from urllib.parse import unquote, urlsplit

from perdure.kernel.config import Settings

HIDDEN = "***"
SHORTEST_SECRET = 4
"""What is shorter would be found in half of all words."""
QUIET = ("uvicorn.error", "asyncio")
"""Loggers whose everyday news nobody reads."""

_IS = r"""['"]?\s*[:=,]\s*(?:b?['"])?"""
_VALUE = r"""[^\s'",;&}\]]+"""
_SCHEME = r"(?:(?:bearer|basic)\s+)?+"
_NO_SCHEME_ALONE = r"(?!(?:bearer|basic)(?:[^\w.~+/=-]|$))"
"""A text that only names the scheme, as in help, holds no secret."""
_RULES = (
    (re.compile(r"\b(pdr_[0-9a-f]{16}_)[A-Za-z0-9_-]+"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(authorization{_IS}{_SCHEME}){_NO_SCHEME_ALONE}{_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(api[-_]?key{_IS}){_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(\b\w*(?:password|passwd|pwd|secret|token){_IS}){_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(r"""([A-Za-z][\w+.-]*://[^\s:/@'"]*:)[^\s'"]*@"""), rf"\1{HIDDEN}@"),
)


class Redaction:
    """Takes secrets out of a text: those that are known, and whatever has the form of one."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        known = {secret for secret in secrets if secret and len(secret) >= SHORTEST_SECRET}
        # The longer first, so that one which holds another is hidden whole.
        self._secrets = sorted(known, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return text


class PlainFormatter(logging.Formatter):
    """One line for a person: when, how bad, who, what."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        return self._redaction(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object in a line, for a collector of logs."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__()
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{second}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._redaction(record.getMessage()),
        }
        if record.exc_info:
            entry["exception"] = self._redaction(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def secrets_of(settings: Settings) -> list[str | None]:
    """What the settings hold that no log may show."""
    return [settings.api_key, *_passwords(settings.database_url)]


def _passwords(url: str) -> list[str]:
    """A URL's password, as it is written and as it is meant."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return []
    return [password, unquote(password)] if password else []


def configure(settings: Settings, stream: TextIO | None = None) -> logging.Handler:
    """Let everything log to stderr, as the settings want it."""
    redaction = Redaction(secrets_of(settings))
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter(redaction) if settings.log_json else PlainFormatter(redaction))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel("DEBUG" if settings.log_level == "debug" else "WARNING")
    return handler
