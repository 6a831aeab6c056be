"""Answers of a server as the records that they tell of."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import MsgspecError
from msgspec.json import Decoder

from perdure.client.session import Answer
from perdure.kernel.errors import Unreachable
from perdure.rollouts.records import Attempt, AttemptedRollout, Rollout, Worker
from perdure.rollouts.resources import ResourcesUpdate

T = TypeVar("T")

ATTEMPTED = Decoder(AttemptedRollout)
MANY_ATTEMPTED = Decoder(list[AttemptedRollout])
ROLLOUT = Decoder(Rollout)
MANY_ROLLOUTS: Decoder[list[Rollout]] = Decoder(list[Rollout])
CLAIMS: Decoder[list[list[AttemptedRollout]]] = Decoder(list[list[AttemptedRollout]])
ATTEMPT = Decoder(Attempt)
MANY_ATTEMPTS: Decoder[list[Attempt]] = Decoder(list[Attempt])
ATTEMPT_OR_NONE: Decoder[Attempt | None] = Decoder(Attempt | None)
WORKER = Decoder(Worker)
WORKER_OR_NONE: Decoder[Worker | None] = Decoder(Worker | None)
RESOURCES = Decoder(ResourcesUpdate)
RESOURCES_OR_NONE: Decoder[ResourcesUpdate | None] = Decoder(ResourcesUpdate | None)


def decoded(decoder: Decoder[T], answer: Answer) -> T:
    """An answer as its type."""
    try:
        return decoder.decode(answer.body)
    except (MsgspecError, UnicodeDecodeError) as error:
        raise Unreachable(f"the answer is not from a perdure server: {error}") from error


def rollout_from(found: Any) -> Rollout:
    """A rollout, with its attempt if it has one."""
    attempted = isinstance(found, dict) and found.get("attempt") is not None
    return AttemptedRollout.model_validate(found) if attempted else Rollout.model_validate(found)
