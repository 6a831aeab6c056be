"""Tokens, namespaces and the audit; and who the caller is. Nobody reaches beyond their own namespaces."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import structs

from perdure.access.model import Caller, Token
from perdure.access.service import Access
from perdure.client import native_wire as wire
from perdure.kernel.errors import Forbidden, NotFound, NotSupported
from perdure.server.http.routes import Call
from perdure.server.native.handlers import overview_of


def _access(call: Call) -> Access:
    if call.app.access is None:
        raise NotSupported(f"a {type(call.app.store).__name__} keeps neither tokens nor an audit")
    return call.app.access


def _reaches(caller: Caller, namespaces: Collection[str]) -> bool:
    return caller.namespaces is None or set(namespaces) <= set(caller.namespaces)


async def whoami(call: Call) -> wire.Me:
    caller = call.caller
    namespaces = None if caller.namespaces is None else list(caller.namespaces)
    return wire.Me(
        actor=caller.actor,
        scopes=sorted(caller.scopes),
        namespace=caller.namespace,
        namespaces=namespaces,
    )


async def create_token(call: Call) -> wire.NewToken:
    wanted: wire.TokenRequest = call.body
    namespaces = wanted.namespaces if wanted.namespaces is not None else [call.caller.namespace]
    if not _reaches(call.caller, namespaces):
        raise Forbidden("a token cannot reach further than the one that makes it")
    token, secret = await _access(call).create_token(
        wanted.name,
        scopes=wanted.scopes,
        namespaces=namespaces,
        expires_in=wanted.expires_in,
        actor=call.caller.actor,
    )
    return wire.NewToken(**structs.asdict(token), secret=secret)


async def list_tokens(call: Call) -> wire.Items[Token]:
    return wire.Items(items=await _tokens(call))


async def _tokens(call: Call) -> list[Token]:
    tokens = await _access(call).list_tokens()
    return [token for token in tokens if _reaches(call.caller, token.namespaces)]


async def revoke_token(call: Call) -> Token:
    token_id = call.path["token_id"]
    if token_id not in {token.token_id for token in await _tokens(call)}:
        raise NotFound(f"Token {token_id} not found")
    return await _access(call).revoke_token(token_id, actor=call.caller.actor)


async def list_namespaces(call: Call) -> wire.Items[str]:
    names = await overview_of(call).namespaces()
    return wire.Items(items=[name for name in names if _reaches(call.caller, [name])])


async def list_audit(call: Call) -> Any:
    query: wire.AuditQuery = call.query
    namespace = query.namespace
    if namespace is None and call.caller.namespaces is not None:
        namespace = call.caller.namespace
    if namespace is not None and not _reaches(call.caller, [namespace]):
        raise Forbidden(f"this token does not reach the namespace {namespace!r}")
    entries = await _access(call).query_audit(
        namespace=namespace,
        actor=query.actor,
        action=query.action,
        limit=query.limit,
        before=query.before,
    )
    is_full = len(entries) == query.limit
    return wire.AuditPage(items=entries, before=entries[-1].id if is_full else None)
