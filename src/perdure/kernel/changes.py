"""The change feed: each domain publishes what it changed while there are followers, who then read again."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from perdure.kernel.signals.port import Signals, Stream
from perdure.kernel.storage.port import Tx

CHANNEL = "changes"


class Change(msgspec.Struct, frozen=True):
    """A changed object, with its status at that time."""

    kind: str
    id: str
    status: str


def tell(tx: Tx, kind: str, changed: Iterable[tuple[str, str]]) -> None:
    """Publish that objects, given as (id, status), have changed; does nothing without followers."""
    if tx.wants(CHANNEL):
        for name, status in changed:
            # The id comes last, since it may hold a slash.
            tx.hint(CHANNEL, "/".join((str(tx.ns), kind, status, name)))


def follow(signals: Signals, ns: int | None, limit: int) -> Stream:
    """Read the changes of a namespace, or of all, from now on; up to `limit` wait until they are taken."""
    return signals.follow(CHANNEL, "" if ns is None else _prefix(ns), limit)


def changed_in(ns: int, keys: Iterable[str]) -> list[str]:
    """Those of the keys of a stream that are changes of a namespace."""
    return [key for key in keys if key.startswith(_prefix(ns))]


def _prefix(ns: int) -> str:
    return str(ns) + "/"


def changes_from(keys: Iterable[str]) -> list[Change]:
    """The changes in the keys of a stream, only the latest for each object."""
    latest: dict[tuple[str, str], Change] = {}
    for key in keys:
        _, kind, status, name = key.split("/", 3)
        latest.pop((kind, name), None)
        latest[kind, name] = Change(kind, name, status)
    return list(latest.values())
