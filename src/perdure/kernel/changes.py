"""The change feed: domains publish changed objects while there are followers, who read them again."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from perdure.kernel.signals.port import Signals, Stream
from perdure.kernel.storage.port import Tx

CHANNEL = "changes"


class ObjectChange(msgspec.Struct, frozen=True):
    """A changed object, with its status after the change."""

    kind: str
    id: str
    status: str


def tell(tx: Tx, kind: str, changed: Iterable[tuple[str, str]], *, ns: int | None = None) -> None:
    """Publish changed objects, given as (id, status); without followers, do nothing.

    `ns` is their namespace if it is not that of the transaction.
    """
    if tx.wants(CHANNEL):
        for name, status in changed:
            tx.hint(CHANNEL, _build_key(tx.ns if ns is None else ns, kind, status, name))


def publish(signals: Signals, ns: int, kind: str, id: str, status: str) -> None:
    """Publish a changed object that no transaction wrote."""
    if signals.wanted(CHANNEL):
        signals.publish([(CHANNEL, _build_key(ns, kind, status, id))])


def _build_key(ns: int | None, kind: str, status: str, id: str) -> str:
    # The id comes last, because it may contain a slash.
    return "/".join((str(ns), kind, status, id))


def follow(signals: Signals, namespaces: Collection[int] | None, limit: int) -> Stream:
    """Follow the changes of namespaces, or of all; at most `limit` unread changes are kept."""
    return signals.follow(CHANNEL, "" if namespaces is None else tuple(map(_build_prefix, namespaces)), limit)


def changed_in(namespaces: Collection[int], keys: Iterable[str]) -> list[str]:
    """Return the keys of a stream that are changes of these namespaces."""
    return [key for key in keys if key.startswith(tuple(map(_build_prefix, namespaces)))]


def _build_prefix(ns: int) -> str:
    return str(ns) + "/"


def changes_from(keys: Iterable[str]) -> list[ObjectChange]:
    """Parse the changes in the keys of a stream; keep only the latest of each object."""
    latest: dict[tuple[str, str], ObjectChange] = {}
    for key in keys:
        _, kind, status, name = key.split("/", 3)
        latest.pop((kind, name), None)
        latest[kind, name] = ObjectChange(kind, name, status)
    return list(latest.values())
