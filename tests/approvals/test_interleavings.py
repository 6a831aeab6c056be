"""Concurrent answers to one approval on PostgreSQL, one statement at a time, in every order."""

from __future__ import annotations

from typing import Any

import pytest
from tests.approvals.support import ADD_RUN, Recorder, Run
from tests.reliability.interleaving import Operation, Pair
from tests.reliability.test_interleavings import SWITCHES, explore_all
from tests.threads.test_interleavings import answering

from perdure.approvals import gates
from perdure.approvals import operations as approvals
from perdure.approvals.link_model import NewLink
from perdure.approvals.model import Answer, NewGate, Resolution
from perdure.kernel.storage.port import Tx

RUN = Run("run-1")
EXPIRES = 10_000_000
LATER = 20
"""Seconds after which the approval of the setup has expired."""


def _link(tx: Tx) -> str:
    """Return the id of the link, which is unique in all namespaces."""
    return f"{tx.ns:024d}"


async def waiting(tx: Tx, given: Any, lined: bool) -> Any:
    """Set up a run that waits at a gate, with a link to its approval."""
    await tx.execute(ADD_RUN, id=RUN.id, name=RUN.workflow_name, trigger_id=RUN.trigger_id)
    gate = NewGate(gate="g", label="plan", summary="?", expires_after=EXPIRES)
    approval_id = await gates.open_gate(tx, RUN, "plan", gate)
    await approvals.add_links(tx, [NewLink(_link(tx), approval_id, "ann", "h", 10**12)])
    return approval_id


def answer(how: Answer) -> Operation:
    async def run(tx: Tx, given: Any, lined: bool) -> Any:
        return await approvals.resolve(tx, [Resolution(given, how, None)], Recorder())

    return answering(run)


async def _by_link(tx: Tx, given: Any, lined: bool) -> Any:
    return await approvals.resolve_by_link(tx, _link(tx), Resolution(given, "approve", None), Recorder())


async def expire(tx: Tx, given: Any, lined: bool) -> Any:
    return await approvals.settle_due(tx, given, Recorder())


async def withdraw(tx: Tx, given: Any, lined: bool) -> Any:
    """Withdraw gates as a cancel does after it has locked the run."""
    recorder = Recorder()
    await recorder.lock(tx, await approvals.get(tx, given))
    return await gates.withdraw_gates(tx, [RUN.id])


PAIRS = {
    "approve, reject": Pair(waiting, answer("approve"), answer("reject")),
    "approve, expire": Pair(waiting, answer("approve"), expire, later=LATER),
    "approve, withdraw": Pair(waiting, answer("approve"), withdraw),
    "expire, expire": Pair(waiting, expire, expire, later=LATER),
    "link, approve": Pair(waiting, answering(_by_link), answer("approve")),
    "link, link": Pair(waiting, answering(_by_link), answering(_by_link)),
}


@pytest.mark.timeout(300)
async def test_every_order(postgres_url: str) -> None:
    print(await explore_all(postgres_url, PAIRS, SWITCHES))
