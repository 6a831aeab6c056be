"""Built-in agent of phases that send a request. The rules for URLs of webhooks apply."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from perdure.agents.context import AgentError, Context
from perdure.agents.records import AgentSpec
from perdure.executions.model import QUOTA, TOOL
from perdure.kernel.codec import encode_json
from perdure.kernel.errors import InvalidInput
from perdure.kernel.version import VERSION
from perdure.outbox.webhooks.guarded import Guard, build_authorization, build_reason, pinned_session
from perdure.outbox.webhooks.urls import mask_target
from perdure.threads.work import MAX_OUTPUT
from perdure.worker.phase import PhaseResult

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
SECONDS: Final = 300.0
RETRIED: Final = frozenset({408, 425, 429})
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_CALL: Final = "request"


class HttpRules(msgspec.Struct, frozen=True):
    """Allowed targets of requests."""

    allow_private: bool = False
    allowed_hosts: Sequence[str] = ()


class HttpAgent:
    """Sends a request, and returns the body of the response. Redirects are not followed."""

    blocking = False

    def __init__(self, spec: AgentSpec, rules: HttpRules) -> None:
        self.spec = spec
        self._guard = Guard(allow_private=rules.allow_private, allowed_hosts=rules.allowed_hosts)

    async def run(self, ctx: Context, input: Any) -> PhaseResult:
        given: Mapping[str, Any] = input if isinstance(input, Mapping) else {}
        method, url = str(given.get("method") or "GET").upper(), given.get("url")
        if method not in METHODS or not isinstance(url, str):
            raise AgentError(f"the phase has no URL, or its method is none of {', '.join(METHODS)}")
        shown = {"method": method, "url": mask_target(url)}
        block = {"type": "tool_use", "id": _CALL, "name": "http", "input": shown}
        await ctx.message("assistant", [block])
        status, text = await self._send(method, url, given)
        good = 200 <= status < 300
        await ctx.tool_result(_CALL, f"{status}\n{text}", is_error=not good)
        if good:
            return PhaseResult(text)
        raise AgentError(
            f"{mask_target(url)} answered {status}",
            error="HttpError",
            retriable=status in RETRIED or status >= 500,
            stop_reason=QUOTA if status == 429 else TOOL,
            output=text,
        )

    async def _send(self, method: str, url: str, given: Mapping[str, Any]) -> tuple[int, str]:
        try:
            target = self._guard.check(url)
        except InvalidInput as error:
            raise AgentError(error.message.replace("webhook", "request", 1), error="InvalidInput") from error
        headers, body = _headers(given.get("headers")), _body(given.get("body"))
        seconds = given.get("timeout_seconds")
        seconds = seconds if isinstance(seconds, int | float) and 0 < seconds < SECONDS else SECONDS
        sent = {"User-Agent": "perdure/" + VERSION, **build_authorization(target), **headers}
        if body is not None and not isinstance(given["body"], str):
            sent.setdefault("Content-Type", "application/json")
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._guard.addresses(target)
                async with (
                    pinned_session(addresses) as session,
                    session.request(
                        method, target.url, data=body, headers=sent, allow_redirects=False
                    ) as answer,
                ):
                    return answer.status, await _read(answer)
        except InvalidInput as error:
            raise AgentError(error.message, error="InvalidInput") from error
        except TimeoutError as error:
            raise AgentError(f"no answer from {target.host} within {seconds:g} s", retriable=True) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise AgentError(build_reason(target, error), error="HttpError", retriable=True) from error


async def _read(answer: aiohttp.ClientResponse) -> str:
    """Read the beginning of the body as text, up to the limit of an output."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(64 << 10):
        body += chunk
        if len(body) > MAX_OUTPUT:
            break
    try:
        return bytes(body).decode(answer.charset or "utf-8", "replace")
    except LookupError:
        return bytes(body).decode("utf-8", "replace")


def _headers(given: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in (given if isinstance(given, Mapping) else {}).items():
        text = str(value)
        if not _HEADER.fullmatch(str(name)) or any(character in text for character in "\r\n\0"):
            raise AgentError(f"{str(name)[:64]!r} cannot be a header of a request", error="InvalidInput")
        headers[str(name)] = text
    return headers


def _body(given: Any) -> bytes | None:
    if given is None:
        return None
    return (given if isinstance(given, str) else encode_json(given, what="the body")).encode()
