"""A store with an HTTP server: the store itself in its own process, a client in all others."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import Any, Literal, Self

from perdure.client.lightning import LightningStoreClient
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import InvalidInput, StartRefused
from perdure.rollouts.contract import LightningStore
from perdure.rollouts.records import LightningStoreCapabilities
from perdure.runtime.app import build_app
from perdure.server.http.connections import ConnectionLimits
from perdure.server.http.server import HttpServer
from perdure.server.table import build_application

logger = logging.getLogger(__name__)

LaunchMode = Literal["asyncio", "thread"]


class LightningStoreServer(LightningStore):
    """Serves a store over HTTP while this process continues to use the store directly.

    The object may be passed to other processes, forked or spawned; there it is a client of the server. It
    carries only the address, the key and its owner's process id, so start it first.

    By default it listens on loopback port 4747; port 0 takes a free port. Beyond loopback it needs an
    `api_key` or an explicit `insecure_no_auth`. Missing arguments come from the settings. The server always
    has its own thread; `launch_mode` exists only for compatibility with existing code.
    """

    def __init__(
        self,
        store: LightningStore,
        host: str | None = None,
        port: int | None = None,
        cors_allow_origins: Sequence[str] | str | None = None,
        launch_mode: LaunchMode = "thread",
        *,
        api_key: str | None = None,
        insecure_no_auth: bool | None = None,
    ) -> None:
        _check(store, launch_mode)
        settings = load_settings(
            {
                "host": host,
                "port": port,
                "cors_allow_origins": _origins(cors_allow_origins),
                "api_key": api_key,
                "insecure_no_auth": insecure_no_auth,
            }
        )
        self.store: LightningStore | None = store
        self._http: HttpServer | None = _http_server(store, settings)
        self._host, self._port, self._token = settings.host, settings.port, settings.api_key
        self._namespace: str | None = None
        self._owner_pid = os.getpid()
        self._client: LightningStoreClient | None = None
        _served.add(self)

    @property
    def endpoint(self) -> str:
        """The address for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)  # noqa: S104 - not bound
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._http.port if self._http is not None else self._port

    @property
    def server_thread(self) -> threading.Thread | None:
        """The thread of the server while it runs in this process."""
        return self._http.thread if self._http is not None else None

    async def start(self) -> None:
        """Listen, and return when requests are answered."""
        await asyncio.to_thread(self._owned().start)
        logger.info("the store is served at %s", self.endpoint)

    async def stop(self) -> None:
        """Finish accepted requests, and stop listening; the store stays open."""
        await asyncio.to_thread(self._owned().stop)

    async def run_forever(self) -> None:
        """Serve until the server ends or this call is cancelled."""
        await self.start()
        try:
            thread = self.server_thread
            while thread is not None and thread.is_alive():
                await asyncio.to_thread(thread.join, 1.0)
        finally:
            await asyncio.shield(self.stop())

    async def close(self) -> None:
        """Stop the server and close the store; elsewhere, close the client."""
        if self._is_owner():
            await self.stop()
        await self._backend().close()

    def in_namespace(self, namespace: str) -> Self:
        sibling = object.__new__(type(self))
        sibling.__dict__.update(self.__dict__)
        sibling._namespace, sibling._client = namespace, None
        if self.store is not None:
            sibling.store = self.store.in_namespace(namespace)
        return sibling

    @property
    def capabilities(self) -> LightningStoreCapabilities:
        return LightningStoreCapabilities(thread_safe=True, async_safe=True, zero_copy=True, otlp_traces=True)

    def otlp_traces_endpoint(self) -> str:
        return self.endpoint + "/v1/traces"

    def _is_owner(self) -> bool:
        return self.store is not None and os.getpid() == self._owner_pid

    def _owned(self) -> HttpServer:
        if self._http is None or not self._is_owner():
            raise StartRefused(
                f"only process {self._owner_pid}, which created the server, can start and stop it"
            )
        return self._http

    def _backend(self) -> LightningStore:
        """Return the store in its own process, and a client elsewhere."""
        if self.store is not None and self._is_owner():
            return self.store
        if self._client is None:
            self._client = LightningStoreClient(self.endpoint, token=self._token, namespace=self._namespace)
        return self._client

    def __getstate__(self) -> dict[str, Any]:
        return {
            "_host": self._host,
            "_port": self.port,
            "_token": self._token,
            "_namespace": self._namespace,
            "_owner_pid": self._owner_pid,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, store=None, _http=None, _client=None)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"


_served: weakref.WeakSet[LightningStoreServer] = weakref.WeakSet()


def _leave_in_child() -> None:
    # A forked process that holds the port would block the next server on it.
    for server in list(_served):
        if server._http is not None:
            server._http.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_in_child)


def _http_server(store: LightningStore, settings: Settings) -> HttpServer:
    application, limits = build_application(build_app(store, settings)), ConnectionLimits.of(settings)
    return HttpServer(application, host=settings.host, port=settings.port, limits=limits)


def _check(store: LightningStore, launch_mode: str) -> None:
    if launch_mode not in ("asyncio", "thread"):
        raise InvalidInput(
            f"launch_mode {launch_mode!r} is not supported; `perdure serve --workers` starts several "
            "processes on one PostgreSQL database"
        )
    able = store.capabilities
    if not able.get("async_safe") or not able.get("thread_safe"):
        raise InvalidInput("the store is not safe for many threads; wrap it in LightningStoreThreaded")


def _origins(given: Sequence[str] | str | None) -> list[str] | None:
    if given is None:
        return None
    origins = [given] if isinstance(given, str) else list(given)
    return [origin.strip() for origin in origins if origin.strip()]


def _forward(name: str, contract: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(contract)
    async def method(self: LightningStoreServer, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self._backend(), name)(*args, **kwargs)

    return method


for _name, _contract in inspect.getmembers(LightningStore, inspect.iscoroutinefunction):
    if not _name.startswith("_") and _name != "close":
        setattr(LightningStoreServer, _name, _forward(_name, _contract))
