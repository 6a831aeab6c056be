"""Custom auth: an `Auth` object of `langgraph_sdk` that authenticates callers and authorizes actions.

Its handlers are the operator's code. Any error in them denies access.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from perdure.kernel.errors import Forbidden, InvalidInput, NotFound, PerdureError, Unauthorized

CONFIGURABLE_USER = "langgraph_auth_user"
CONFIGURABLE_ID = "langgraph_auth_user_id"
CONFIGURABLE_PERMISSIONS = "langgraph_auth_permissions"

Filter = Mapping[str, Any]
"""Conditions on the metadata of the objects that a user may see."""

logger = logging.getLogger(__name__)


class AuthRefused(PerdureError):
    """Refusal by the custom auth of this server."""

    code = "refused"
    http_status = 400


class Request(Protocol):
    """The parts of a request that an authenticator may read."""

    @property
    def method(self) -> str: ...
    @property
    def headers(self) -> Any: ...
    @property
    def query_params(self) -> Any: ...
    @property
    def url(self) -> Any: ...
    @property
    def scope(self) -> Any: ...


class User:
    """User that an authenticator returned. Its fields are attributes and items."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = dict(fields)

    @property
    def identity(self) -> str:
        return str(self._fields["identity"])

    @property
    def display_name(self) -> str:
        return str(self._fields.get("display_name") or self.identity)

    @property
    def is_authenticated(self) -> bool:
        return bool(self._fields.get("is_authenticated", True))

    @property
    def permissions(self) -> Sequence[str]:
        return list(self._fields.get("permissions") or ())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(name)
        return self._fields[name]

    def __getitem__(self, key: str) -> Any:
        return self.fields()[key]

    def __contains__(self, key: object) -> bool:
        return key in self.fields()

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields())

    def fields(self) -> dict[str, Any]:
        """Return all fields of the user, as a graph gets them in its configuration."""
        return {
            **self._fields,
            "identity": self.identity,
            "display_name": self.display_name,
            "is_authenticated": self.is_authenticated,
            "permissions": list(self.permissions),
        }

    def configurable(self) -> dict[str, Any]:
        """Return the keys that a run of this user has in `configurable`."""
        return {
            CONFIGURABLE_USER: self.fields(),
            CONFIGURABLE_ID: self.identity,
            CONFIGURABLE_PERMISSIONS: list(self.permissions),
        }


class GraphAuth:
    """Calls the handlers of an `Auth` object."""

    def __init__(self, auth: Any) -> None:
        from langgraph_sdk import Auth

        if not isinstance(auth, Auth):
            raise InvalidInput(f"auth must be a langgraph_sdk.Auth, not {type(auth).__name__}")
        if auth._authenticate_handler is None:
            raise InvalidInput("auth has no @auth.authenticate handler")
        self._auth = auth
        self._refusal = Auth.exceptions.HTTPException
        self._context = Auth.types.AuthContext

    # --- authentication ---------------------------------------------------------------------------------

    async def authenticate(self, request: Request) -> User:
        """Return the user of a request; an error if there is none."""
        handler: Any = self._auth._authenticate_handler
        arguments = _arguments(handler, request)
        try:
            return _user(await _call(handler, arguments))
        except self._refusal as refusal:
            raise _error(refusal) from None
        except Exception as error:
            logger.exception("the authenticator failed")
            raise Unauthorized("the caller could not be authenticated") from error

    # --- authorization ----------------------------------------------------------------------------------

    async def authorize(self, user: User, resource: str, action: str, value: dict[str, Any]) -> Filter:
        """Return the filter for objects that the user may see; Forbidden if the handler denies the action.

        The handler may change `value`. Without a handler, every authenticated user may do the action.
        """
        handler = self._handler(resource, action)
        if handler is None:
            return {}
        context = self._context(
            permissions=user.permissions,
            user=user,
            resource=resource,  # type: ignore[arg-type]
            action=action,  # type: ignore[arg-type]
        )
        try:
            answer = await handler(ctx=context, value=value)
        except self._refusal as refusal:
            raise _error(refusal) from None
        except Exception as error:
            logger.exception("the handler of %s.%s failed", resource, action)
            raise Forbidden(f"{resource}.{action} could not be authorized") from error
        return _filter(answer, resource, action)

    def _handler(self, resource: str, action: str) -> Any:
        """Return the most specific handler, chosen as LangGraph's server does."""
        handlers = self._auth._handlers
        for key in ((resource, action), (resource, "*"), ("*", action)):
            if handlers.get(key):
                return handlers[key][-1]
        return self._auth._global_handlers[-1] if self._auth._global_handlers else None


async def _call(handler: Any, arguments: Mapping[str, Any]) -> Any:
    """Call an authenticator. A sync one runs in a thread, where it may block."""
    if inspect.iscoroutinefunction(handler):
        return await handler(**arguments)
    result = await asyncio.to_thread(handler, **arguments)
    return await result if inspect.isawaitable(result) else result


def _arguments(handler: Any, request: Request) -> dict[str, Any]:
    """Build the arguments for the parameters of the authenticator."""
    headers = {name.encode("latin-1"): value.encode("latin-1") for name, value in request.headers.items()}
    available: dict[str, Any] = {
        "request": request,
        "method": request.method,
        "path": request.url.path,
        "path_params": dict(request.scope.get("path_params") or {}),
        "query_params": dict(request.query_params),
        "headers": headers,
        "authorization": request.headers.get("authorization"),
        "scope": request.scope,
    }
    wanted = inspect.signature(handler).parameters
    return {name: value for name, value in available.items() if name in wanted}


def _user(user: Any) -> User:
    if isinstance(user, str) and user:
        return User({"identity": user})
    fields = user if isinstance(user, Mapping) else _fields(user)
    if not isinstance(fields.get("identity"), str) or not fields["identity"]:
        raise Unauthorized("the authenticator returned no identity")
    return User(fields)


def _fields(user: Any) -> dict[str, Any]:
    """Return the fields of a user that is an object of the operator's class."""
    for name in ("model_dump", "dict", "to_dict"):
        if callable(method := getattr(user, name, None)):
            return dict(method())
    fields = dict(vars(user)) if hasattr(user, "__dict__") else {}
    for name in ("identity", "display_name", "is_authenticated", "permissions"):
        if hasattr(user, name):
            fields[name] = getattr(user, name)
    return {name: value for name, value in fields.items() if not name.startswith("_")}


def _error(refusal: Any) -> PerdureError:
    kinds: dict[int, type[PerdureError]] = {401: Unauthorized, 403: Forbidden, 404: NotFound}
    return kinds.get(refusal.status_code, AuthRefused)(str(refusal.detail))


def _filter(answer: Any, resource: str, action: str) -> Filter:
    if answer is None or answer is True:
        return {}
    if isinstance(answer, Mapping):
        return answer
    if answer is not False:
        logger.error("the handler of %s.%s returned %r, which is not a decision", resource, action, answer)
    raise Forbidden("Forbidden")
