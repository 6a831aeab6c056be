"""A SQLite file and its log as a killed process left them, cut and flipped at any place, and opened again.

The log holds the last transactions, each with a checksum that the next one's builds on. Whatever is torn, what
is recovered must be the state after some whole transaction; and if only the log is torn, all that was
acknowledged before the tear. The caller wrote one call after the other, so that the order of transactions is known.
"""

import asyncio
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from perdure.kernel.errors import NotADatabase
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.rollouts.records import EnqueueRolloutRequest
from perdure.rollouts.spans import Span
from perdure.testing.snapshot import Snapshot, take
from tests.chaos.scenario import Run
from tests.chaos.stores import TABLES, store_over

NAMESPACE = "torn"
ROUNDS = 40
FRAME_HEADER = 24
LOG_HEADER = 32
