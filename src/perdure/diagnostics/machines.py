"""All state machines, for their charts."""

from __future__ import annotations

from typing import Final

from perdure.approvals.model import APPROVAL
from perdure.kernel.lifecycle import CONNECTION, DAEMON
from perdure.memory.nodes import TOC_NODE
from perdure.outbox.model import EFFECT, EFFECT_VIEW
from perdure.rollouts.model import ATTEMPT, ROLLOUT, WORKER
from perdure.schedules.model import FIRING, SCHEDULER
from perdure.threads.model import RUN_MACHINE
from perdure.workflows.model import NODE
from perdure.workflows.model import RUN as WORKFLOW_RUN

MACHINES: Final = (
    ROLLOUT,
    ATTEMPT,
    WORKER,
    RUN_MACHINE,
    EFFECT,
    EFFECT_VIEW,
    WORKFLOW_RUN,
    NODE,
    APPROVAL,
    DAEMON,
    SCHEDULER,
    FIRING,
    TOC_NODE,
    CONNECTION,
)
