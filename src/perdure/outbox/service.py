"""The outbox of one namespace: effects that are delivered outside, such as webhooks."""

from __future__ import annotations

from perdure.kernel.checks import Id, Limit, Offset, check_choice, check_text
from perdure.kernel.errors import Conflict, NotFound
from perdure.kernel.pages import Keyset, PaginatedResult
from perdure.kernel.record import Record
from perdure.kernel.storage.filters import given
from perdure.outbox import model, operations
from perdure.outbox.model import EFFECT_STATES, Effect, EffectState, EffectStatus
from perdure.service.base import Service
from perdure.service.endpoints import GET, POST, call

Statuses = list[EffectStatus]
_EFFECTS = Keyset[Effect, tuple[str] | None]("effects", None, lambda effect: (effect.id,), [str])


class RetriedEffects(Record):
    """Number of effects to deliver again."""

    retried: int


class Outbox(Service):
    """The effects of one namespace. `Deliveries` delivers them."""

    @call(GET("/outbox"), scope="read")
    async def list(
        self,
        *,
        status: EffectStatus | Statuses | None = None,
        consumer: str | None = None,
        subject: str | None = None,
        state: EffectState | None = None,
        limit: Limit = 100,
        offset: Offset = 0,
        cursor: str | None = None,
        total: bool = False,
    ) -> PaginatedResult[Effect]:
        """List effects without their bodies, newest first.

        `state` is `pending`, `processing`, `completed` or `failed`; a failed effect waits for its next try,
        or is dead. `total` counts the effects.
        """
        request = _EFFECTS.open_page(limit, offset, cursor)
        for what, value in (("consumer", consumer), ("subject", subject)):
            if value is not None:
                check_text(value, what)
        if state is not None:
            check_choice(state, EFFECT_STATES, "state")
        conditions = given(
            ("status", "within", model.statuses_from(status)),
            ("consumer", "exact", consumer),
            ("subject", "exact", subject),
        )
        items, counted = await self.read(
            operations.list_effects, conditions, limit, offset, state, request.place, total
        )
        return request.build_page(items, items, counted)

    @call(GET("/outbox/{effect_id}"), scope="read", errors=(NotFound,))
    async def get(self, effect_id: Id) -> Effect:
        """Get an effect with its body. Credentials of a URL in the body are masked."""
        effect = await self.read(operations.get_effect, check_text(effect_id, "effect_id"))
        if effect is None:
            raise NotFound(f"Effect {effect_id} not found")
        effect.body = model.shown_body(effect.body)
        return effect

    @call(POST("/outbox/{effect_id}/retry"), scope="write", errors=(NotFound, Conflict), repeatable=True)
    async def retry(self, effect_id: Id) -> Effect:
        """Retry a waiting or dead effect now. Conflict if it was delivered."""
        (answer,) = await self.write(operations.retry, [check_text(effect_id, "effect_id")])
        if isinstance(answer, Exception):
            raise answer
        return answer

    @call(POST("/outbox/retry"), scope="write", repeatable=True)
    async def retry_dead(self, *, consumer: str | None = None, subject: str | None = None) -> RetriedEffects:
        """Retry all dead effects, or the dead effects of a consumer or subject."""
        for what, value in (("consumer", consumer), ("subject", subject)):
            if value is not None:
                check_text(value, what)
        conditions = given(("consumer", "exact", consumer), ("subject", "exact", subject))
        retried = 0
        after: str | None = ""
        while after is not None:
            number, after = await self.write(operations.retry_dead, conditions, after)
            retried += number
        return RetriedEffects(retried=retried)
