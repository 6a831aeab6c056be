"""What a server holds: the store, who may come in, and what it counts."""

from __future__ import annotations

import ipaddress
from collections import Counter
from hmac import compare_digest

from perdure.access.model import ALL_SCOPES, Caller, Token
from perdure.access.service import Access
from perdure.agents.store_section import ItemSetup
from perdure.assistants.service import Assistants
from perdure.items.service import Items
from perdure.kernel.config import Settings
from perdure.kernel.errors import Forbidden, NotSupported, StartRefused, Unauthorized
from perdure.kernel.metrics import Metrics
from perdure.langgraph.custom_auth import GraphAuth
from perdure.langgraph.views import GraphViews
from perdure.outbox.service import Outbox
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.store import DatabaseLightningStore
from perdure.runtime.services import Services
from perdure.schedules.service import Schedules
from perdure.threads.service import ThreadService
from perdure.worker.registry import Agents

KEY_ACTOR = "key"
ANONYMOUS = "anonymous"


class App:
    """One open store with its surroundings, as the doors see it."""

    def __init__(
        self, store: LightningStore, settings: Settings | None = None, items: ItemSetup | None = None
    ) -> None:
        self.store = store
        self.settings = settings or Settings()
        self.metrics = Metrics()
        self.access: Access | None = None
        self.threads: ThreadService | None = None
        self.outbox: Outbox | None = None
        """What is to happen outside. The process that delivers it puts one here that does."""
        self.items: Items | None = None
        self.schedules: Schedules | None = None
        self._services: Services | None = None
        if isinstance(store, DatabaseLightningStore):
            services = self._services = Services(store, self.settings, items)
            self.access, self.outbox = services.access, services.outbox
            self.threads, self.items, self.schedules = services.threads, services.items, services.schedules
            self.threads.start_timers(self.settings.stream_ttl)
            self.items.start_timers()
        self.agents: Agents | None = None
        """The agents that this process has, put here by whoever executes them."""
        self.auth: GraphAuth | None = None
        """Who decides on the LangGraph routes, where the operator has set custom auth."""
        self.feeds: Counter[str] = Counter()
        """How many feeds of changes each actor has open."""
        self.streams: Counter[str] = Counter()
        """How many streams of events each actor reads."""

    @property
    def services(self) -> Services:
        """The services of the database."""
        if self._services is None:
            raise NotSupported(f"a {type(self.store).__name__} has the Agent-lightning protocol only")
        return self._services

    @property
    def namespace(self) -> str:
        """The namespace of whoever names none."""
        return self.store.namespace if isinstance(self.store, DatabaseLightningStore) else "default"

    def store_for(self, caller: Caller) -> LightningStore:
        """The store of a caller's namespace, whose writes are on record as the caller's."""
        if not isinstance(self.store, DatabaseLightningStore):
            if caller.namespace != self.namespace:
                raise Forbidden(f"this store has no namespace {caller.namespace!r}")
            return self.store
        return self.services.acting_as(caller).store

    def threads_for(self, caller: Caller) -> ThreadService:
        """The threads of a caller's namespace, whose changes are on record as the caller's."""
        return self.services.acting_as(caller).threads

    def items_for(self, caller: Caller) -> Items:
        """The items of a caller's namespace, whose changes are on record as the caller's."""
        return self.services.acting_as(caller).items

    def schedules_for(self, caller: Caller) -> Schedules:
        """The schedules of a caller's namespace, whose changes are on record as the caller's."""
        return self.services.acting_as(caller).schedules

    def assistants_for(self, caller: Caller) -> Assistants:
        """The assistants of a caller's namespace, whose changes are on record as the caller's."""
        return self.services.acting_as(caller).assistants

    def views_for(self, caller: Caller) -> GraphViews:
        """The graphs of a caller's namespace, whose states are changed in the name of the caller."""
        items = None if self.items is None else self.items_for(caller)
        return GraphViews(self.agents, self.threads_for(caller), self.assistants_for(caller), items)

    async def check_start(self) -> None:
        """Refuse to listen beyond this machine while nobody needs a key."""
        settings = self.settings
        if is_loopback(settings.host) or settings.insecure_no_auth or await self._has_keys():
            return
        raise StartRefused(
            f"anyone who reaches {settings.host} could read and write everything. Set PERDURE_API_KEY to a "
            "key of at least 16 characters (or make a token with `perdure token create`), or say "
            "insecure_no_auth (--insecure-no-auth) if that is what you want."
        )

    async def _has_keys(self) -> bool:
        # Custom auth closes the other doors too: they would be a way around it.
        if self.settings.api_key is not None or self.auth is not None:
            return True
        return self.access is not None and await self.access.is_closed()

    async def admit(self, secret: str | None, namespace: str | None) -> Caller:
        """Who calls, by the secret that came along and the namespace that was asked for."""
        if secret:
            return await self._by_secret(secret, namespace)
        if not self.settings.insecure_no_auth and await self._has_keys():
            raise Unauthorized()
        return Caller(ANONYMOUS, ALL_SCOPES, namespace or self.namespace, None)

    async def _by_secret(self, secret: str, namespace: str | None) -> Caller:
        key = self.settings.api_key
        if key is not None and compare_digest(secret.encode(), key.encode()):
            return Caller(KEY_ACTOR, ALL_SCOPES, namespace or self.namespace, None)
        token = await self.access.authenticate(secret) if self.access is not None else None
        if token is None:
            raise Unauthorized("this token is not known, has expired or was revoked")
        return _caller_of(token, namespace)


def _caller_of(token: Token, namespace: str | None) -> Caller:
    everywhere = "*" in token.namespaces
    chosen = namespace or ("default" if everywhere else token.namespaces[0])
    if not everywhere and chosen not in token.namespaces:
        raise Forbidden(f"this token does not reach the namespace {chosen!r}")
    allowed = None if everywhere else tuple(token.namespaces)
    return Caller(token.token_id, frozenset(token.scopes), chosen, allowed)


def is_loopback(host: str) -> bool:
    """Whether an address is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
