"""Stopping and reloading servers: real processes, real signals, and callers in the middle of requests."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.cli.command import Server, Terminal
from tests.cli.test_daemon import until
from tests.cli.test_supervisor import children_of, is_alive

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
KEY, NEXT_KEY = "a-key-of-the-server-1", "a-key-of-the-server-2"
AGENTS = """
import asyncio
from perdure.worker.registry import Agents

agents = Agents()

@agents.agent("count")
async def count(ctx, input):
    if ctx.attempt == 1:
        for number in range(3):
            await ctx.emit({"number": number})
        await asyncio.Event().wait()
    await ctx.emit({"number": 3})
    return "done"
"""


class Upload:
    """A request whose body is sent except for its last byte."""

    def __init__(self, server: Server) -> None:
        body = json.dumps({"input": "in flight"}).encode()
        host, port = server.url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        head = f"POST /api/v1/rollouts HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        self._socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
        self._rest = body[-1:]

    def finish(self) -> tuple[int, str | None]:
        """Send the rest. Return the status and the header Connection."""
        self._socket.sendall(self._rest)
        with http.client.HTTPResponse(self._socket) as response:
            response.begin()
            response.read()
            return response.status, response.headers["connection"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()


def ask(server: Server, path: str, body: Any) -> Any:
    request = urllib.request.Request(server.url + "/api/v1" + path, json.dumps(body).encode())
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


@contextmanager
def stream(server: Server, run_id: str, after: str | None = None) -> Iterator[Iterator[tuple[str, str]]]:
    """Yield the ids and lines of a stream of events."""
    request = urllib.request.Request(f"{server.url}/api/v1/runs/{run_id}/stream")
    if after is not None:
        request.add_header("last-event-id", after)

    def pairs(lines: Iterator[bytes]) -> Iterator[tuple[str, str]]:
        place = ""
        for line in lines:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            place = value if name == "id" else place
            if name in ("id", "data"):
                yield place, value if name == "data" else ""

    with urllib.request.urlopen(request, timeout=30) as answer:
        yield pairs(iter(answer))


def refused_as(server: Server, path: str) -> tuple[int, Any]:
    status, body = server.get(path)
    return status, json.loads(body)


async def test_sigterm_cascades(tmp_path: Path, engine_url: str) -> None:
    """The guarantees of a shutdown, with one caller of each kind in the middle of a request."""
    (tmp_path / "agents.py").write_text(AGENTS)
    arguments = ("--grpc-port", "0", "--agents", "./agents.py:agents", "--database", engine_url)
    quick = {"SHUTDOWN_GRACE_PERIOD_SECS": "0", "BG_JOB_HEARTBEAT": "60", "LOG_LEVEL": "info"}
    with Server(tmp_path, "serve", *arguments, more=quick) as server:
        run_id = ask(server, "/runs", {"assistant_id": "count"})["run_id"]
        waiting = asyncio.ensure_future(asyncio.to_thread(wait_for, server, run_id))
        address = f"127.0.0.1:{server.facts['grpc_port']}"
        with stream(server, run_id) as events, Upload(server) as upload:
            seen = [next(events) for _ in range(8)]
            async with grpc.aio.insecure_channel(address) as channel:
                watch = health_pb2_grpc.HealthStub(channel).Watch(
                    health_pb2.HealthCheckRequest(), wait_for_ready=True
                )
                assert (await watch.read()).status == SERVING
                reflecting = await held_reflection(channel)
                release = asyncio.Event()
                call = channel.stream_unary(EXPORT)(message_when(release))
                await asyncio.sleep(0)
                began = time.monotonic()
                server.process.send_signal(signal.SIGTERM)
                # The watch sees the status before anything has drained, and then ends.
                assert (await watch.read()).status == NOT_SERVING
                assert await watch.read() is grpc.aio.EOF
                check = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                assert check.status == NOT_SERVING
                # The stream ends with the id to resume from, and a wait ends with a hint to retry.
                seen += await asyncio.to_thread(list, events)
                assert (await waiting)[1]["code"] == "storage_closed"
                # The listener still answers: it is alive, but not ready.
                assert (await asyncio.to_thread(server.get, "/healthz"))[0] == 200
                assert refused_as(server, "/readyz")[1]["status"] == "stopping"
                # Claims have stopped.
                later = await asyncio.to_thread(ask, server, "/runs", {"assistant_id": "count"})
                assert later["status"] == "pending"
                # Accepted requests are answered.
                release.set()
                assert await call == b""
                assert await asyncio.to_thread(upload.finish) == (201, "close")
                reflecting.cancel()
        assert await asyncio.to_thread(server.end) == 0
        # An open watch and a reflection call do not delay it.
        assert time.monotonic() - began < 10
    assert "Traceback" not in server.errors
    assert "hands 1 runs back" in server.errors
    with (
        Server(tmp_path, "serve", *arguments, more=quick) as server,
        stream(server, run_id, seen[-1][0]) as events,
    ):
        rest = list(events)
    assert (numbers_in(seen), numbers_in(rest)) == ([0, 1, 2], [3])
    places = [int(place.partition("-")[2]) for place, data in (*seen, *rest) if data]
    assert places == list(range(1, len(places) + 1))


def numbers_in(events: Iterable[tuple[str, str]]) -> list[int]:
    """Return the numbers that the agent has counted."""
    data = [json.loads(text) for _, text in events if text]
    return [each["number"] for each in data if isinstance(each, dict) and "number" in each]


def wait_for(server: Server, run_id: str) -> tuple[int, Any]:
    return refused_as(server, f"/api/v1/runs/{run_id}/wait")


async def message_when(release: asyncio.Event) -> AsyncIterator[bytes]:
    await release.wait()
    yield ExportTraceServiceRequest().SerializeToString()


async def held_reflection(channel: Any) -> Any:
    """Open a reflection call that its caller never ends."""
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    await call.read()
    return call


def test_a_second_signal_ends_a_server_at_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    more = {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
    with Server(tmp_path, "serve", more=more) as server, Upload(server):
        assert list((tmp_path / "run" / "perdure").glob("*.secret"))
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.get("/readyz")[0] == 503)
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    assert "ended at once: by a second signal (SIGTERM)" in server.errors
    assert not list((tmp_path / "run" / "perdure").iterdir())


def test_stopping_is_bounded(tmp_path: Path) -> None:
    with Server(tmp_path, "serve", more={"PERDURE_SHUTDOWN_TIMEOUT": "0.5"}) as server, Upload(server):
        began = time.monotonic()
        assert server.stop() == 1
        assert time.monotonic() - began < 10
    assert "HttpService failed to stop: it took longer than" in server.errors
    assert re.search("perdure .* is stopped", server.errors)


def test_a_closed_terminal_stops_a_server(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "serve", "--port", "0", "--database", "memory:")
    terminal.read_until("PERDURE_API_KEY is set")
    os.close(terminal._main)
    assert terminal.process.wait(30) == 129


# --- reloading --------------------------------------------------------------------------------------------


def status_with(server: Server, key: str) -> int:
    request = urllib.request.Request(server.url + "/api/v1/rollouts", headers={"x-api-key": key})
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def hear(server: Server, words: str) -> str:
    """Read the log until it contains these words."""
    assert server.process.stderr is not None
    while words not in (line := server.process.stderr.readline()):
        assert line, words
        server.errors += line
    server.errors += line
    return str(line)


def test_sighup_reloads_keys_and_log_level_and_says_what_needs_a_restart(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(KEY)
    configuration = tmp_path / "perdure.toml"
    configuration.write_text('[perdure]\nlog_level = "warning"\n')
    with Server(tmp_path, "serve", "--api-key-file", "key") as server:
        assert [status_with(server, key) for key in (KEY, NEXT_KEY)] == [200, 401]
        (tmp_path / "key").write_text(NEXT_KEY)
        configuration.write_text('[perdure]\nlog_level = "info"\npool_size = 9\nrate_limit = 1000\n')
        server.process.send_signal(signal.SIGHUP)
        assert "pool_size, rate_limit" in hear(server, "need a restart")
        assert [status_with(server, key) for key in (KEY, NEXT_KEY)] == [401, 200]
        # A removed key stays in effect, and an unreadable file changes nothing.
        (tmp_path / "key").write_text("short")
        server.process.send_signal(signal.SIGHUP)
        assert "api_key" in hear(server, "settings cannot be reloaded")
        assert status_with(server, NEXT_KEY) == 200
        assert server.stop() == 0
    assert "reloaded API key: the key has changed" in server.errors
    assert "reloaded log level: the level is info" in server.errors
    assert KEY not in server.errors


def test_sighup_and_a_second_signal_reach_all_processes(tmp_path: Path, database_url: str) -> None:
    (tmp_path / "perdure.toml").write_text('[perdure]\nlog_level = "warning"\n')
    with Server(tmp_path, "serve", "--workers", "2", "--database", database_url) as server:
        processes = children_of(server.process.pid)
        (tmp_path / "perdure.toml").write_text('[perdure]\nlog_level = "info"\n')
        server.process.send_signal(signal.SIGHUP)
        for _ in range(3):
            hear(server, "reloaded log level: the level is info")
        with Upload(server):
            server.process.send_signal(signal.SIGTERM)
            hear(server, "stopping 2 server processes")
            assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM
    until(lambda: not any(map(is_alive, processes)))
