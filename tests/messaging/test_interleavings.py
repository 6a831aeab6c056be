"""Concurrent calls on one session on PostgreSQL, one statement at a time, in many orders."""

from __future__ import annotations

from typing import Any

import pytest
from tests.reliability.interleaving import Operation, Pair
from tests.reliability.test_interleavings import SWITCHES, explore_all
from tests.support.kinds import KINDS
from tests.threads.support import AGENT_NAMES, POLICY
from tests.threads.test_interleavings import answering

from perdure.agents.records import AgentSpec
from perdure.assistants.model import registrations
from perdure.assistants.operations import register
from perdure.executions.model import WORKFLOWS_QUEUE
from perdure.kernel.storage.port import Tx
from perdure.messaging.model import ConversationKey, NewMessage
from perdure.messaging.operations import sessions, turns
from perdure.messaging.operations.turns import NewTurn
from perdure.rollouts.operations.claim import Claim
from perdure.runs.encoding import encode_finish
from perdure.runs.operations import finish
from perdure.runtime.stores import ThreadPhases
from perdure.threads.operations import assign
from perdure.threads.work import Ending, Lease

KEY = ConversationKey("slack", "general", None, "ann")
IDLE = 10_000_000
LATER = 20
"""Seconds after which the session of the setup is stale."""
PHASES = ThreadPhases(KINDS, POLICY)


async def open_(tx: Tx, given: Any, lined: bool) -> Any:
    opened = await sessions.get_or_create(tx, KEY, "echo", IDLE)
    return opened.row.id


async def nothing(tx: Tx, given: Any, lined: bool) -> Any:
    return None


def send(content: str) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        message = NewMessage(role="user", content=content)
        turn = NewTurn(session_id=given["session"], message=message, pointer="{}", reply='""')
        (sent,) = await turns.send(tx, [turn], PHASES)
        return sent.turn_id

    return answering(run)


def claim(limit: int = 1) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        claims = [Claim("w", limit)]
        shares = await assign.claim_runs(tx, claims, AGENT_NAMES, [WORKFLOWS_QUEUE], KINDS)
        return [len(share) for share in shares]

    return run


async def end(tx: Tx, given: Any, lined: bool) -> Any:
    ending = Ending(held=given["lease"], result="success", output_text="done")
    return [type(each).__name__ for each in await finish.finish_runs(tx, [encode_finish(ending)], KINDS)]


async def cancel(tx: Tx, given: Any, lined: bool) -> Any:
    return await turns.cancel(tx, given["session"], given["turn"], PHASES)


def chatting(*, sent: bool = False, claimed: bool = False) -> Operation:
    """Set up a session, optionally with a message that waits for its turn, or with a running turn."""

    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        await register(tx, registrations([AgentSpec(name="echo")]))
        state: dict[str, Any] = {"session": await open_(tx, None, True)}
        if sent:
            state["turn"] = await send("first")(tx, state, True)
        if claimed:
            (share,) = await assign.claim_runs(tx, [Claim("w", 1)], AGENT_NAMES, [WORKFLOWS_QUEUE], KINDS)
            (run_id, attempt_id, *_), *_ = share
            session = await sessions.get(tx, state["session"])
            state["lease"] = Lease(run_id, session.line, attempt_id)
        return state

    return run


PAIRS = {
    "open, open": Pair(nothing, open_, open_),
    "open, open, when it is stale": Pair(open_, open_, open_, later=LATER),
    "send, send": Pair(chatting(), send("a"), send("b")),
    "send, claim": Pair(chatting(sent=True), send("a"), claim(), also=[(send("a"), claim(0))]),
    "send, end": Pair(chatting(sent=True, claimed=True), send("a"), end),
    "send, cancel": Pair(chatting(sent=True), send("a"), answering(cancel)),
    "cancel, claim": Pair(
        chatting(sent=True), answering(cancel), claim(), also=[(answering(cancel), claim(0))]
    ),
}


@pytest.mark.timeout(300)
async def test_every_order(postgres_url: str) -> None:
    print(await explore_all(postgres_url, PAIRS, SWITCHES))
