"""Rules of the tables that no foreign key enforces; each is a query for the rows that break it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.executions.model import PHASE
from perdure.kernel.storage.dialect import Statement, name_statements, statement
from perdure.rollouts.model import ENDED, LIVE, QUEUED
from perdure.rollouts.operations.work import ATTEMPTS_TOTAL, BYTES_TOTAL, SPANS_TOTAL
from perdure.threads.model import RUN_KINDS


class BrokenRow(NamedTuple):
    """Number of rows that break a rule, and one such row."""

    found: int
    example: str | None


class RetentionRule(NamedTuple):
    """A rule: its name, a sentence about rows that break the rule, and the query for such rows."""

    name: str
    sentence: str
    query: Statement[BrokenRow]
    values: Mapping[str, Any] = {}


# Attempts of a rollout that does not exist.
LOST_ATTEMPTS = statement(
    """
    SELECT count(*) AS found, min(a.rollout_id) AS example FROM attempts AS a
    WHERE NOT EXISTS (SELECT 1 FROM rollouts AS r WHERE r.ns = a.ns AND r.id = a.rollout_id)
    """,
    row=BrokenRow,
)
# Rollouts with more than one live attempt.
LIVE_TWICE = statement(
    """
    SELECT count(*) AS found, min(t.rollout_id) AS example FROM (
      SELECT ns, rollout_id FROM attempts WHERE status {among:live}
      GROUP BY ns, rollout_id HAVING count(*) > 1
    ) AS t
    """,
    row=BrokenRow,
)
# Rollouts in a queue without exactly one place: ready, due later, or behind another rollout.
NO_PLACE = statement(
    """
    SELECT count(*) AS found, min(id) AS example FROM rollouts
    WHERE status {among:queued} AND (CASE WHEN ready IS NULL THEN 0 ELSE 1 END
      + CASE WHEN due_at IS NULL THEN 0 ELSE 1 END + CASE WHEN behind IS NULL THEN 0 ELSE 1 END) <> 1
    """,
    row=BrokenRow,
)
# Rollouts outside the queue that still have a place in it.
PLACE_LEFT = statement(
    """
    SELECT count(*) AS found, min(id) AS example FROM rollouts
    WHERE status {among:ended} AND (ready IS NOT NULL OR due_at IS NOT NULL OR behind IS NOT NULL)
    """,
    row=BrokenRow,
)
# Lines held by a rollout that does not exist, or that has ended and needs no wait.
LOST_HOLDERS = statement(
    """
    SELECT count(*) AS found, min(l.line) AS example FROM lines AS l
    WHERE l.holder IS NOT NULL AND l.release_by IS NULL AND NOT EXISTS (
      SELECT 1 FROM rollouts AS r WHERE r.ns = l.ns AND r.id = l.holder AND NOT r.status {among:ended})
    """,
    row=BrokenRow,
)
# Rollouts that wait behind others in a line without a holder.
FREE_LINES = statement(
    """
    SELECT count(*) AS found, min(r.id) AS example FROM rollouts AS r
    WHERE r.behind IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM lines AS l WHERE l.ns = r.ns AND l.line = r.line AND l.holder IS NOT NULL)
    """,
    row=BrokenRow,
)
# Kinds and statuses with a count of rollouts that differs from the number of rows.
WRONG_COUNTS = statement(
    """
    SELECT count(*) AS found, min(t.kind || ' ' || t.status) AS example FROM (
      SELECT u.ns, u.kind, u.status, sum(u.total) AS off FROM (
        SELECT ns, kind, status, sum(total) AS total FROM rollout_counts GROUP BY ns, kind, status
        UNION ALL
        SELECT ns, kind, status, -count(*) AS total FROM rollouts GROUP BY ns, kind, status
      ) AS u GROUP BY u.ns, u.kind, u.status
    ) AS t WHERE t.off <> 0
    """,
    row=BrokenRow,
)
# Totals of attempts and spans that differ from the rows.
WRONG_TOTALS = statement(
    """
    SELECT count(*) AS found, min(t.name) AS example FROM (
      SELECT u.ns, u.name, sum(u.total) AS off FROM (
        SELECT ns, name, sum(total) AS total FROM rollout_totals GROUP BY ns, name
        UNION ALL
        SELECT ns, :attempts AS name, -count(*) AS total FROM attempts GROUP BY ns
        UNION ALL
        SELECT ns, :spans AS name, -count(*) AS total FROM spans GROUP BY ns
        UNION ALL
        SELECT ns, :bytes AS name, -sum(size) AS total FROM spans GROUP BY ns
      ) AS u GROUP BY u.ns, u.name
    ) AS t WHERE t.off <> 0
    """,
    row=BrokenRow,
)
# Runs without their rollout or their thread.
LOST_RUNS = statement(
    """
    SELECT count(*) AS found, min(r.id) AS example FROM runs AS r
    WHERE r.gone_at IS NULL AND (
      NOT EXISTS (SELECT 1 FROM rollouts AS x WHERE x.ns = r.ns AND x.id = r.id)
      OR NOT EXISTS (SELECT 1 FROM threads AS t WHERE t.ns = r.ns AND t.id = r.thread_id))
    """,
    row=BrokenRow,
)
# Kinds and statuses with a count of rollouts of removed runs that differs from the number of rows.
WRONG_REMOVED_RUNS = statement(
    """
    SELECT count(*) AS found, min(t.kind || ' ' || t.status) AS example FROM (
      SELECT u.ns, u.kind, u.status, sum(u.total) AS off FROM (
        SELECT ns, kind, status, sum(total) AS total FROM removed_runs GROUP BY ns, kind, status
        UNION ALL
        SELECT r.ns, r.kind, r.status, -count(*) AS total FROM rollouts AS r
        WHERE r.kind {among:kinds}
          AND NOT EXISTS (SELECT 1 FROM runs AS n WHERE n.ns = r.ns AND n.id = r.id)
        GROUP BY r.ns, r.kind, r.status
      ) AS u GROUP BY u.ns, u.kind, u.status
    ) AS t WHERE t.off <> 0
    """,
    row=BrokenRow,
)
# Jobs without their rollout.
LOST_JOBS = statement(
    """
    SELECT count(*) AS found, min(j.id) AS example FROM jobs AS j
    WHERE NOT EXISTS (SELECT 1 FROM rollouts AS r WHERE r.ns = j.ns AND r.id = j.id)
    """,
    row=BrokenRow,
)
# Spans of a rollout that does not exist.
LOST_SPANS = statement(
    """
    SELECT count(*) AS found, min(t.rollout_id) AS example
    FROM (SELECT DISTINCT ns, rollout_id FROM spans) AS t
    WHERE NOT EXISTS (SELECT 1 FROM rollouts AS r WHERE r.ns = t.ns AND r.id = t.rollout_id)
    """,
    row=BrokenRow,
)
# Streams with gaps between event numbers; streams that refer to other streams have gaps by design.
GAPS = statement(
    """
    SELECT count(*) AS found, min(t.stream) AS example FROM (
      SELECT e.ns, e.stream FROM stream_events AS e
      WHERE NOT EXISTS (SELECT 1 FROM stream_links AS l WHERE l.ns = e.ns AND l.stream = e.stream)
      GROUP BY e.ns, e.stream
      HAVING max(e.seq + coalesce(e.count, 1)) - min(e.seq) <> sum(coalesce(e.count, 1))
    ) AS t
    """,
    row=BrokenRow,
)
# Streams with events after their last number.
BEYOND = statement(
    """
    SELECT count(*) AS found, min(t.stream) AS example FROM (
      SELECT ns, stream, max(seq + coalesce(count, 1) - 1) AS last FROM stream_events GROUP BY ns, stream
    ) AS t WHERE NOT EXISTS (
      SELECT 1 FROM streams AS s WHERE s.ns = t.ns AND s.stream = t.stream AND s.last_seq >= t.last)
    """,
    row=BrokenRow,
)
# Effects without a body, and bodies without an effect.
LOST_BODIES = statement(
    """
    SELECT count(*) AS found, min(t.id) AS example FROM (
      SELECT b.ns, b.id FROM outbox_bodies AS b
      WHERE NOT EXISTS (SELECT 1 FROM outbox AS o WHERE o.ns = b.ns AND o.id = b.id)
      UNION ALL
      SELECT o.ns, o.id FROM outbox AS o
      WHERE NOT EXISTS (SELECT 1 FROM outbox_bodies AS b WHERE b.ns = o.ns AND b.id = o.id)
    ) AS t
    """,
    row=BrokenRow,
)
# Firings of a schedule that does not exist.
LOST_FIRINGS = statement(
    """
    SELECT count(*) AS found, min(f.schedule_id) AS example FROM firings AS f
    WHERE NOT EXISTS (SELECT 1 FROM schedules AS s WHERE s.ns = f.ns AND s.id = f.schedule_id)
    """,
    row=BrokenRow,
)
# Events of memory without their text.
LOST_TEXTS = statement(
    """
    SELECT count(*) AS found, min(e.id) AS example FROM memory_events AS e
    WHERE NOT EXISTS (SELECT 1 FROM memory_texts AS t WHERE t.ns = e.ns AND t.id = e.id)
    """,
    row=BrokenRow,
)
# Nodes of memory without an existing parent.
LOST_NODES = statement(
    """
    SELECT count(*) AS found, min(n.id) AS example FROM memory_nodes AS n
    WHERE n.parent_id IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM memory_nodes AS p WHERE p.ns = n.ns AND p.id = n.parent_id)
    """,
    row=BrokenRow,
)
# Phases of workflow runs that do not exist.
LOST_PHASES = statement(
    """
    SELECT count(*) AS found, min(n.run_id) AS example FROM workflow_nodes AS n
    WHERE NOT EXISTS (SELECT 1 FROM workflow_runs AS r WHERE r.ns = n.ns AND r.id = n.run_id)
    """,
    row=BrokenRow,
)
# Phases without an existing workflow run.
LOST_PARTS = statement(
    """
    SELECT count(*) AS found, min(r.id) AS example FROM rollouts AS r
    WHERE r.kind = :phase AND r.parent IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM workflow_runs AS w WHERE w.ns = r.ns AND w.id = r.parent)
    """,
    row=BrokenRow,
)
# Executions of workflow runs that do not exist.
LOST_EXECUTIONS = statement(
    """
    SELECT count(*) AS found, min(e.id) AS example FROM executions AS e
    WHERE e.workflow_run_id IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM workflow_runs AS w WHERE w.ns = e.ns AND w.id = e.workflow_run_id)
    """,
    row=BrokenRow,
)
# Workflows and statuses with a count of runs that differs from the number of rows.
WRONG_WORKFLOW_COUNTS = statement(
    """
    SELECT count(*) AS found, min(t.workflow_name || ' ' || t.status) AS example FROM (
      SELECT u.ns, u.workflow_name, u.status, sum(u.total) AS off FROM (
        SELECT ns, workflow_name, status, sum(total) AS total FROM workflow_counts
        GROUP BY ns, workflow_name, status
        UNION ALL
        SELECT ns, workflow_name, status, -count(*) AS total FROM workflow_runs
        GROUP BY ns, workflow_name, status
      ) AS u GROUP BY u.ns, u.workflow_name, u.status
    ) AS t WHERE t.off <> 0
    """,
    row=BrokenRow,
)
# Traces without spans.
EMPTY_TRACES = statement(
    """
    SELECT count(*) AS found, min(t.trace_id) AS example FROM traces AS t
    WHERE NOT EXISTS (SELECT 1 FROM spans AS s WHERE s.ns = t.ns AND s.trace_id = t.trace_id)
    """,
    row=BrokenRow,
)
# Figures of rollouts that do not exist.
LOST_FIGURES = statement(
    """
    SELECT count(*) AS found, min(f.rollout_id) AS example FROM rollout_figures AS f
    WHERE NOT EXISTS (SELECT 1 FROM rollouts AS r WHERE r.ns = f.ns AND r.id = f.rollout_id)
    """,
    row=BrokenRow,
)
# States of threads that do not exist.
LOST_STATES = statement(
    """
    SELECT count(*) AS found, min(c.thread_id) AS example FROM checkpoints AS c
    WHERE NOT EXISTS (SELECT 1 FROM threads AS t WHERE t.ns = c.ns AND t.id = c.thread_id)
    """,
    row=BrokenRow,
)
# Grips and versions of nodes that do not exist, and vectors of documents that do not exist.
LOST_MEMORY = statement(
    """
    SELECT count(*) AS found, min(t.id) AS example FROM (
      SELECT g.id FROM memory_grips AS g
      WHERE NOT EXISTS (SELECT 1 FROM memory_nodes AS n WHERE n.ns = g.ns AND n.id = g.node_id)
      UNION ALL
      SELECT v.node_id AS id FROM memory_node_versions AS v
      WHERE NOT EXISTS (SELECT 1 FROM memory_nodes AS n WHERE n.ns = v.ns AND n.id = v.node_id)
      UNION ALL
      SELECT 'a vector' AS id FROM memory_vectors AS v
      WHERE NOT EXISTS (SELECT 1 FROM memory_texts AS t WHERE t.place = v.place)
    ) AS t
    """,
    row=BrokenRow,
)
# Namespaces with a count of indexed documents that differs from the number of rows.
WRONG_DOCUMENTS = statement(
    """
    SELECT count(*) AS found, min(c.ns || '') AS example FROM memory_counters AS c
    WHERE c.documents <> (SELECT count(*) FROM memory_texts AS t WHERE t.ns = c.ns AND t.place IS NOT NULL)
    """,
    row=BrokenRow,
)
# Lines of logs of sessions that do not exist, or after their last number.
LOST_LINES = statement(
    """
    SELECT count(*) AS found, min(l.session_id) AS example FROM session_lines AS l
    WHERE NOT EXISTS (SELECT 1 FROM session_logs AS s WHERE s.ns = l.ns AND s.session_id = l.session_id
      AND s.project = l.project AND s.subpath = l.subpath AND s.last_seq >= l.seq)
    """,
    row=BrokenRow,
)

name_statements(globals())

_ENDED = {"ended": sorted(ENDED)}
_TOTALS = {"attempts": ATTEMPTS_TOTAL, "spans": SPANS_TOTAL, "bytes": BYTES_TOTAL}
CHECKS: Sequence[RetentionRule] = (
    RetentionRule("attempts", "attempts belong to no rollout", LOST_ATTEMPTS),
    RetentionRule(
        "live_attempts", "rollouts have more than one live attempt", LIVE_TWICE, {"live": sorted(LIVE)}
    ),
    RetentionRule(
        "queue_places", "queued rollouts are not at one place", NO_PLACE, {"queued": sorted(QUEUED)}
    ),
    RetentionRule("ended_places", "ended rollouts are still in a queue", PLACE_LEFT, _ENDED),
    RetentionRule(
        "line_holders", "lines are held by rollouts that have ended or are missing", LOST_HOLDERS, _ENDED
    ),
    RetentionRule("free_lines", "rollouts wait in a line that nobody holds", FREE_LINES),
    RetentionRule("rollout_counts", "counts of rollouts differ from the rows", WRONG_COUNTS),
    RetentionRule(
        "removed_runs",
        "counts of rollouts of removed runs differ from the rows",
        WRONG_REMOVED_RUNS,
        {"kinds": list(RUN_KINDS)},
    ),
    RetentionRule(
        "rollout_totals", "totals of attempts or spans differ from the rows", WRONG_TOTALS, _TOTALS
    ),
    RetentionRule("runs", "runs have no rollout or no thread", LOST_RUNS),
    RetentionRule("jobs", "jobs have no rollout", LOST_JOBS),
    RetentionRule("spans", "rollouts with spans are missing", LOST_SPANS),
    RetentionRule("stream_gaps", "streams have gaps", GAPS),
    RetentionRule("stream_ends", "streams have events after their last number", BEYOND),
    RetentionRule("outbox", "effects and their bodies do not match", LOST_BODIES),
    RetentionRule("firings", "firings belong to no schedule", LOST_FIRINGS),
    RetentionRule("memory_texts", "events of memory have no text", LOST_TEXTS),
    RetentionRule("memory_nodes", "nodes of memory have no parent", LOST_NODES),
    RetentionRule("workflow_nodes", "phases belong to no workflow run", LOST_PHASES),
    RetentionRule("phases", "executed phases belong to no workflow run", LOST_PARTS, {"phase": PHASE}),
    RetentionRule("executions", "executions belong to no workflow run", LOST_EXECUTIONS),
    RetentionRule("workflow_counts", "counts of workflow runs differ from the rows", WRONG_WORKFLOW_COUNTS),
    RetentionRule("traces", "traces have no spans", EMPTY_TRACES),
    RetentionRule("figures", "figures belong to no rollout", LOST_FIGURES),
    RetentionRule("states", "states belong to no thread", LOST_STATES),
    RetentionRule("memory_parts", "grips, versions or vectors of memory belong to nothing", LOST_MEMORY),
    RetentionRule("memory_documents", "counts of indexed documents differ from the rows", WRONG_DOCUMENTS),
    RetentionRule("session_lines", "lines belong to no session", LOST_LINES),
)
