"""What is said of runs beside the database, where Redis carries the hints: who works, and that more waits."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.signals.port import Signals, find_carrier
from perdure.threads.work import Assignment, Lease, Verdict


class RedisMarkers:
    """Markers in Redis of runs that a worker holds. Nothing is decided by a marker, and any may be lost."""

    def __init__(self, signals: Signals) -> None:
        self._carrier = find_carrier(signals)
        self._seconds = 10.0

    def claimed(self, assignments: Sequence[Assignment]) -> None:
        """Mark runs that were claimed."""
        if self._carrier is None or not assignments:
            return
        self._seconds = max(each.lease_seconds for each in assignments)
        self._carrier.mark_running([each.run.run_id for each in assignments], self._seconds)

    def renewed(self, held: Sequence[Lease], verdicts: Sequence[Verdict]) -> None:
        if self._carrier is not None:
            going = [each.run_id for each, said in zip(held, verdicts, strict=True) if said == "go"]
            self._carrier.mark_running(going, self._seconds)

    def released(self, run_ids: Sequence[str]) -> None:
        if self._carrier is not None:
            self._carrier.unmark_running(run_ids)
