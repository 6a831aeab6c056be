"""The change feed: each domain publishes what it changed while there are followers, who then read again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from perdure.kernel.signals.port import Signals, Stream
from perdure.kernel.storage.port import Tx

CHANNEL = "changes"


class ObjectChange(msgspec.Struct, frozen=True):
    """A changed object, with its status at that time."""

    kind: str
    id: str
    status: str


def tell(tx: Tx, kind: str, changed: Iterable[tuple[str, str]], *, ns: int | None = None) -> None:
    """Publish that objects, given as (id, status), have changed; does nothing without followers.

    `ns` is their namespace, where it is not that of the transaction.
    """
    if tx.wants(CHANNEL):
        for name, status in changed:
            tx.hint(CHANNEL, _key(tx.ns if ns is None else ns, kind, status, name))


def publish(signals: Signals, ns: int, kind: str, id: str, status: str) -> None:
    """Publish that an object that no transaction wrote has changed."""
    if signals.wanted(CHANNEL):
        signals.publish([(CHANNEL, _key(ns, kind, status, id))])


def _key(ns: int | None, kind: str, status: str, id: str) -> str:
    # The id comes last, since it may hold a slash.
    return "/".join((str(ns), kind, status, id))


def follow(signals: Signals, namespaces: Collection[int] | None, limit: int) -> Stream:
    """Read the changes of namespaces, or of all, from now on; up to `limit` wait until they are taken."""
    return signals.follow(CHANNEL, "" if namespaces is None else tuple(map(_prefix, namespaces)), limit)


def changed_in(namespaces: Collection[int], keys: Iterable[str]) -> list[str]:
    """Those of the keys of a stream that are changes of these namespaces."""
    return [key for key in keys if key.startswith(tuple(map(_prefix, namespaces)))]


def _prefix(ns: int) -> str:
    return str(ns) + "/"


def changes_from(keys: Iterable[str]) -> list[ObjectChange]:
    """The changes in the keys of a stream, only the latest for each object."""
    latest: dict[tuple[str, str], ObjectChange] = {}
    for key in keys:
        _, kind, status, name = key.split("/", 3)
        latest.pop((kind, name), None)
        latest[kind, name] = ObjectChange(kind, name, status)
    return list(latest.values())
