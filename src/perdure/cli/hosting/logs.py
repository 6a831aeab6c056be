"""The log of a server: text or JSON lines on stderr, without secrets."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import sys
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TextIO
from urllib.parse import unquote, urlsplit

from perdure.kernel.config import Settings
from perdure.kernel.log_fields import LogFields, get_fields

SETTINGS = ("log_level", "log_json")
HIDDEN = "***"
SHORTEST_SECRET = 4
"""Shorter secrets would match parts of ordinary words."""
QUIET = ("uvicorn.error", "asyncio")
"""Loggers that log only warnings and errors."""

_WARNING = re.compile(r"perdure: |[\d-]{10} [\d:]{8} (?:WARNING|ERROR|CRITICAL) +[^\s:]+: ")
"""Start of a line about a problem, printed by a command or logged to a file."""

_IS = r"""['"]?\s*[:=,]\s*(?:b?['"])?"""
_VALUE = r"""[^\s'",;&}\]]+"""
_SCHEME = r"(?:(?:bearer|basic)\s+)?+"
_NO_SCHEME_ALONE = r"(?!(?:bearer|basic)(?:[^\w.~+/=-]|$))"
"""A text that only names the scheme contains no secret."""
_RULES = (
    (re.compile(r"\b(pd[rl]_[0-9a-f]{16}_)[A-Za-z0-9_-]+"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(authorization{_IS}{_SCHEME}){_NO_SCHEME_ALONE}{_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=-]{8,}"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(api[-_]?key{_IS}){_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(\b\w*(?:password|passwd|pwd|secret|token){_IS}){_VALUE}"), rf"\1{HIDDEN}"),
    (re.compile(r"""([A-Za-z][\w+.-]*://[^\s:/@'"]*:)[^\s'"]*@"""), rf"\1{HIDDEN}@"),
)


class Redaction:
    """Masks secrets in a text: known ones, and text that looks like one."""

    def __init__(self, secrets: Iterable[str | None] = ()) -> None:
        long_enough = {secret for secret in secrets if secret and len(secret) >= SHORTEST_SECRET}
        # Replace the longest first, because one secret may contain another.
        self._secrets = sorted(long_enough, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
        return text


class PlainFormatter(logging.Formatter):
    """One line of text: time, level, logger, message. In a file, the time has its date."""

    def __init__(self, redaction: Redaction, *, dated: bool = False) -> None:
        time_format = "%Y-%m-%d %H:%M:%S" if dated else "%H:%M:%S"
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s", time_format)
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        return self._redaction(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for log collectors."""

    is_json = True

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
            **get_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self._redaction(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False, default=str)


def find_warning(line: str) -> str | None:
    """Return the message of a warning or error in a line of a log file; None if the line has none."""
    if match := _WARNING.match(line):
        return line[match.end() :]
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    is_wrong = isinstance(entry, dict) and entry.get("level") in ("warning", "error", "critical")
    return str(entry["message"]) if is_wrong else None


def list_secrets(settings: Settings) -> list[str | None]:
    """Return the secrets in the settings."""
    return [settings.api_key, *_passwords(settings.database_url)]


def _passwords(url: str) -> list[str]:
    """Return the password of a URL, quoted and unquoted."""
    try:
        password = urlsplit(url).password
    except ValueError:
        return []
    return [password, unquote(password)] if password else []


async def reload(settings: Settings) -> str | None:
    """Use the log format and level of these settings. Return a description of the change."""
    root = logging.getLogger()
    before = [(root.level, type(handler.formatter)) for handler in root.handlers]
    streams = [logged.stream for logged in root.handlers if isinstance(logged, logging.StreamHandler)]
    handler = configure(settings, *streams[:1])
    if before == [(root.level, type(handler.formatter))]:
        return None
    return f"the level is {settings.log_level}{', as JSON' if settings.log_json else ''}"


def configure(settings: Settings, stream: TextIO | None = None) -> logging.Handler:
    """Log to stderr, in the format and level of the settings."""
    redaction = Redaction(list_secrets(settings))
    handler = logging.StreamHandler(stream or sys.stderr)
    plain = PlainFormatter(redaction, dated=_is_file(handler.stream))
    handler.setFormatter(JsonFormatter(redaction) if settings.log_json else plain)
    handler.addFilter(LogFields())
    if settings.log_json:
        # A collector of JSON lines does not accept other lines.
        logging.captureWarnings(True)
        sys.excepthook = _log_uncaught
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel("DEBUG" if settings.log_level == "debug" else "WARNING")
    return handler


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("the process ends with an error", exc_info=(kind, error, trace))


def _is_file(stream: TextIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
