"""The app of a server: a store, its services, authentication and metrics."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter
from hmac import compare_digest
from typing import Any

from perdure.access.guesses import UNLIMITED, Guess, GuessLimits
from perdure.access.logins import Login, prove
from perdure.access.model import Token
from perdure.agents.sections import HttpSection, ItemSetup
from perdure.graph_requests.graphs import AgentGraphs
from perdure.kernel.config import Settings
from perdure.kernel.errors import (
    Forbidden,
    NotSupported,
    PerdureError,
    StartRefused,
    StorageUnavailable,
    Unauthorized,
)
from perdure.kernel.metrics import Metrics
from perdure.langgraph.custom_auth import GraphAuth
from perdure.langgraph.views import NamespaceGraphs
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.service import Rollouts
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.backups import ScheduledBackup
from perdure.runtime.reloads import Reloads
from perdure.runtime.services import Services
from perdure.runtime.tls import SETTINGS as TLS_SETTINGS
from perdure.runtime.tls import Tls
from perdure.service.callers import ALL_SCOPES, KEY, Actor, Caller, Credential
from perdure.threads.records import Lifetime
from perdure.worker.registry import Agents

READY_SECONDS = 5.0
"""Maximum seconds for the database to answer a probe."""
LOCAL_ACTOR = "local"
ANONYMOUS = "anonymous"

logger = logging.getLogger(__name__)


class StoreApp:
    """A LightningStore that is served, with its settings, metrics and authentication.

    By itself it serves a third-party store, which has only the Agent-lightning protocol.
    """

    def __init__(self, store: LightningStore, settings: Settings | None = None) -> None:
        self.store = store
        self.reloads = Reloads(settings or Settings())
        """Parts that are reloaded at SIGHUP; each part registers itself."""
        self.stopping = False
        """Whether this process is stopping: it still answers, but wants no new requests."""
        self.metrics = Metrics()
        self.namespace = "default"
        """The namespace of a caller that names none."""
        self.auth: GraphAuth | None = None
        """Custom auth for the LangGraph routes, if the operator has set it."""
        self.http = HttpSection()
        """Server options of the project's `langgraph.json`."""
        self.local_secret: str | None = None
        """The secret of the command on this machine."""
        self.guesses = GuessLimits()
        """Limits of wrong and unknown secrets, shared by HTTP and gRPC."""
        self.agents: Agents | None = None
        """The agents of this process, set by the worker that executes them."""
        self.backup: ScheduledBackup | None = None
        """The scheduled backup, if the settings enable it."""
        self.feeds: Counter[str] = Counter()
        """Number of open change feeds by actor."""
        self.streams: Counter[str] = Counter()
        """Number of open event streams by actor."""
        self.started_at = time.time()
        """When this process started to serve, in epoch seconds."""
        self.grpc_ports: tuple[int, ...] = ()
        """The ports of the gRPC server."""
        self.tls = Tls.of(self.settings)
        """The certificate of HTTP and gRPC; None without TLS."""

        self.reloads.add("API key", self._reload_key, settings=["api_key"])
        if self.tls is not None:
            self.reloads.add("certificates", self.tls.reload, settings=TLS_SETTINGS)

    @property
    def settings(self) -> Settings:
        """The settings in effect."""
        return self.reloads.settings

    async def health(self) -> dict[str, Any]:
        """Return the health of the database: `status` is ok or degraded, with the reason and details."""
        return {"status": "ok"}

    @property
    def services(self) -> Services:
        """The services of the database."""
        raise NotSupported(f"a {type(self.store).__name__} has the Agent-lightning protocol only")

    def store_for(self, caller: Caller) -> LightningStore:
        """Return the store of a caller's namespace; the audit records its writes as the caller's."""
        if caller.namespace != self.namespace:
            raise Forbidden(f"this store has no namespace {caller.namespace!r}")
        return self.store

    def rollouts_for(self, caller: Caller) -> Rollouts | None:
        """Return the rollouts of a caller's namespace; None for a third-party store."""
        return None

    def views_for(self, caller: Caller) -> NamespaceGraphs:
        """Return the graphs of a caller's namespace, acting as the caller."""
        services = self.services.acting_as(caller)
        return NamespaceGraphs(
            self.agents, services.threads, services.assistants, services.graph_requests, services.items
        )

    def graphs_for(self, caller: Caller) -> AgentGraphs:
        """Return the service for the graphs of a caller's namespace."""
        storage = self.services.storage
        return AgentGraphs(storage, self.views_for(caller), namespace=caller.namespace, caller=caller)

    async def check_start(self) -> None:
        """Refuse to listen on addresses other than loopback while no key or token is required."""
        settings = self.settings
        if is_loopback(settings.host) or settings.insecure_no_auth or await self.has_keys():
            return
        raise StartRefused(
            f"{settings.host} is open to other machines, and requests need no key. Set PERDURE_API_KEY to a "
            "key of at least 16 characters, or create a token with `perdure token create`. To allow requests "
            "without a key, use --insecure-no-auth (setting insecure_no_auth)."
        )

    async def has_keys(self) -> bool:
        """Return whether there is a key, a token or custom auth."""
        return self.settings.api_key is not None or await self._has_other_keys()

    async def _has_other_keys(self) -> bool:
        # Custom auth closes the other protocols too, because they would bypass it.
        return self.auth is not None or await self._has_tokens()

    async def _reload_key(self, settings: Settings) -> str | None:
        """Use another API key. If requests would then need no key, require a restart."""
        if settings.api_key == self.settings.api_key:
            return None
        if settings.api_key is None and not await self._has_other_keys():
            raise StartRefused("without it, requests would need no key; a restart is needed for that")
        return "the key was removed" if settings.api_key is None else "the key has changed"

    async def needs_secret(self) -> bool:
        """Return whether every caller needs a key or a token."""
        return not self.settings.insecure_no_auth and await self.has_keys()

    async def admit(self, secret: str | None, namespace: str | None, guess: Guess = UNLIMITED) -> Caller:
        """Return the caller with this secret, in the requested namespace.

        `guess` limits unknown secrets. The key, the local secret and recently seen tokens are never limited,
        so that wrong tokens of other callers lock no caller out.
        """
        if secret:
            return await self._by_secret(secret, namespace, guess)
        if await self.needs_secret():
            raise Unauthorized()
        return Caller(ANONYMOUS, ALL_SCOPES, namespace or self.namespace, None)

    async def _by_secret(self, secret: str, namespace: str | None, guess: Guess) -> Caller:
        key = self.settings.api_key
        if key is not None and compare_digest(secret.encode(), key.encode()):
            return Caller(KEY, ALL_SCOPES, namespace or self.namespace, None, "key")
        local = self.local_secret
        if local is not None and compare_digest(secret.encode(), local.encode()):
            return Caller(LOCAL_ACTOR, ALL_SCOPES, namespace or self.namespace, None, "local")
        token = await self._find_token(secret, guess)
        if token is None:
            raise Unauthorized("this token is unknown, has expired or was revoked")
        return _build_caller(token, namespace, "token")

    async def admit_login(self, secret: str, namespace: str | None, guess: Guess = UNLIMITED) -> Caller:
        """Return the caller with this login of the dashboard, in the requested namespace."""
        login = await self._find_login(secret, guess)
        if login is not None and login.token is not None:
            return _build_caller(login.token, namespace, "login")
        secrets = {KEY: self.settings.api_key, LOCAL_ACTOR: self.local_secret}
        used = None if login is None else secrets.get(login.credential)
        if login is None or used is None or not compare_digest(login.proof, prove(secret, used)):
            raise Unauthorized("this login has ended; log in again")
        # A process that can read the local secret can log in with it; that does not make it a person.
        credential: Credential = "local" if login.credential == LOCAL_ACTOR else "login"
        return Caller(login.credential, ALL_SCOPES, namespace or self.namespace, None, credential)

    async def close(self) -> None:
        """Close the store and everything that belongs to it."""
        await self.store.close()

    async def _has_tokens(self) -> bool:
        return False

    async def _find_token(self, secret: str, guess: Guess) -> Token | None:
        guess.count_failure()
        return None

    async def _find_login(self, secret: str, guess: Guess) -> Login | None:
        guess.count_failure()
        return None


class App(StoreApp):
    """A database that is served, with its services."""

    def __init__(
        self,
        store: DatabaseLightningStore,
        settings: Settings | None = None,
        items: ItemSetup | None = None,
        http: HttpSection | None = None,
        lifetime: Lifetime | None = None,
    ) -> None:
        super().__init__(store, settings)
        self.namespace = store.namespace
        self.http = http or HttpSection()
        self._services = Services(store, self.settings, items, self.http, lifetime)
        self._services.start_timers(self.settings)

    @property
    def services(self) -> Services:
        return self._services

    async def health(self) -> dict[str, Any]:
        # Ping first, because a database that answers again is no longer degraded.
        unreachable = await self._unreachable()
        health = dict(await self._services.store.health())
        health["engine"] = self._services.storage.engine
        if unreachable is None and health["reason"] is not None:
            unreachable = StorageUnavailable(health["reason"])
        if unreachable is not None:
            logger.warning("the database is not available: %s", unreachable.message)
            health |= {"status": "degraded", "reason": unreachable.public}
        if health.get("redis_reason") is not None:
            logger.warning("Redis is not available: %s", health["redis_reason"])
            health["redis_reason"] = "Redis cannot be reached."
        return health

    async def _unreachable(self) -> PerdureError | None:
        """Return why the database does not answer, or None if it does."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                await self._services.ping()
        except PerdureError as error:
            return error
        except TimeoutError:
            return StorageUnavailable(f"the database did not answer within {READY_SECONDS:.0f} s")
        return None

    def store_for(self, caller: Caller) -> LightningStore:
        return self._services.acting_as(caller).store

    def rollouts_for(self, caller: Caller) -> Rollouts:
        return self._services.acting_as(caller).rollouts

    async def close(self) -> None:
        await self._services.finish()
        await super().close()

    async def _has_tokens(self) -> bool:
        return await self._services.authentication.is_closed()

    async def _find_token(self, secret: str, guess: Guess) -> Token | None:
        return await self._services.authentication.authenticate(secret, guess)

    async def _find_login(self, secret: str, guess: Guess) -> Login | None:
        return await self._services.authentication.find_login(secret, guess)


def build_app(store: LightningStore, settings: Settings | None = None) -> StoreApp:
    """Build the app of a store: all of perdure for a database, otherwise only Agent-lightning's protocol."""
    return App(store, settings) if isinstance(store, DatabaseLightningStore) else StoreApp(store, settings)


def _build_caller(token: Token, namespace: str | None, credential: Credential) -> Caller:
    everywhere = "*" in token.namespaces
    chosen = namespace or ("default" if everywhere else token.namespaces[0])
    if not everywhere and chosen not in token.namespaces:
        raise Forbidden(f"this token does not reach the namespace {chosen!r}")
    allowed = None if everywhere else tuple(token.namespaces)
    return Caller(Actor(token.token_id, token.name), frozenset(token.scopes), chosen, allowed, credential)


def is_loopback(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
