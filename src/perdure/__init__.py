"""perdure: the durable state and execution layer for AI agents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from perdure.kernel.version import VERSION

__version__ = VERSION

if TYPE_CHECKING:
    from perdure import errors as errors
    from perdure.agents.context import Context as Context
    from perdure.agents.context import Retriable as Retriable
    from perdure.client.lightning import LightningStoreClient as LightningStoreClient
    from perdure.client.native import PerdureClient as PerdureClient
    from perdure.embedding.perdure import Perdure as Perdure
    from perdure.rollouts.contract import LightningStore as LightningStore
    from perdure.rollouts.records import UNSET as UNSET
    from perdure.rollouts.records import Attempt as Attempt
    from perdure.rollouts.records import AttemptedRollout as AttemptedRollout
    from perdure.rollouts.records import EnqueueRolloutRequest as EnqueueRolloutRequest
    from perdure.rollouts.records import PaginatedResult as PaginatedResult
    from perdure.rollouts.records import Rollout as Rollout
    from perdure.rollouts.records import RolloutConfig as RolloutConfig
    from perdure.rollouts.records import Worker as Worker
    from perdure.rollouts.records import is_finished as is_finished
    from perdure.rollouts.records import is_queuing as is_queuing
    from perdure.rollouts.records import is_running as is_running
    from perdure.rollouts.resources import LLM as LLM
    from perdure.rollouts.resources import NamedResources as NamedResources
    from perdure.rollouts.resources import PromptTemplate as PromptTemplate
    from perdure.rollouts.resources import ProxyLLM as ProxyLLM
    from perdure.rollouts.resources import ResourcesUpdate as ResourcesUpdate
    from perdure.runtime.stores import InMemoryLightningStore as InMemoryLightningStore
    from perdure.runtime.stores import PostgresLightningStore as PostgresLightningStore
    from perdure.runtime.stores import SqliteLightningStore as SqliteLightningStore
    from perdure.runtime.stores import open_store as open_store
    from perdure.runtime.threaded import LightningStoreThreaded as LightningStoreThreaded
    from perdure.server.lightning.server import LightningStoreServer as LightningStoreServer
    from perdure.spans.records import Event as Event
    from perdure.spans.records import Link as Link
    from perdure.spans.records import OtelResource as OtelResource
    from perdure.spans.records import Span as Span
    from perdure.spans.records import SpanContext as SpanContext
    from perdure.spans.records import SpanCoreFields as SpanCoreFields
    from perdure.spans.records import TraceStatus as TraceStatus
    from perdure.threads.records import Lifetime as Lifetime
    from perdure.threads.records import Run as Run
    from perdure.threads.records import RunEnd as RunEnd
    from perdure.threads.records import RunRequest as RunRequest
    from perdure.threads.records import Thread as Thread
    from perdure.worker.registry import Agents as Agents
    from perdure.workflows.building import phase as phase
    from perdure.workflows.building import workflow as workflow

_HOMES = {
    "perdure.worker.registry": ("Agents",),
    "perdure.workflows.building": ("phase", "workflow"),
    "perdure.agents.context": ("Context", "Retriable"),
    "perdure.client.lightning": ("LightningStoreClient",),
    "perdure.server.lightning.server": ("LightningStoreServer",),
    "perdure.client.native": ("PerdureClient",),
    "perdure.rollouts.contract": ("LightningStore",),
    "perdure.rollouts.records": (
        "UNSET",
        "Attempt",
        "AttemptedRollout",
        "EnqueueRolloutRequest",
        "PaginatedResult",
        "Rollout",
        "RolloutConfig",
        "Worker",
        "is_finished",
        "is_queuing",
        "is_running",
    ),
    "perdure.rollouts.resources": ("LLM", "NamedResources", "PromptTemplate", "ProxyLLM", "ResourcesUpdate"),
    "perdure.spans.records": (
        "Event",
        "Link",
        "OtelResource",
        "Span",
        "SpanContext",
        "SpanCoreFields",
        "TraceStatus",
    ),
    "perdure.embedding.perdure": ("Perdure",),
    "perdure.runtime.stores": (
        "InMemoryLightningStore",
        "PostgresLightningStore",
        "SqliteLightningStore",
        "open_store",
    ),
    "perdure.runtime.threaded": ("LightningStoreThreaded",),
    "perdure.threads.records": ("Lifetime", "Run", "RunEnd", "RunRequest", "Thread"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = ["__version__", "errors", *sorted(_HOME_OF)]  # noqa: PLE0604 - names of the table above


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that importing the package stays quick."""
    if name == "errors":
        return import_module("perdure.errors")
    if name in _HOME_OF:
        value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return value
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
