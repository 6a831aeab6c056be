"""The contract that every LightningStore must pass, as a pytest suite.

In a test module, define the two fixtures and import the suite:

    from perdure.testing.contract import *

    @pytest_asyncio.fixture
    async def store(): ...      # an open LightningStore in an empty database or namespace

    @pytest.fixture
    def harness(store): ...     # a Harness: `await harness.advance(seconds)` moves the store's time

Open the store with a short `watchdog_interval`, because one trap is a timeout without any call.
"""

from __future__ import annotations

import pytest

TOPICS = (
    "support",
    "paging",
    "lifecycle",
    "attempts",
    "updates",
    "spans",
    "sequences",
    "rollout_queries",
    "span_queries",
    "resources",
    "workers",
    "waiting",
    "watchdog",
    "traps",
    "revival",
    "concurrency",
    "extras",
    "bad_input",
    "manners",
)
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in TOPICS))

from .attempts import TestOlderAttempts, TestPropagation, TestStartAttempt, TestUpdateAttempt  # noqa: E402
from .bad_input import TestBadPages, TestBadRecords, TestBadReports, TestBadText, TestBadValues  # noqa: E402
from .concurrency import TestManyCallers, TestManyThreads  # noqa: E402
from .extras import (  # noqa: E402
    TestIdempotencyKey,
    TestNamedQueues,
    TestNamespaces,
    TestNotBefore,
    TestPriority,
    TestRepeatedCalls,
)
from .lifecycle import (  # noqa: E402
    TestDequeue,
    TestDequeueMany,
    TestEnqueue,
    TestEveryCreator,
    TestStartRollout,
)
from .manners import TestPages, TestRecords, TestStore  # noqa: E402
from .resources import TestQueryResources, TestResources  # noqa: E402
from .revival import TestOlderAttemptSpeaks, TestRevival  # noqa: E402
from .rollout_queries import (  # noqa: E402
    TestGetRollout,
    TestQueryAttempts,
    TestQueryRollouts,
    TestRolloutFilters,
)
from .sequences import TestSequenceIds, TestSequencesInParallel  # noqa: E402
from .span_queries import TestQuerySpans, TestSpanFilters, TestSpanOrder  # noqa: E402
from .spans import (  # noqa: E402
    TestAddManySpans,
    TestAddOtelSpan,
    TestAddSpan,
    TestSpanHeartbeat,
    TestSpanRoundTrip,
)
from .support import Harness  # noqa: E402
from .traps import (  # noqa: E402
    TestAtomicClaim,
    TestCancelledIsSticky,
    TestEndTime,
    TestLateSpan,
    TestRepeatedReport,
    TestWaitersOfARequeue,
    TestWatchdogOfItsOwn,
)
from .updates import TestRequeue, TestTransitions, TestUpdateRollout  # noqa: E402
from .waiting import TestWaiters, TestWaiting  # noqa: E402
from .watchdog import TestSilence, TestTimeout, TestWatchdogRetries, TestWatchdogRuns  # noqa: E402
from .workers import TestQueryWorkers, TestWorkerHeartbeat, TestWorkerHolds, TestWorkerStatus  # noqa: E402

__all__ = [
    "Harness",
    "TestAddManySpans",
    "TestAddOtelSpan",
    "TestAddSpan",
    "TestAtomicClaim",
    "TestBadPages",
    "TestBadRecords",
    "TestBadReports",
    "TestBadText",
    "TestBadValues",
    "TestCancelledIsSticky",
    "TestDequeue",
    "TestDequeueMany",
    "TestEndTime",
    "TestEnqueue",
    "TestEveryCreator",
    "TestGetRollout",
    "TestIdempotencyKey",
    "TestLateSpan",
    "TestManyCallers",
    "TestManyThreads",
    "TestNamedQueues",
    "TestNamespaces",
    "TestNotBefore",
    "TestOlderAttemptSpeaks",
    "TestOlderAttempts",
    "TestPages",
    "TestPriority",
    "TestPropagation",
    "TestQueryAttempts",
    "TestQueryResources",
    "TestQueryRollouts",
    "TestQuerySpans",
    "TestQueryWorkers",
    "TestRecords",
    "TestRepeatedCalls",
    "TestRepeatedReport",
    "TestRequeue",
    "TestResources",
    "TestRevival",
    "TestRolloutFilters",
    "TestSequenceIds",
    "TestSequencesInParallel",
    "TestSilence",
    "TestSpanFilters",
    "TestSpanHeartbeat",
    "TestSpanOrder",
    "TestSpanRoundTrip",
    "TestStartAttempt",
    "TestStartRollout",
    "TestStore",
    "TestTimeout",
    "TestTransitions",
    "TestUpdateAttempt",
    "TestUpdateRollout",
    "TestWaiters",
    "TestWaitersOfARequeue",
    "TestWaiting",
    "TestWatchdogOfItsOwn",
    "TestWatchdogRetries",
    "TestWatchdogRuns",
    "TestWorkerHeartbeat",
    "TestWorkerHolds",
    "TestWorkerStatus",
]
