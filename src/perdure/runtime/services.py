"""All services of a database, wired once."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Self

from perdure.access.authentication import Authentication
from perdure.access.service import Access
from perdure.agents.sections import HttpSection, ItemSetup
from perdure.approvals.due import DueApprovals
from perdure.approvals.service import Approvals, LinkedApprovals
from perdure.assistants.service import Assistants
from perdure.diagnostics.model import read_pools
from perdure.diagnostics.service import Diagnostics
from perdure.eventlog.file_log import FileEventLog
from perdure.eventlog.port import EventLog
from perdure.eventlog.table_log import TableEventLog
from perdure.executions.service import Executions
from perdure.graph_requests.service import GraphRequests
from perdure.items.service import Items
from perdure.jobs.executor import JobExecutor
from perdure.jobs.model import JobRegistry
from perdure.jobs.service import Jobs
from perdure.kernel.config import Settings, config_file
from perdure.kernel.retention import Retention
from perdure.kernel.storage.port import Storage
from perdure.kernel.storage.sqlite import SqliteStorage
from perdure.memory.service import Memory
from perdure.memory.wiring import build_vectors
from perdure.messaging.inputs import TurnInputs
from perdure.messaging.service import Messaging
from perdure.outbox.delivery import Deliveries
from perdure.outbox.service import Outbox
from perdure.outbox.webhooks.urls import check_webhook_url
from perdure.retention.service import Upkeep
from perdure.rollouts.resource_service import Resources
from perdure.rollouts.service import Rollouts
from perdure.rollouts.store import DatabaseLightningStore
from perdure.rollouts.workers import Workers
from perdure.runs.queue import RunQueue
from perdure.runtime.private_files import state_directory
from perdure.runtime.stores import ComposedInputs, DatabaseKinds, open_configured
from perdure.schedules.conditions import Conditions
from perdure.schedules.cron_files import CronFiles
from perdure.schedules.job_target import JobTarget
from perdure.schedules.model import ScheduleTargets
from perdure.schedules.rollout_target import RolloutTarget
from perdure.schedules.run_target import RunTarget
from perdure.schedules.scheduled_jobs import ScheduledJobs
from perdure.schedules.service import Schedules
from perdure.schedules.timer import ScheduleTimer
from perdure.schedules.workflow_target import WorkflowTarget
from perdure.service.callers import Caller
from perdure.service.namespaces import list_namespaces
from perdure.sessions.service import Sessions
from perdure.spans.prices import FILE_NAME as PRICE_FILE
from perdure.spans.prices import Price, read_prices
from perdure.statistics.recorder import StatisticsRecorder
from perdure.threads.bulk import Bulk
from perdure.threads.policy import Policy
from perdure.threads.records import Lifetime
from perdure.threads.service import Threads
from perdure.traces.service import Traces
from perdure.workflows.definition_files import DefinitionFiles, Definitions
from perdure.workflows.inputs import WorkflowInputs
from perdure.workflows.override_service import WorkflowOverrides
from perdure.workflows.registry import WorkflowRegistry
from perdure.workflows.resuming import RunResumer
from perdure.workflows.service import Workflows
from perdure.workflows.timer import WorkflowTimer
from perdure.workflows.values import Config

logger = logging.getLogger(__name__)

MAX_CALLERS = 256


class Services:
    """The services of one database in one namespace. `acting_as` returns them for a caller."""

    def __init__(
        self,
        store: DatabaseLightningStore,
        settings: Settings,
        items: ItemSetup | None = None,
        http: HttpSection | None = None,
        lifetime: Lifetime | None = None,
    ) -> None:
        setup = items or ItemSetup()
        storage, namespace = store.storage, store.namespace
        kinds = DatabaseKinds.of(store)
        phases = kinds.phases
        self.storage = storage
        self.store = store
        store.rollouts.prices.use(load_prices(settings))
        self.authentication = Authentication(storage)
        self.access = Access(storage, self.authentication, namespace=namespace)
        self.outbox = Outbox(storage, namespace=namespace)
        self.assistants = Assistants(storage, namespace=namespace)
        self.items = Items(storage, namespace=namespace, policy=setup.policy, index=setup.index)
        self.executions = Executions(storage, namespace=namespace)
        self.threads = Threads(
            storage, kinds, namespace=namespace, policy=build_policy(settings, http, lifetime)
        )
        self.not_loaded: dict[str, str] = {}
        """Agents of this process that could not be loaded, with the reasons."""
        self.threads.not_loaded = self.not_loaded
        log = event_log(storage, settings)
        phases.policy = self.threads.policy
        inputs = ComposedInputs(WorkflowInputs(storage), TurnInputs(storage))
        self.run_queue = RunQueue.beside(self.threads, self.items, log, inputs)
        self.bulk = Bulk(store.rollouts, self.threads)
        self.graph_requests = GraphRequests.of_same(self.threads)
        self.jobs = Jobs.of_same(self.threads)
        self.job_registry = JobRegistry()
        """Job functions that this process executes; domains add theirs here."""
        self.job_executor = JobExecutor(storage, self.job_registry, kinds)
        self.definitions = WorkflowRegistry()
        """The workflows of this process, from its files and from programs."""
        cap = settings.max_workflows
        self.workflows = Workflows(
            storage,
            self.definitions,
            phases,
            config=workflow_config(settings),
            cap=cap,
            namespace=namespace,
        )
        resumer = RunResumer(phases)
        self.approvals = Approvals(storage, resumer, public_url=get_public_url(settings), namespace=namespace)
        self.linked_approvals = LinkedApprovals(storage, resumer)
        """Approvals behind links, in every namespace."""
        also = [DueApprovals(storage, resumer).settle]
        self.workflow_timer = WorkflowTimer(storage, phases, cap=cap, also=also)
        self.schedule_targets = ScheduleTargets(
            RunTarget(kinds, self.threads.policy),
            RolloutTarget(kinds),
            JobTarget(),
            WorkflowTarget(self.workflows, phases),
        )
        self.conditions = Conditions()
        """Conditions under which schedules do not fire; programs add theirs here."""
        self.schedule_timer = ScheduleTimer(storage, self.schedule_targets, self.conditions)
        self.schedules = Schedules(
            storage, self.schedule_targets, scheduler=self.schedule_timer, namespace=namespace
        )
        self.scheduled_jobs = ScheduledJobs(self.schedules)
        """Schedules of jobs that code defines; domains add theirs here."""
        self.definition_files = DefinitionFiles(settings)
        """The workflow and cron files; domains receive their definitions here."""
        self.definition_files.add(self._take_workflows)
        self.definition_files.add(CronFiles(self.schedules, self.job_registry, self.conditions).take)
        self.traces = Traces(storage, namespace=namespace, prices=store.rollouts.prices)
        self.diagnostics = Diagnostics(
            storage,
            kinds,
            namespace=namespace,
            watchdog=self.threads.watchdog,
            lease=self.threads.policy.lease,
            log=log,
        )
        self.diagnostics.not_loaded = self.not_loaded
        self.sessions = Sessions(storage, log, namespace=namespace)
        self.messaging = Messaging(
            storage, phases, self.threads, idle=settings.chat_idle_timeout, namespace=namespace
        )
        self.workflow_overrides = WorkflowOverrides(storage, namespace=namespace)
        self.memory = Memory(
            storage,
            namespace=namespace,
            vectors=build_vectors(storage, settings),
            max_event_bytes=settings.memory_event_bytes,
        )
        self.upkeep = Upkeep(storage, namespace=namespace, retention=Retention.of(settings), log=log)
        self.recorder = StatisticsRecorder(storage)
        """Records the queues every minute and the usage every hour; `start_timers` starts it."""
        self.deliveries = Deliveries(storage)
        """Deliveries of this process from the outbox; consumers must be added first."""
        self._by_caller: OrderedDict[Caller, Self] = OrderedDict()

    async def _take_workflows(self, definitions: Definitions) -> str | None:
        """Load the workflows of files, before the crons that start them."""
        return self.definitions.load(definitions.workflows, definitions.broken, definitions.refused)

    @property
    def rollouts(self) -> Rollouts:
        """The rollouts of the namespace; `store` adds Agent-lightning's contract to them."""
        return self.store.rollouts

    @property
    def workers(self) -> Workers:
        """The workers of the namespace."""
        return self.store.workers

    @property
    def resources(self) -> Resources:
        """The resources of the namespace."""
        return self.store.resources

    @classmethod
    def open(cls, settings: Settings, items: ItemSetup | None = None) -> Self:
        """Open the database that the settings name, and wire its services."""
        return cls(open_configured(settings), settings, items)

    def set_not_loaded(self, reasons: Mapping[str, str]) -> None:
        """Store the agents of this process that could not be loaded, with the reasons."""
        self.not_loaded.clear()
        self.not_loaded.update(reasons)

    def acting_as(self, caller: Caller) -> Self:
        """Return the services in the caller's namespace, acting as the caller.

        The same caller gets the same services, so that its concurrent calls are merged.
        """
        services = self._by_caller.get(caller)
        if services is None:
            services = self._by_caller[caller] = self._bind_to(caller)
            if len(self._by_caller) > MAX_CALLERS:
                self._by_caller.popitem(last=False)
        return services

    def _bind_to(self, caller: Caller) -> Self:
        sibling = copy(self)
        sibling.store = self.store.acting_as(caller)
        sibling.assistants = self.assistants.acting_as(caller)
        sibling.items = self.items.acting_as(caller)
        sibling.executions = self.executions.acting_as(caller)
        sibling.threads = self.threads.acting_as(caller)
        sibling.bulk = Bulk(sibling.rollouts, sibling.threads)
        sibling.run_queue = self.run_queue.acting_as(caller)
        sibling.graph_requests = self.graph_requests.acting_as(caller)
        sibling.jobs = self.jobs.acting_as(caller)
        sibling.access = self.access.acting_as(caller)
        sibling.outbox = self.outbox.acting_as(caller)
        sibling.traces = self.traces.acting_as(caller)
        sibling.schedules = self.schedules.acting_as(caller)
        sibling.sessions = self.sessions.acting_as(caller)
        sibling.messaging = self.messaging.acting_as(caller)
        sibling.workflows = self.workflows.acting_as(caller)
        sibling.approvals = self.approvals.acting_as(caller)
        sibling.workflow_overrides = self.workflow_overrides.acting_as(caller)
        sibling.memory = self.memory.acting_as(caller)
        sibling.upkeep = self.upkeep.acting_as(caller)
        sibling.diagnostics = self.diagnostics.acting_as(caller)
        return sibling

    async def reload_prices(self, settings: Settings) -> str | None:
        """Read the price table again."""
        prices = load_prices(settings)
        self.store.rollouts.prices.use(prices)
        return f"{len(prices)} prices" if prices else None

    async def ping(self) -> None:
        """Check that the database answers."""
        await self.storage.read(list_namespaces)

    def start_timers(self, settings: Settings) -> None:
        """Start to delete expired data, to record the queues, and to log connection pools."""
        self.threads.start_timers(settings.stream_ttl)
        self.graph_requests.start_timers()
        self.run_queue.start_timers()
        self.items.start_timers()
        self.recorder.start()
        if self.storage.engine == "postgres":
            self.storage.timers.every(settings.stats_interval, self.log_pools)

    async def log_pools(self) -> None:
        """Log the number of open and used connections to the database and to Redis."""
        for name, pool in read_pools(await self.storage.health()).items():
            logger.info("Pool stats: pool=%s %s", name, " ".join(f"{key}={n}" for key, n in pool.items()))

    async def finish(self) -> None:
        """Write pending counts, and close the session log files."""
        await self.recorder.finish()
        await self.sessions.log.close()

    async def close(self) -> None:
        """Finish pending work, and close the database."""
        await self.graph_requests.finish_releases()
        await self.run_queue.close()
        await self.finish()
        await self.store.close()


def event_log(storage: Storage, settings: Settings) -> EventLog:
    """Open the session logs: files next to a SQLite file or in the state directory, otherwise a table."""
    if not isinstance(storage, SqliteStorage) or storage.path == ":memory:":
        return TableEventLog(storage)
    return FileEventLog(state_folder(settings, storage) / "agent-sessions", sync=settings.session_sync)


def state_folder(settings: Settings, storage: Storage | None = None) -> Path:
    """Return the folder of lasting files: from the settings, next to a SQLite file, or the user's."""
    if settings.state_dir:
        return Path(settings.state_dir)
    if isinstance(storage, SqliteStorage) and storage.path != ":memory:":
        return Path(storage.path).parent
    return state_directory()


def get_workspaces_folder(settings: Settings, storage: Storage | None = None) -> str:
    """Return the folder of the workflow runs' working directories."""
    return str(state_folder(settings, storage) / "workspaces")


def load_prices(settings: Settings) -> Mapping[str, Price]:
    """Read prices from `price_file` or from prices.toml next to perdure.toml; without a file return none."""
    if settings.price_file is not None:
        return read_prices(Path(settings.price_file))
    beside = config_file().parent / PRICE_FILE
    return read_prices(beside) if beside.is_file() else {}


def workflow_config(settings: Settings) -> Config:
    """Build the workflow configuration from the settings; each run keeps the one of its dispatch."""
    return Config(
        gates=settings.workflow_gates,
        models=dict(settings.workflow_models),
        variants=dict(settings.workflow_variants),
        assistants=dict(settings.workflow_assistants),
        sandbox=settings.workflow_sandbox,
        command_sandbox=settings.command_sandbox,
        sandbox_images=settings.workflow_sandbox_images,
    )


def get_public_url(settings: Settings) -> str | None:
    """Return the public URL of this server without a trailing slash."""
    return None if settings.public_url is None else settings.public_url.rstrip("/")


def build_policy(
    settings: Settings, http: HttpSection | None = None, lifetime: Lifetime | None = None
) -> Policy:
    """Build the run policy from the settings, and from the project's options of webhooks and threads."""
    http = http or HttpSection()
    return Policy(
        timeout=settings.job_timeout,
        max_attempts=settings.job_max_retries,
        lease=settings.job_heartbeat,
        grace=settings.job_heartbeat,
        check_webhook=_no_webhook if "webhooks" in http.disabled else _build_check(settings, http),
        lifetime=lifetime,
    )


def _build_check(settings: Settings, http: HttpSection) -> Callable[[str], str]:
    return partial(
        check_webhook_url,
        allow_private=settings.webhook_allow_private,
        allow_loopback=settings.webhook_allow_loopback,
        allowed_hosts=settings.webhook_allowed_hosts,
        policy=http.webhook_policy,
    )


def _no_webhook(url: str) -> None:
    """Accept no webhook, because webhooks are disabled."""
