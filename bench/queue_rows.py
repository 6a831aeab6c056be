"""The bare queue on PostgreSQL, without agents: ours and those that other projects build on it."""

from contextlib import AsyncExitStack
from functools import partial

from bench import raw_postgres
from bench.cpu import Meter, own_seconds, with_raw
from bench.environments import DBOS, PGQUEUER, PROCRASTINATE, Environment
from bench.host import Host
from bench.measures import Figures, Measure, Row
from bench.peer import PeerProcess
from bench.sizes import Sizes
from bench.timing import Side, interleave, spread
from bench.work import BATCH, BATCH_CALLERS
from perdure import EnqueueRolloutRequest, PostgresLightningStore
from perdure.rollouts.records import AttemptedRollout, AttemptUpdate
from perdure.rollouts.service import Rollouts

PEERS: tuple[tuple[Environment, float, int], ...] = (
    (PGQUEUER, 1.5, 1),
    (PROCRASTINATE, 20.0, 1),
    (DBOS, 20.0, 8),
)
"""Each with our target and a divisor of its rounds, because filling DBOS's queue takes minutes."""
OF_RAW = 0.55


def measures(sizes: Sizes) -> list[Measure]:
    what = f"drain no-op jobs by {BATCH} on PostgreSQL, {BATCH_CALLERS} callers; raw: SQL on asyncpg"
    rows = tuple(
        Row(
            f"queue/vs_{peer.name}",
            f"{what}; {peer.name} {peer.version}",
            "jobs/s",
            target_peer=target,
            target_raw=OF_RAW,
        )
        for peer, target, _ in PEERS
    )
    return [Measure(rows, partial(_figures, size=sizes.jobs))]


async def _figures(host: Host, size: int) -> list[Figures]:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(PostgresLightningStore(await host.new_database()))
        pool = await stack.enter_async_context(await raw_postgres.open_pool(await host.new_database()))
        database = await host.database_clock()
        meters = {name: Meter({"client": own_seconds, "database": database}) for name in ("ours", "raw")}
        drain = partial(_drain_ours, Rollouts(store.storage, store.rollouts.kinds))
        sides: dict[str, Side] = {
            "ours": meters["ours"].around(drain),
            "raw": meters["raw"].around(partial(raw_postgres.claim_complete, pool)),
        }
        for environment, _, _ in PEERS:
            process = PeerProcess(environment, ("bench.peer_queues", environment.name))
            if peer := await host.try_peer(stack, process):
                meter = meters[environment.name] = Meter({"peer": peer.seconds, "peer_database": database})
                sides[environment.name] = meter.around(partial(_drain, peer, await host.new_database()))
        shares = {environment.name: share for environment, _, share in PEERS}
        found = await interleave(size, host.sizes.rounds, sides, shares=shares)
    costs = {**meters["ours"].figures(), **with_raw(meters["raw"])}
    return [
        {
            "ours": found["ours"],
            "raw": found["raw"],
            **({"peer": found[each.name], **meters[each.name].figures()} if each.name in found else {}),
            **costs,
        }
        for each, _, _ in PEERS
    ]


async def _drain(peer: PeerProcess, url: str, size: int) -> float:
    return await peer.do("drain", size, url)


async def _drain_ours(rollouts: Rollouts, size: int) -> float:
    """Claim 100 jobs and complete them in one call, until none is left."""
    await rollouts.enqueue_many([EnqueueRolloutRequest(input={})] * size)

    async def call(_number: int) -> None:
        claimed = await rollouts.claim(limit=BATCH)
        await rollouts.update_attempts([_success(each) for each in claimed])

    return BATCH * await spread(BATCH_CALLERS, max(size // BATCH, 1), call)


def _success(claimed: AttemptedRollout) -> AttemptUpdate:
    attempt_id = claimed.attempt.attempt_id
    return AttemptUpdate(rollout_id=claimed.rollout_id, attempt_id=attempt_id, status="succeeded")
