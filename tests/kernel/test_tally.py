"""Counts of operations: callers choose names of queues, so a process keeps a limited number of counts."""

from perdure.kernel.tally import MAX_PLACES, OTHER, Tally, TallyEntry


def test_counts_beyond_the_bound_share_one_label() -> None:
    tally = Tally()
    for number in range(MAX_PLACES + 50):
        tally.add(
            [TallyEntry("ended", 1, f"queue-{number}"), TallyEntry("waited", 1, f"queue-{number}", 2.0)]
        )
    tally.add([TallyEntry("ended", 1, "queue-0", times=2), TallyEntry("waited", 1, "queue-0", 1.0)])
    counts, durations = tally.counts("ended"), tally.durations("waited")
    assert len(counts) == len(durations) == MAX_PLACES + 1
    assert counts[OTHER] == sum(durations[OTHER].buckets) == 50
    assert counts["queue-0"] == 3
    assert durations["queue-0"].total == 3.0
    assert sum(counts.values()) == MAX_PLACES + 52


def test_the_rest_is_kept_by_namespace() -> None:
    tally = Tally()
    tally.add(TallyEntry("ended", 1, f"queue-{number}") for number in range(MAX_PLACES))
    tally.add([TallyEntry("ended", 2, "another"), TallyEntry("ended", 3, "another")])
    assert tally.counts_by_place("ended")[2, OTHER] == tally.counts_by_place("ended")[3, OTHER] == 1
