"""Service of requests to workers in one namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from perdure.checkpoints.records import GraphSteps
from perdure.graph_requests import operations
from perdure.graph_requests.model import (
    DEADLINE_SECONDS,
    GRAPHS_QUEUE,
    LEASE_SECONDS,
    MAX_ANSWER,
    MAX_MESSAGE,
    GraphAnswerRow,
    NewAnswer,
    RequestRow,
    build_refusal,
)
from perdure.graph_requests.operations import ClaimedRequest, GraphChange
from perdure.graph_requests.records import (
    GraphAssignment,
    GraphCall,
    GraphError,
    RequestLease,
    check_lease,
)
from perdure.kernel import ids
from perdure.kernel.checks import Id, check_id, check_name, check_text
from perdure.kernel.clock import MICROS, to_micros
from perdure.kernel.codec import check_json, decode_json, encode_json
from perdure.kernel.errors import AgentUnavailable, Fenced, InvalidInput, storable
from perdure.kernel.signals.port import until
from perdure.rollouts.operations.claim import Claim, release_rollouts
from perdure.rollouts.operations.work import ENDED_CHANNEL, READY_CHANNEL, ended_key, ready_key
from perdure.rollouts.watchdog import WatchedService
from perdure.runs.queue import MAX_BODY, WORK, Wait, WorkerId
from perdure.service.endpoints import MAX_BATCH, POST, Acknowledged, call, under
from perdure.threads.encoding import check_states, encode_steps
from perdure.threads.rows import row_to_checkpoint

REQUESTS = WORK + "/requests"
"""Path of the methods of workers."""
POLL_SECONDS = 1.0
"""Interval at which a caller polls for its answer, if no hint arrives."""
LINGER_SECONDS = 30.0
"""How long an expired request stays in the database."""
REMOVE_SECONDS = 15.0

Leases = Annotated[Sequence[RequestLease], Meta(max_length=MAX_BATCH)]
AgentNames = Annotated[Sequence[Id], Meta(max_length=MAX_BATCH)]


class GraphRequests(WatchedService):
    """Sends requests that need the code of a graph to workers, and returns their answers.

    A request is a rollout of its own kind: it is in no line and in no list of runs. At most one answer is
    applied, together with its change.
    """

    async def ask(self, agent: str, thread_id: str, call: GraphCall) -> Any:
        """Ask a worker that has the agent; return its answer.

        AgentUnavailable if no answer came before the deadline; the request is not executed later.
        """
        request_id = ids.rollout_id(self.storage.ids)
        body = encode_json(call, what="the request")
        request = RequestRow(request_id, check_name(agent, "agent"), thread_id, self.actor, 0, body)
        await self.write(operations.ask, request, to_micros(DEADLINE_SECONDS), self.kinds)
        try:
            row = await self._answer(request_id)
        except asyncio.CancelledError:
            self.release_later(partial(self._end, request_id))
            raise
        return _decode_value(agent, row)

    async def _answer(self, request_id: str) -> GraphAnswerRow | None:
        row = await until(
            self.storage.signals,
            ENDED_CHANNEL,
            [ended_key(await self.ns(), request_id)],
            lambda _: self.read(operations.get_answer, request_id),
            timeout=DEADLINE_SECONDS,
            poll=POLL_SECONDS,
        )
        return row or await self.write(operations.end, request_id, self.kinds)

    async def _end(self, request_id: str) -> None:
        await self.write(operations.end, request_id, self.kinds)

    # --- methods of workers ---------------------------------------------------------------------------------

    @call(POST(REQUESTS + "/claim"), scope="worker", repeatable=True)
    async def claim(
        self,
        worker_id: WorkerId,
        agents: AgentNames,
        limit: Annotated[int, Meta(ge=1, le=MAX_BATCH)] = 1,
        wait: Wait = 0.0,
    ) -> Annotated[list[GraphAssignment], under("assignments", list[GraphAssignment], "GraphAssignments")]:
        """Claim up to `limit` requests of agents; wait up to `wait` seconds for the first.

        A lost claim can be claimed again when its lease has ended.
        """
        check_id(worker_id, "worker_id")
        wanted = tuple(sorted({check_name(agent, "the name of an agent") for agent in agents}))
        claimed: Sequence[ClaimedRequest] = await until(
            self.storage.signals,
            READY_CHANNEL,
            [ready_key(GRAPHS_QUEUE, agent) for agent in wanted],
            lambda _: self._claim(Claim(None, limit), wanted),
            timeout=wait,
            group=self.namespace,
        )
        return [_build_assignment(request) for request in claimed]

    def _claim(self, claim: Claim, agents: tuple[str, ...]) -> Awaitable[Sequence[ClaimedRequest]]:
        return self.write_once(
            None,
            operations.claim_requests,
            claim,
            agents,
            self.kinds,
            rows=claim.limit,
            undelivered=self._release_later,
        )

    def _release_later(self, claimed: Sequence[ClaimedRequest]) -> None:
        """Release requests whose caller was cancelled during the claim."""
        if claimed:
            held = [RequestLease(claim.request.id, claim.attempt_id) for claim in claimed]
            self.release_later(lambda: self.release(held))

    @call(POST(REQUESTS + "/release"), scope="worker", repeatable=True)
    async def release(self, held: Leases) -> Acknowledged:
        """Release requests, so that another worker answers them."""
        claimed = tuple((lease.request_id, lease.attempt_id) for lease in map(check_lease, held))
        if claimed:
            await self.write(release_rollouts, claimed, self.kinds)

    @call(POST(REQUESTS + "/renew"), scope="worker", repeatable=True)
    async def renew(self, held: Leases) -> Annotated[list[bool], under("held", list[bool], "HeldRequests")]:
        """Renew leases; the answer says for each request, in their order, whether it is still held."""
        return await self.write(operations.renew, tuple(map(check_lease, held)), self.kinds)

    @call(POST(REQUESTS + "/answer"), scope="worker", max_body=MAX_BODY, errors=(Fenced,), repeatable=True)
    async def answer(
        self,
        held: RequestLease,
        thread_id: str,
        answer: str | None = None,
        error: GraphError | None = None,
        steps: GraphSteps | None = None,
        after: str | None = None,
    ) -> Acknowledged:
        """Answer a request with a value as JSON or with an error, and store its graph's change.

        The change is applied once, if `after` is still the latest state of the thread.
        """
        if (answer is None) is (error is None):
            raise InvalidInput("a request is answered with either a value or an error")
        lease = check_lease(held)
        reply = NewAnswer(lease.request_id, lease.attempt_id)
        if error is not None:
            code = check_text(error.code, "the code of an error", max_length=64)
            reply = reply._replace(error_code=code, error=storable(error.message, MAX_MESSAGE))
        elif answer is not None:
            reply = reply._replace(answer=check_answer(answer))
        change = None
        if steps is not None and error is None:
            check_id(thread_id, "thread_id")
            change = GraphChange(thread_id, encode_steps(check_states(steps), thread_id), after)
        await self.write(operations.answer, lease, reply, change, self.kinds)

    # --- expired requests ---------------------------------------------------------------------------------

    def start_timers(self) -> None:
        """Start the timer that removes expired requests."""
        self.storage.timers.every(REMOVE_SECONDS, self.remove_expired)

    async def remove_expired(self) -> None:
        """Remove requests that expired more than 30 seconds ago, in every namespace."""
        while await self.storage.background(operations.remove_expired, to_micros(LINGER_SECONDS)):
            pass


def check_answer(answer: str) -> str:
    """Check an answer before it is stored."""
    if len(answer) > MAX_ANSWER:
        raise InvalidInput(f"the answer has {len(answer):,} characters; at most {MAX_ANSWER:,} are allowed")
    return check_json(answer, "the answer")


def _decode_value(agent: str, row: GraphAnswerRow | None) -> Any:
    if row is not None and row.error_code is not None:
        raise build_refusal(row.error_code, row.error or "")
    if row is None or row.answer is None:
        raise AgentUnavailable(
            f"no worker answered for the agent {agent!r} within {DEADLINE_SECONDS:g} s, and nothing was"
            " changed; check with `perdure worker ls` that a worker has this agent"
        )
    return decode_json(row.answer)


_call = msgspec.json.Decoder(GraphCall)


def _build_assignment(claimed: ClaimedRequest) -> GraphAssignment:
    request = claimed.request
    return GraphAssignment(
        held=RequestLease(request.id, claimed.attempt_id),
        agent=request.agent,
        thread_id=request.thread_id,
        call=_call.decode(request.call),
        checkpoint=None if claimed.state is None else row_to_checkpoint(claimed.state),
        lease_seconds=LEASE_SECONDS,
        seconds_left=(request.expires_at - claimed.now) / MICROS,
    )
