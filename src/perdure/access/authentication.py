"""Who a token belongs to, remembered for a few seconds."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from time import monotonic
from typing import NamedTuple

from perdure.access import model, operations
from perdure.access.guesses import UNLIMITED, Guess
from perdure.access.model import FoundToken, Token
from perdure.access.tables import SYSTEM
from perdure.kernel.clock import MICROS, to_seconds
from perdure.kernel.errors import StorageError
from perdure.kernel.merge import Merger
from perdure.kernel.storage.port import Storage

CACHE_SECONDS = 5.0
CACHE_SIZE = 1024
USE_MICROS = 60 * MICROS

logger = logging.getLogger(__name__)


class Authentication:
    """Finds the token of a secret, and knows whether callers need one."""

    def __init__(self, storage: Storage, *, cache_seconds: float = CACHE_SECONDS) -> None:
        self.storage = storage
        self._merger = Merger()
        self._known = _Cache(cache_seconds)
        self._asked: set[str] = set()
        """The hashes of unknown secrets that are being looked up."""
        self._closed = False
        self._open_until = 0.0
        self._cache_seconds = cache_seconds
        self._listening = False
        self._lock = threading.Lock()

    async def authenticate(self, secret: str, guess: Guess = UNLIMITED) -> Token | None:
        """Return the token of a secret, or None if it is not known or has ended.

        An answer is kept for a few seconds, unless a token is created or revoked meanwhile. `guess` raises
        TooManyRequests if too many secrets are looked up that were not right lately.
        """
        token_id = model.token_id_of(secret)
        if token_id is None:
            guess.count_failure()
            return None
        self._listen()
        secret_hash = model.hash_of(secret)
        answer = self._known.get(secret_hash)
        if answer is None:
            return await self._look_up_unknown(token_id, secret_hash, guess)
        if answer.token is None:
            guess.count_failure()
        elif not answer.is_fresh:
            # Only its owner can send it, so that wrong tokens of others must not keep it from the database.
            return await self._look_up(token_id, secret_hash)
        return answer.token

    async def _look_up_unknown(self, token_id: str, secret_hash: str, guess: Guess) -> Token | None:
        """Look up a secret within the limits. If many callers send a right one at once, it counts once."""
        if secret_hash in self._asked:
            token = await self._look_up(token_id, secret_hash)
            if token is None:
                guess.count_failure()
            return token
        guess.begin_look_up()
        self._asked.add(secret_hash)
        try:
            token = await self._look_up(token_id, secret_hash)
        finally:
            self._asked.discard(secret_hash)
        if token is not None:
            guess.forgive()
        return token

    async def _look_up(self, token_id: str, secret_hash: str) -> Token | None:
        age = self._known.age
        found = await self._merger.call("tokens", self._find_batch, token_id)
        if found is None or not model.fits(secret_hash, found.row.hash):
            self._known.put(secret_hash, None, age)
            return None
        token, now = model.token_of(found.row), to_seconds(found.now)
        if not model.is_live(token, now):
            self._known.put(secret_hash, None, age)
            return None
        left = None if token.expire_time is None else token.expire_time - now
        self._known.put(secret_hash, token, age, left)
        await self._note_use(token, found.now)
        return token

    async def _find_batch(self, token_ids: Sequence[str]) -> Sequence[FoundToken | None]:
        return await self.storage.read(operations.find_tokens, token_ids, ns=SYSTEM)

    async def _note_use(self, token: Token, now: int) -> None:
        """Write down the use about once a minute; who may come in does not hang on it."""
        if token.last_used_time is not None and to_seconds(now - USE_MICROS) < token.last_used_time:
            return
        try:
            await self.storage.run(operations.use_token, token.token_id, USE_MICROS, ns=SYSTEM)
        except StorageError as error:
            logger.warning("the use of token %s could not be noted: %s", token.token_id, error)

    async def is_closed(self) -> bool:
        """Whether a token was ever made here. From then on every caller needs one: that never ends."""
        self._listen()
        if not self._closed and monotonic() >= self._open_until:
            age = self._known.age
            closed = await self.storage.read(operations.any_token, ns=SYSTEM)
            with self._lock:
                self._closed = self._closed or closed
                if age == self._known.age:
                    self._open_until = monotonic() + self._cache_seconds
        return self._closed

    def forget(self) -> None:
        """Forget every answer, since a token was created or revoked."""
        self._known.clear()
        with self._lock:
            self._open_until = 0.0

    def _listen(self) -> None:
        """Hear of tokens that others make and revoke; from the first question on."""
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


# --- what is remembered -----------------------------------------------------------------------------------


class _Answer(NamedTuple):
    """The token of a secret, or None if the secret was wrong, and until when this counts."""

    token: Token | None
    until: float

    @property
    def is_fresh(self) -> bool:
        return monotonic() < self.until


class _Cache:
    """The last answers by the hash of the secret: at most `CACHE_SIZE` right and as many wrong ones.

    Wrong secrets cannot displace right ones. A right one is remembered beyond its time, as one that is looked
    up again without a limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._right: OrderedDict[str, _Answer] = OrderedDict()
        self._wrong: OrderedDict[str, _Answer] = OrderedDict()
        self.age = 0
        """How often it was cleared: an answer that was asked for before that is not kept."""

    def get(self, secret_hash: str) -> _Answer | None:
        """Return a right answer, whatever its age, or a wrong one that is fresh."""
        with self._lock:
            answer = self._right.get(secret_hash)
            if answer is not None:
                self._right.move_to_end(secret_hash)
                return answer
            answer = self._wrong.get(secret_hash)
            return answer if answer is not None and answer.is_fresh else None

    def put(self, secret_hash: str, token: Token | None, age: int, left: float | None = None) -> None:
        """Keep an answer for a few seconds, or for as long as the token has `left` to live."""
        seconds = self._seconds if left is None else min(self._seconds, left)
        answers, others = (self._wrong, self._right) if token is None else (self._right, self._wrong)
        with self._lock:
            others.pop(secret_hash, None)
            if age != self.age:
                return
            answers[secret_hash] = _Answer(token, monotonic() + seconds)
            answers.move_to_end(secret_hash)
            while len(answers) > CACHE_SIZE:
                answers.popitem(last=False)

    def clear(self) -> None:
        """Let no answer count any more: wrong ones are forgotten, right ones are looked up again."""
        with self._lock:
            self.age += 1
            self._wrong.clear()
            for secret_hash, answer in self._right.items():
                self._right[secret_hash] = answer._replace(until=0.0)
