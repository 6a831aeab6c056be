"""Authentication of tokens and logins, with a cache of a few seconds."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

from perdure.access import model, operations
from perdure.access.guesses import UNLIMITED, Guess
from perdure.access.logins import Login, LoginMatch, parse_login_id
from perdure.access.model import Token, TokenMatch
from perdure.kernel.clock import MICROS, to_seconds
from perdure.kernel.errors import StorageError
from perdure.kernel.merge import Merger
from perdure.kernel.storage.port import Operation, Storage
from perdure.service.tables import SYSTEM

CACHE_SECONDS = 5.0
CACHE_SIZE = 1024
USE_MICROS = 60 * MICROS

T = TypeVar("T")

logger = logging.getLogger(__name__)


class Authentication:
    """Finds the token or the login of a secret, and whether callers need one."""

    def __init__(self, storage: Storage, *, cache_seconds: float = CACHE_SECONDS) -> None:
        self.storage = storage
        self._merger = Merger()
        self._tokens = SecretFinder(self._find_token, cache_seconds)
        self._logins = SecretFinder(self._find_login, cache_seconds)
        self._closed = False
        self._open_until = 0.0
        self._age = 0
        """Number of times that the answers were cleared."""
        self._cache_seconds = cache_seconds
        self._listening = False
        self._lock = threading.Lock()

    async def authenticate(self, secret: str, guess: Guess = UNLIMITED) -> Token | None:
        """Return the token of a secret, or None if it is unknown or has ended.

        An answer is cached for a few seconds, unless a token is created or revoked meanwhile. `guess` raises
        TooManyRequests for too many look-ups of secrets that were not recently valid.
        """
        self._listen()
        return await self._tokens.find(model.parse_token_id(secret), secret, guess)

    async def find_login(self, secret: str, guess: Guess = UNLIMITED) -> Login | None:
        """Return the login of a secret, or None if it is unknown, or it or its token has ended."""
        self._listen()
        return await self._logins.find(parse_login_id(secret), secret, guess)

    async def _find_token(self, token_id: str, secret_hash: str) -> tuple[Token, float | None] | None:
        match = await self._merger.call("tokens", self._find_tokens, token_id)
        if match is None or not model.fits(secret_hash, match.row.hash):
            return None
        token, now = model.row_to_token(match.row), to_seconds(match.now)
        if not model.is_live(token, now):
            return None
        if token.last_used_time is None or to_seconds(match.now - USE_MICROS) >= token.last_used_time:
            await self._write_use(operations.use_token, token.token_id, USE_MICROS)
        return token, None if token.expire_time is None else token.expire_time - now

    async def _find_tokens(self, token_ids: Sequence[str]) -> Sequence[TokenMatch | None]:
        return await self.storage.read(operations.find_tokens, token_ids, ns=SYSTEM)

    async def _find_login(self, login_id: str, secret_hash: str) -> tuple[Login, float | None] | None:
        match = await self._merger.call("logins", self._find_logins, login_id)
        if match is None or not model.fits(secret_hash, match.row.hash) or match.row.expire_time <= match.now:
            return None
        row, now = match.row, to_seconds(match.now)
        token = None if match.token is None else model.row_to_token(match.token.row)
        if not row.proof and (token is None or not model.is_live(token, now)):
            return None
        if match.now - row.last_used_time >= row.use_interval:
            await self._write_use(operations.use_login, row)
        end = to_seconds(row.expire_time)
        if token is not None and token.expire_time is not None:
            end = min(end, token.expire_time)
        return Login(row.id, row.credential, row.proof, token), end - now

    async def _find_logins(self, login_ids: Sequence[str]) -> Sequence[LoginMatch | None]:
        return await self.storage.read(operations.find_logins, login_ids, ns=SYSTEM)

    async def _write_use(self, operation: Operation[..., None], *args: Any) -> None:
        """Record a use. A failure is logged and does not affect the caller."""
        try:
            await self.storage.run(operation, *args, ns=SYSTEM)
        except StorageError as error:
            logger.warning("the use could not be recorded by %s: %s", operation.__name__, error)

    async def is_closed(self) -> bool:
        """Return whether a token was ever created. From then on every caller needs one, permanently."""
        self._listen()
        if not self._closed and monotonic() >= self._open_until:
            age = self._age
            closed = await self.storage.read(operations.any_token, ns=SYSTEM)
            with self._lock:
                self._closed = self._closed or closed
                if age == self._age:
                    self._open_until = monotonic() + self._cache_seconds
        return self._closed

    def forget(self) -> None:
        """Clear every answer, because a token was created or revoked, or a login ended."""
        self._tokens.forget()
        self._logins.forget()
        with self._lock:
            self._age += 1
            self._open_until = 0.0

    def _listen(self) -> None:
        """Watch, from the first look-up on, for tokens that other processes create and revoke."""
        if not self._listening:
            with self._lock:
                started, self._listening = self._listening, True
            if not started:
                self.storage.timers.spawn(self._hear())

    async def _hear(self) -> None:
        with self.storage.signals.watch(operations.TOKENS_CHANNEL, [operations.ANY_TOKEN]) as watch:
            while True:
                await watch.changed()
                self.forget()


# --- the cache


Find = Callable[[str, str], Awaitable[tuple[T, float | None] | None]]
"""Finds a secret by its id and hash; returns the value and the maximum seconds to cache it."""


class SecretFinder(Generic[T]):
    """Finds the value of a secret, and caches it for a few seconds."""

    def __init__(self, find: Find[T], cache_seconds: float) -> None:
        self._find = find
        self._known: _Cache[T] = _Cache(cache_seconds)
        self._asked: set[str] = set()
        """Hashes of unknown secrets that are being looked up."""

    async def find(self, secret_id: str | None, secret: str, guess: Guess) -> T | None:
        """Return the value of a secret, or None. A secret without an id has an invalid form."""
        if secret_id is None:
            guess.count_failure()
            return None
        secret_hash = model.hash_secret(secret)
        answer = self._known.get(secret_hash)
        if answer is None:
            return await self._look_up_unknown(secret_id, secret_hash, guess)
        if answer.value is None:
            guess.count_failure()
        elif not answer.is_fresh:
            # Only the owner can send a valid secret, so the limits on wrong secrets must not apply.
            return await self._look_up(secret_id, secret_hash)
        return answer.value

    def forget(self) -> None:
        self._known.clear()

    async def _look_up_unknown(self, secret_id: str, secret_hash: str, guess: Guess) -> T | None:
        """Look up a secret within the limits. Concurrent look-ups of one valid secret count once."""
        if secret_hash in self._asked:
            value = await self._look_up(secret_id, secret_hash)
            if value is None:
                guess.count_failure()
            return value
        guess.begin_look_up()
        self._asked.add(secret_hash)
        try:
            value = await self._look_up(secret_id, secret_hash)
        finally:
            self._asked.discard(secret_hash)
        if value is not None:
            guess.forgive()
        return value

    async def _look_up(self, secret_id: str, secret_hash: str) -> T | None:
        age = self._known.age
        result = await self._find(secret_id, secret_hash)
        value, seconds = (None, None) if result is None else result
        self._known.put(secret_hash, value, age, seconds)
        return value


class _Answer(NamedTuple, Generic[T]):
    """Value of a secret, or None if the secret was wrong, and the end of its validity."""

    value: T | None
    until: float

    @property
    def is_fresh(self) -> bool:
        return monotonic() < self.until


class _Cache(Generic[T]):
    """The last answers by hash of the secret: at most `CACHE_SIZE` right and as many wrong ones.

    Wrong secrets cannot displace right ones. The secret of an expired right answer needs no limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._right: OrderedDict[str, _Answer[T]] = OrderedDict()
        self._wrong: OrderedDict[str, _Answer[T]] = OrderedDict()
        self.age = 0
        """Number of times that the cache was cleared: answers requested before are not kept."""

    def get(self, secret_hash: str) -> _Answer[T] | None:
        """Return a right answer of any age, or a fresh wrong one."""
        with self._lock:
            answer = self._right.get(secret_hash)
            if answer is not None:
                self._right.move_to_end(secret_hash)
                return answer
            answer = self._wrong.get(secret_hash)
            return answer if answer is not None and answer.is_fresh else None

    def put(self, secret_hash: str, value: T | None, age: int, left: float | None = None) -> None:
        """Keep an answer for a few seconds, at most for the seconds `left`."""
        seconds = self._seconds if left is None else min(self._seconds, left)
        answers, others = (self._wrong, self._right) if value is None else (self._right, self._wrong)
        with self._lock:
            others.pop(secret_hash, None)
            if age != self.age:
                return
            answers[secret_hash] = _Answer(value, monotonic() + seconds)
            answers.move_to_end(secret_hash)
            while len(answers) > CACHE_SIZE:
                answers.popitem(last=False)

    def clear(self) -> None:
        """Expire all answers: remove wrong ones; right ones are looked up again."""
        with self._lock:
            self.age += 1
            self._wrong.clear()
            for secret_hash, answer in self._right.items():
                self._right[secret_hash] = answer._replace(until=0.0)
