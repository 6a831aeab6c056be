"""SQL of claims, written once for both engines."""

from __future__ import annotations

from perdure.kernel.storage.dialect import name_statements, statement
from perdure.kernel.storage.rows import get_columns
from perdure.rollouts import rows

_CLAIMED = (
    """,
    l AS MATERIALIZED (SELECT lines.line
    FROM lines
    WHERE lines.ns = :ns AND lines.line IN (SELECT c.line FROM c) {skip})
    UPDATE rollouts SET queued_as = status, status = :target, ready = NULL, attempts = attempts + 1
    FROM c
    WHERE rollouts.ns = c.ns AND rollouts.id = c.id
      AND coalesce({others:(c.line IS NULL OR c.line IN (SELECT l.line FROM l))}, TRUE)
    RETURNING """
    + ", ".join("rollouts." + name for name in get_columns(rows.ClaimedRow) if name != "more")
    + ", "
)
_NOT_CLAIMED = """
    m.id NOT IN (SELECT c.id FROM c WHERE c.line IS NULL OR c.line IN (SELECT l.line FROM l))
    """
# Claim the next rollouts of a queue without an agent. Skip rollouts that another claim has locked, or whose
# line is locked. The order begins with the agent, because PostgreSQL does not infer that all rows have the
# same agent.
CLAIM = statement(
    """
    WITH c AS MATERIALIZED (SELECT ns, id, line
    FROM rollouts
    WHERE ns = :ns AND queue = :queue AND agent IS NULL AND ready IS NOT NULL AND kind = :kind
    ORDER BY agent, priority DESC, ready
    LIMIT :n {skip})
    """
    + _CLAIMED
    + "NULL AS more",
    row=rows.ClaimedRow,
)
# Claim the next rollouts of one agent, and return whether more rollouts are ready.
CLAIM_OF_AGENT = statement(
    """
    WITH c AS MATERIALIZED (SELECT ns, id, line
    FROM rollouts
    WHERE ns = :ns AND queue = :queue AND agent = :agent AND ready IS NOT NULL AND kind = :kind
    ORDER BY priority DESC, ready
    LIMIT :n {skip})
    """
    + _CLAIMED
    + """
    {others:EXISTS (SELECT 1 FROM rollouts AS m
      WHERE m.ns = :ns AND m.queue = :queue AND m.agent = :agent AND m.ready IS NOT NULL AND m.kind = :kind
        AND """
    + _NOT_CLAIMED
    + ")} AS more",
    row=rows.ClaimedRow,
)
# Claim the next rollouts of several agents or queues, from the first rows of each. Return whether more are
# ready.
CLAIM_OF_AGENTS = statement(
    """
    WITH c AS MATERIALIZED (SELECT r.ns, r.id, r.line
    FROM {each:queues} CROSS JOIN {each:agents} CROSS JOIN rollouts AS r
    WHERE r.ns = :ns AND r.ready IS NOT NULL AND r.id {listed:SELECT f.id
      FROM rollouts AS f
      WHERE f.ns = :ns AND f.queue = queues.value AND f.agent = agents.value AND f.ready IS NOT NULL
        AND {plain:f.kind} {among:kinds}
      ORDER BY f.priority DESC, f.ready
      LIMIT {seen:n,seen}}
    ORDER BY r.priority DESC, r.ready
    LIMIT :n {skip})
    """
    + _CLAIMED
    + """
    {others:EXISTS (SELECT 1 FROM {each:queues} CROSS JOIN {each:agents} CROSS JOIN rollouts AS m
      WHERE m.ns = :ns AND m.queue = queues.value AND m.agent = agents.value AND m.ready IS NOT NULL
        AND m.kind {among:kinds} AND """
    + _NOT_CLAIMED
    + ")} AS more",
    row=rows.ClaimedRow,
)
# Whether rollouts of some agents or queues are ready.
ANY_READY = statement(
    """
    SELECT 1 FROM {each:queues} CROSS JOIN {each:agents} CROSS JOIN rollouts AS r
    WHERE r.ns = :ns AND r.queue = queues.value AND r.agent = agents.value AND r.ready IS NOT NULL
      AND {plain:r.kind} {among:kinds}
    LIMIT 1
    """,
    row=int,
)

name_statements(globals())
