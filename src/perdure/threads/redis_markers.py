"""Markers in Redis for runs that workers hold."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.signals.port import Signals, find_carrier
from perdure.threads.work import Assignment, Lease, Verdict


class RedisMarkers:
    """Redis markers of runs that a worker holds. No decision depends on them, and any may be lost."""

    def __init__(self, signals: Signals) -> None:
        self._carrier = find_carrier(signals)
        self._seconds = 10.0

    def claimed(self, assignments: Sequence[Assignment]) -> None:
        """Mark runs that were claimed."""
        if self._carrier is None or not assignments:
            return
        self._seconds = max(assignment.lease_seconds for assignment in assignments)
        self._carrier.mark_running([assignment.run.run_id for assignment in assignments], self._seconds)

    def renewed(self, held: Sequence[Lease], verdicts: Sequence[Verdict]) -> None:
        if self._carrier is not None:
            leases = zip(held, verdicts, strict=True)
            going = [lease.run_id for lease, verdict in leases if verdict == "go"]
            self._carrier.mark_running(going, self._seconds)

    def released(self, run_ids: Sequence[str]) -> None:
        if self._carrier is not None:
            self._carrier.unmark_running(run_ids)
