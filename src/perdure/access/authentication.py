"""Who a token belongs to, remembered for a few seconds."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from time import monotonic

from perdure.access import model, operations
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
        self._closed = False
        self._open_until = 0.0
        self._cache_seconds = cache_seconds
        self._listening = False
        self._lock = threading.Lock()

    async def authenticate(self, secret: str) -> Token | None:
        """The token whose secret this is, or None if there is none that is alive.

        An answer is remembered for a few seconds, unless a token is made or revoked meanwhile.
        """
        token_id = model.token_id_of(secret)
        if token_id is None:
            return None
        self._listen()
        secret_hash = model.hash_of(secret)
        known, token = self._known.get(secret_hash)
        if known:
            return token
        return await self._look_up(token_id, secret_hash)

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


class _Cache:
    """The answers of the last few seconds, by the hash of the secret; at most `CACHE_SIZE` of them."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, tuple[Token | None, float]] = OrderedDict()
        self.age = 0
        """How often it was cleared: an answer that was asked for before that is not kept."""

    def get(self, secret_hash: str) -> tuple[bool, Token | None]:
        """Whether the answer is known, and the answer."""
        with self._lock:
            token, until = self._answers.get(secret_hash, (None, 0.0))
            if monotonic() >= until:
                return False, None
            self._answers.move_to_end(secret_hash)
            return True, token

    def put(self, secret_hash: str, token: Token | None, age: int, left: float | None = None) -> None:
        """Keep an answer for a few seconds, or for as long as the token has `left` to live."""
        seconds = self._seconds if left is None else min(self._seconds, left)
        with self._lock:
            if age != self.age:
                return
            self._answers[secret_hash] = (token, monotonic() + seconds)
            self._answers.move_to_end(secret_hash)
            while len(self._answers) > CACHE_SIZE:
                self._answers.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self.age += 1
            self._answers.clear()
