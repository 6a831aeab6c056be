"""Idempotency keys: take a key, store the answer, return the stored answer of a repeated call.

An operation takes its keys in sorted order before any other lock, so that no transaction waits for a key
while it holds other locks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from perdure.kernel.errors import Conflict, StorageError
from perdure.kernel.storage.port import Tx
from perdure.service import sql
from perdure.service.rows import KeyRow
from perdure.service.tables import TRIM_ROWS


class StoredAnswer(msgspec.Struct, frozen=True):
    """The encoded answer to an earlier call under the same key."""

    text: str


def encode_answer(answer: Any) -> str:
    """Encode an answer for storage. This is quick, because bodies in answers are text already."""
    return msgspec.json.encode(answer, enc_hook=tuple).decode()


def decode_answers(answers: Sequence[Any], kind: Any = Any) -> list[Any]:
    """Decode the stored answers in a list as `kind`."""
    return [
        msgspec.json.decode(answer.text, type=kind) if isinstance(answer, StoredAnswer) else answer
        for answer in answers
    ]


F = TypeVar("F", bound=Callable[..., Any])


def get_action(operation: Callable[..., Any]) -> str:
    """Return the name under which an operation's idempotency keys are stored."""
    return getattr(operation, "action", operation.__name__)


def keyed_as(action: str, answer: Any = Any) -> Callable[[F], F]:
    """Set the action of an operation's idempotency keys, and the type of its answer for one item."""

    def name(operation: F) -> F:
        operation.action, operation.answer = action, answer  # type: ignore[attr-defined]
        return operation

    return name


def answer_type(operation: Callable[..., Any]) -> Any:
    """Return the type of an operation's stored answers."""
    return getattr(operation, "answer", Any)


async def once(
    tx: Tx, keys: Sequence[str], action: str, call: tuple[Any, ...], items: Sequence[Any], *rest: Any
) -> list[Any]:
    """Run an operation on a list, each item under its key; a used key returns its `StoredAnswer`.

    `call` is the operation with the arguments before the items. An error, or an answer without any result,
    changed nothing: its key is dropped.
    """
    wanted = sorted(set(keys))
    await tx.execute_many(sql.TAKE_KEY, [{"key": key, "action": action} for key in wanted])
    rows = {row.key: row for row in await tx.all(sql.FIND_KEYS, keys=wanted)}
    fresh: dict[str, Any] = {}
    for key, item in zip(keys, items, strict=True):
        # A row of an earlier transaction has an answer, so a row without one was inserted by this call.
        if key in rows and rows[key].answer is None:
            fresh.setdefault(key, item)
    answers: dict[str, Any] = {}
    if fresh:
        operation, *first = call
        answers = dict(zip(fresh, await operation(tx, *first, list(fresh.values()), *rest), strict=True))
        await _store_answers(tx, action, answers)
    return [answers[key] if key in answers else _stored(key, action, rows.get(key)) for key in keys]


async def is_used(tx: Tx, key: str) -> bool:
    """Return whether an idempotency key was used."""
    return bool(await tx.all(sql.FIND_KEYS, keys=[key]))


async def _store_answers(tx: Tx, action: str, answers: Mapping[str, Any]) -> None:
    done = {key: answer for key, answer in answers.items() if not _did_nothing(answer)}
    if done:
        rows = [KeyRow(key, action, encode_answer(answer)) for key, answer in done.items()]
        await tx.update_many(sql.KEEP_ANSWERS, rows)
    if len(done) < len(answers):
        await tx.execute(sql.DROP_KEYS, keys=[key for key in answers if key not in done])


def _stored(key: str, action: str, row: KeyRow | None) -> StoredAnswer | StorageError | Conflict:
    if row is None or row.answer is None:
        return StorageError(f"the idempotency key {key} was deleted during the call; try again")
    if row.action != action:
        return Conflict(f"the idempotency key {key} was used for {row.action}, not for {action}")
    return StoredAnswer(row.answer)


def _did_nothing(answer: Any) -> bool:
    if isinstance(answer, list | tuple):
        return all(map(_did_nothing, answer))
    return isinstance(answer, Exception)


async def trim_keys(tx: Tx, age: int) -> int:
    """Delete some keys older than `age` microseconds; return how many."""
    return await tx.execute(sql.TRIM_KEYS, before=tx.now - age, n=TRIM_ROWS)
