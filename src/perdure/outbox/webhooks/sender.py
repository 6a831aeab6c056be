"""The consumer that delivers webhooks: only to checked addresses, without redirects.

It sends only the payload. It uses only the status and `Retry-After` of an answer, and reads at most 64 KiB.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import aiohttp

from perdure.kernel.codec import decode_json, encode_wire
from perdure.kernel.config import Settings
from perdure.kernel.errors import InvalidInput
from perdure.kernel.version import VERSION
from perdure.outbox.model import DeliveryPolicy, Effect, TryLater, Undeliverable
from perdure.outbox.webhooks.guarded import (
    Guard,
    NoAddress,
    Resolve,
    build_authorization,
    build_reason,
    pinned_session,
)
from perdure.outbox.webhooks.signing import key_of, signed_headers
from perdure.outbox.webhooks.urls import UrlPolicy, WebhookTarget

DEADLINE_SECONDS = 10.0
HOST_SHARE = 8
"""Maximum number of concurrent deliveries to one host, so that a slow host leaves slots for others."""
SHARE_WAIT = 2.0
LONGEST_RETRY_AFTER = 3600.0
RETRIED = frozenset({408, 425, 429})
"""4xx statuses worth retrying."""


class _Answer(NamedTuple):
    status: int
    retry_after: str | None


class WebhookSender:
    """Sends webhooks according to the settings.

    They are signed with `webhook_secret` and go to `webhook_allowed_hosts` if there are any, to private
    addresses only with `webhook_allow_private`, and to this machine also with `webhook_allow_loopback`. A
    project may add a `policy` for its URLs, and `headers` for every delivery.
    """

    name = "webhook"
    policy: DeliveryPolicy | None = None

    def __init__(
        self,
        settings: Settings,
        *,
        policy: UrlPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        resolve: Resolve | None = None,
        deadline: float = DEADLINE_SECONDS,
    ) -> None:
        self._more_headers = dict(headers or {})
        self._key = _get_key(settings)
        self._guard = Guard(
            allow_private=settings.webhook_allow_private,
            allow_loopback=settings.webhook_allow_loopback,
            allowed_hosts=settings.webhook_allowed_hosts,
            policy=policy,
            resolve=resolve,
        )
        self._deadline = deadline
        self._under_way: Counter[str] = Counter()

    async def reload(self, settings: Settings) -> str | None:
        """Sign with the secret of these settings from now on; return a description of the change."""
        key = _get_key(settings)
        if key == self._key:
            return None
        self._key = key
        return "webhooks are not signed any more" if key is None else "webhooks are signed with another key"

    async def deliver(self, effect: Effect) -> None:
        """Send one webhook. Any status from 200 to 299 confirms the delivery."""
        url, payload = _content(effect)
        target = self._checked(url)
        if self._under_way[target.host] >= HOST_SHARE:
            busy = f"too many concurrent deliveries to {target.host}"
            raise TryLater(busy, seconds=SHARE_WAIT, charged=False)
        self._under_way[target.host] += 1
        try:
            async with asyncio.timeout(self._deadline) as timer:
                answer = await self._post(target, effect.id, payload)
        except TimeoutError as error:
            late = f"no answer from {target.host} within {self._deadline:g} s"
            raise TryLater(late if timer.expired() else build_reason(target, error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise TryLater(build_reason(target, error)) from error
        finally:
            self._under_way[target.host] -= 1
            self._under_way += Counter()
        _judge(target, answer)

    def _checked(self, url: str) -> WebhookTarget:
        try:
            return self._guard.check(url)
        except InvalidInput as error:
            raise Undeliverable(error.message) from error

    async def _addresses(self, target: WebhookTarget) -> tuple[str, ...]:
        try:
            return await self._guard.addresses(target)
        except InvalidInput as error:
            raise Undeliverable(error.message) from error
        except NoAddress as error:
            raise TryLater(str(error)) from error

    async def _post(self, target: WebhookTarget, delivery_id: str, payload: dict[str, Any]) -> _Answer:
        addresses = await self._addresses(target)
        now = time.time()
        sent_at = datetime.fromtimestamp(now, UTC).isoformat()
        body = encode_wire({**payload, "webhook_sent_at": sent_at})
        own = {"Content-Type": "application/json", "User-Agent": "perdure/" + VERSION}
        signature = signed_headers(self._key, delivery_id, int(now), body)
        headers = self._more_headers | own | build_authorization(target) | signature
        async with (
            pinned_session(addresses) as session,
            session.post(target.url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            return _Answer(response.status, response.headers.get("Retry-After"))


# --- what goes out ----------------------------------------------------------------------------------------


def _content(effect: Effect) -> tuple[str, dict[str, Any]]:
    try:
        content = decode_json(effect.body)
    except InvalidInput as error:
        raise Undeliverable(f"the webhook cannot be read: {error.message}") from error
    url = content.get("url") if isinstance(content, dict) else None
    payload = content.get("payload") if isinstance(content, dict) else None
    if not isinstance(url, str) or not isinstance(payload, dict):
        raise Undeliverable("the webhook has no url or no payload")
    return url, payload


# --- what comes back --------------------------------------------------------------------------------------


def _judge(target: WebhookTarget, answer: _Answer) -> None:
    status = answer.status
    if 200 <= status < 300:
        return
    if 300 <= status < 400:
        raise Undeliverable(f"{target.host} answered {status}: redirects are not followed")
    if 400 <= status < 500 and status not in RETRIED:
        raise Undeliverable(f"{target.host} answered {status}")
    raise TryLater(f"{target.host} answered {status}", seconds=_retry_after(answer.retry_after))


def _retry_after(header: str | None) -> float:
    """Parse `Retry-After` as seconds or as a time, up to a limit."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), LONGEST_RETRY_AFTER)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    moment = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return min(max(0.0, moment.timestamp() - time.time()), LONGEST_RETRY_AFTER)


def _get_key(settings: Settings) -> bytes | None:
    """Return the key that signs webhooks."""
    return None if settings.webhook_secret is None else key_of(settings.webhook_secret)
