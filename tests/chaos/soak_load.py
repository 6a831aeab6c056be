"""The mixed load of the soak: everything that a server's users do, at a bounded rate, for a while."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import Any

import httpx
from langgraph_sdk import get_client
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from perdure.client.lightning import LightningStoreClient
from perdure.client.native import PerdureClient
from perdure.kernel.ids import RandomIds, ulid
from perdure.memory.records import NewMemoryEvent
from perdure.rollouts.records import EnqueueRolloutRequest
from perdure.spans.records import Span as LightningSpan
from perdure.threads.records import RunRequest

NAMESPACES = 8
RUNS_A_THREAD = 4
CALLS_A_THREAD = 30
"""After so many calls of all activities, runs, sessions and chats go to a new thread."""
SPANS_A_BATCH = 20
MAX_BEHIND = 20
"""How many calls of one activity may be under way: the load is shed rather than piled up."""
CALL_SECONDS = 60.0
PAGES = (
    "/api/v1/runs?limit=50",
    "/api/v1/threads?limit=50",
    "/api/v1/rollouts?limit=50",
    "/api/v1/traces?limit=50",
    "/api/v1/workflow-runs?limit=20&total=true",
    "/api/v1/workflow-counts",
    "/api/v1/executions?limit=50",
    "/api/v1/executions/stats",
    "/api/v1/sessions?limit=20",
    "/api/v1/messaging/sessions?limit=20",
    "/api/v1/memory/stats",
    "/api/v1/memory/toc",
    "/api/v1/workers?limit=20",
    "/api/v1/outbox?limit=20",
    "/api/v1/stats",
    "/api/v1/stats/queues",
    "/api/v1/stats/usage",
    "/api/v1/queues",
    "/api/v1/schedules",
    "/api/v1/health",
    "/api/v1/info",
    "/api/v1/audit?limit=20",
    "/metrics",
    "/ui/",
    "/docs",
    "/openapi.json",
)


class SoakLoad:
    """Activities, each with its rate a second, against one server."""

    def __init__(self, url: str, seed: int, rate: float = 1.0) -> None:
        self._url = url
        self._rate = rate
        self._random = random.Random(seed)
        self._ids = RandomIds()
        self._names = [f"team-{number}" for number in range(NAMESPACES)]
        self._native = {name: PerdureClient(url, namespace=name) for name in self._names}
        self._home = PerdureClient(url)
        self._lightning = {name: LightningStoreClient(url, namespace=name) for name in self._names}
        self._langgraph = get_client(url=url)
        self._http = httpx.AsyncClient(base_url=url, timeout=CALL_SECONDS)
        self._graph_threads: list[str] = []
        self._number = 0
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.errors: dict[str, str] = {}
        """The last error of each activity."""
        self._activities: tuple[tuple[Callable[[], Awaitable[None]], float], ...] = (
            (self._work_off_rollouts, 2.0),
            (self._export_spans, 1.0),
            (self._run_and_wait, 1.5),
            (self._run_and_stream, 1.0),
            (self._leave_a_stream, 0.3),
            (self._fail, 0.2),
            (self._run_graph, 1.0),
            (self._run_graph_without_thread, 0.3),
            (self._resume_graph, 0.2),
            (self._run_workflow, 0.15),
            (self._write_session, 1.0),
            (self._remember, 1.0),
            (self._recall, 0.3),
            (self._keep_items, 1.0),
            (self._chat, 0.3),
            (self._open_pages, 1.5),
            (self._come_and_go, 0.5),
            (self._ask_wrongly, 0.3),
        )

    @property
    def activities(self) -> set[str]:
        """The names of all activities."""
        return {_name_of(action) for action, _ in self._activities}

    async def run(self, stop: asyncio.Event) -> None:
        """Keep all activities going until told to stop, then wait for the calls under way."""
        async with asyncio.TaskGroup() as group:
            for action, rate in self._activities:
                group.create_task(self._pace(action, rate * self._rate, stop))

    async def close(self) -> None:
        for client in (self._home, *self._native.values()):
            await client.close()
        for store in self._lightning.values():
            await store.close()
        await self._langgraph.aclose()
        await self._http.aclose()

    async def _pace(self, action: Callable[[], Awaitable[None]], rate: float, stop: asyncio.Event) -> None:
        """Start calls at random moments, `rate` a second; drop a call while too many are under way."""
        name = _name_of(action)
        async with asyncio.TaskGroup() as group:
            under_way: set[asyncio.Task[None]] = set()
            while not stop.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._random.expovariate(rate))
                if stop.is_set():
                    break
                if len(under_way) >= MAX_BEHIND:
                    self.failed[f"{name} shed"] += 1
                    continue
                task = group.create_task(self._call(name, action))
                under_way.add(task)
                task.add_done_callback(under_way.discard)

    async def _call(self, name: str, action: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await action()
            self.done[name] += 1
        except Exception as error:  # noqa: BLE001 - every failure is counted and its text reported
            self.failed[name] += 1
            self.errors[name] = repr(error)[:300]

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _namespace(self) -> str:
        return self._random.choice(self._names)

    def _text(self, words: int = 12) -> str:
        return " ".join(f"word{self._random.randint(1, 5000)}" for _ in range(words))

    # --- rollouts and spans -------------------------------------------------------------------------------

    async def _work_off_rollouts(self) -> None:
        """Enqueue some rollouts, claim as many, write their spans and complete them."""
        store = self._lightning[self._namespace()]
        await store.enqueue_many_rollouts(
            [EnqueueRolloutRequest(input={"task": self._text()}) for _ in range(self._random.randint(1, 4))]
        )
        worker = f"worker-{self._random.randint(1, 50)}"
        for claimed in await store.dequeue_many_rollouts(limit=4, worker_id=worker):
            rollout_id, attempt_id = claimed.rollout_id, claimed.attempt.attempt_id
            spans = [
                LightningSpan.from_attributes(
                    attributes={
                        "gen_ai.request.model": f"model-{self._random.randint(1, 9)}",
                        "text": self._text(),
                    },
                    rollout_id=rollout_id,
                    attempt_id=attempt_id,
                    sequence_id=number,
                )
                for number in range(1, 4)
            ]
            await store.add_many_spans(spans)
            status: Any = self._random.choice(("succeeded", "succeeded", "failed"))
            await store.update_attempt(rollout_id, attempt_id, status=status)

    async def _export_spans(self) -> None:
        """Start a rollout and send its spans by OTLP, with attributes that other traces do not have."""
        store = self._lightning[self._namespace()]
        started = await store.start_rollout({"task": "traced"})
        owner = {
            "agentlightning.rollout_id": started.rollout_id,
            "agentlightning.attempt_id": started.attempt.attempt_id,
            "service.instance.id": str(self._next()),
        }
        trace = self._random.getrandbits(128).to_bytes(16, "big")
        now = time.time_ns()
        spans = [
            Span(
                trace_id=trace,
                span_id=self._random.getrandbits(64).to_bytes(8, "big"),
                name=f"chat model-{self._random.randint(1, 9)}",
                start_time_unix_nano=now,
                end_time_unix_nano=now + 1_000_000,
                attributes=_attributes(
                    {
                        "gen_ai.request.model": f"model-{self._random.randint(1, 9)}",
                        "gen_ai.prompt": self._text(),
                        f"custom.{self._random.randint(1, 400)}": self._text(3),
                    }
                ),
            )
            for _ in range(SPANS_A_BATCH)
        ]
        scope = ScopeSpans(scope=InstrumentationScope(name="soak", version="1"), spans=spans)
        data = TracesData(
            resource_spans=[
                ResourceSpans(resource=Resource(attributes=_attributes(owner)), scope_spans=[scope])
            ]
        )
        answer = await self._http.post(
            "/v1/traces", content=data.SerializeToString(), headers={"Content-Type": "application/x-protobuf"}
        )
        answer.raise_for_status()
        await store.update_attempt(started.rollout_id, started.attempt.attempt_id, status="succeeded")

    # --- runs ---------------------------------------------------------------------------------------------

    async def _run_and_wait(self) -> None:
        agent = self._random.choice(("echo", "blocking"))
        await self._home.run(agent, {"text": self._text()}, metadata={"customer": str(self._next())})

    async def _run_and_stream(self) -> None:
        """Run on a thread of its own or one that is used again, read its stream, and read the thread."""
        client, thread_id = self._home, f"thread-{self._next() // CALLS_A_THREAD}"
        options: Any = {"thread_id": thread_id, "if_not_exists": "create", "multitask_strategy": "enqueue"}
        async for _ in client.stream_events("echo", {"text": self._text(), "events": 10}, **options):
            pass
        await client.get_thread(thread_id)
        await client.get_state(thread_id)

    async def _leave_a_stream(self) -> None:
        """Read the beginning of a stream and go away."""
        client = self._home
        run = await client.create_run(
            RunRequest(assistant_id="echo", input={"text": self._text(), "events": 20})
        )
        async with aclosing(client.stream_run(run.run_id, "-1")) as reading:
            async for _ in reading:
                break

    async def _fail(self) -> None:
        end = await self._home.run("failing", {"text": self._text()})
        if end.run.status != "error":
            raise RuntimeError(f"a failing agent ended as {end.run.status}")

    async def _run_graph(self) -> None:
        """Run a graph on a thread of some runs, with a stream, and read its state and history."""
        if not self._graph_threads or self._random.random() < 1 / RUNS_A_THREAD:
            thread = await self._langgraph.threads.create(metadata={"customer": str(self._next())})
            self._graph_threads = [*self._graph_threads[-9:], thread["thread_id"]]
        thread_id = self._random.choice(self._graph_threads)
        await self._stream_graph(thread_id, {"messages": [{"role": "user", "content": self._text()}]})
        await self._langgraph.threads.get_state(thread_id)
        await self._langgraph.threads.get_history(thread_id, limit=5)
        await self._langgraph.threads.search(limit=10)

    async def _stream_graph(self, thread_id: str | None, input: Any, **options: Any) -> None:
        modes: Any = ["values", "messages-tuple", "updates"]
        if thread_id is not None:
            options["multitask_strategy"] = "enqueue"
        async for _ in self._langgraph.runs.stream(
            thread_id, "graph", input=input, stream_mode=modes, **options
        ):
            pass

    async def _run_graph_without_thread(self) -> None:
        await self._stream_graph(None, {"messages": [{"role": "user", "content": self._text()}]})

    async def _resume_graph(self) -> None:
        """Run a graph into its question, answer it, and delete its thread."""
        thread_id = (await self._langgraph.threads.create())["thread_id"]
        await self._stream_graph(thread_id, {"messages": [{"role": "user", "content": "ask me"}]})
        await self._stream_graph(thread_id, None, command={"resume": self._text(2)})
        await self._langgraph.threads.delete(thread_id)

    async def _run_workflow(self) -> None:
        client = self._home
        context = {"title": self._text(3)}
        sent = await client.workflows.run("soak", context=context, trigger_id=f"soak-{self._next()}")
        run_id = sent.workflow_run_id
        assert run_id is not None
        await client.workflows.get(run_id)
        await client.workflows.history(run_id)

    # --- sessions, memory, items, chats -------------------------------------------------------------------

    async def _write_session(self) -> None:
        sessions = self._native[self._namespace()].sessions
        session_id = f"session-{self._next() // CALLS_A_THREAD}"
        lines: Any = [
            {"type": "user", "message": {"role": "user", "content": self._text()}},
            {
                "type": "assistant",
                "message": {
                    "role": "assistant",
                    "model": "model-1",
                    "content": [{"type": "text", "text": self._text(40)}],
                    "usage": {"input_tokens": 10, "output_tokens": 5},
                },
            },
        ]
        await sessions.append(session_id, lines)
        await sessions.get(session_id)
        await sessions.messages(session_id)

    async def _remember(self) -> None:
        await self._native[self._namespace()].memory.ingest_many(
            [
                NewMemoryEvent(
                    event_id=ulid(int(time.time() * 1000), self._ids),
                    session_id=f"talk-{self._number // 20}",
                    text=self._text(40),
                    agent=f"agent-{self._random.randint(1, 20)}",
                )
                for _ in range(2)
            ]
        )

    async def _recall(self) -> None:
        memory = self._native[self._namespace()].memory
        await memory.search(self._text(2))
        await memory.get_events(limit=20)

    async def _keep_items(self) -> None:
        items = self._native[self._namespace()].items
        label, key = f"user-{self._random.randint(1, 2000)}", f"key-{self._random.randint(1, 20)}"
        await items.put(("notes", label), key, {"text": self._text()})
        await items.fetch(("notes", label), key)
        await items.search(("notes", label), limit=10)

    async def _chat(self) -> None:
        messaging = self._home.messaging
        session = await messaging.get_or_create(
            "soak", f"channel-{self._next() // CALLS_A_THREAD}", "ann", assistant_id="echo"
        )
        await messaging.ask(session.session_id, self._text())
        await messaging.history(session.session_id)

    # --- pages and callers that come and go ---------------------------------------------------------------

    async def _open_pages(self) -> None:
        headers = {"X-Perdure-Namespace": self._namespace()}
        answer = await self._http.get(self._random.choice(PAGES), headers=headers)
        answer.raise_for_status()

    async def _come_and_go(self) -> None:
        """A client with a connection of its own that watches for changes and leaves."""
        async with httpx.AsyncClient(base_url=self._url, timeout=CALL_SECONDS) as client:
            (await client.get("/api/v1/health")).raise_for_status()
            async with client.stream("GET", "/api/v1/changes") as answer:
                answer.raise_for_status()

    async def _ask_wrongly(self) -> None:
        """Requests that are refused: routes, ids, names and bodies that nothing else has."""
        number = self._next()
        wrong: tuple[Coroutine[Any, Any, httpx.Response], ...] = (
            self._http.get(f"/nothing/{number}"),
            self._http.get(f"/api/v1/runs/run-{number}"),
            self._http.post("/api/v1/runs", json={"assistant_id": f"nobody-{number}"}),
            self._http.post("/api/v1/runs", content=os.urandom(64)),
            self._http.get("/api/v1/runs", headers={"Authorization": f"Bearer wrong-{number}"}),
            self._http.request(f"METHOD{number}", "/api/v1/runs"),
        )
        for answer in await asyncio.gather(*wrong):
            if not 400 <= answer.status_code < 500:
                raise RuntimeError(f"{answer.request.method} {answer.url} answered {answer.status_code}")


def _name_of(action: Callable[[], Awaitable[None]]) -> str:
    return action.__name__.strip("_")


def _attributes(values: dict[str, str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in values.items()]
