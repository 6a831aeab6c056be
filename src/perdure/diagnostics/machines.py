"""All state machines, for their charts."""

from __future__ import annotations

from typing import Final

from perdure.outbox.model import EFFECT
from perdure.rollouts.model import ATTEMPT, ROLLOUT, WORKER
from perdure.threads.model import RUN_MACHINE
from perdure.workflows.approval_model import APPROVAL

MACHINES: Final = (ROLLOUT, ATTEMPT, WORKER, RUN_MACHINE, EFFECT, APPROVAL)
