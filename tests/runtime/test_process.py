"""The process that owns signals: the order of starting and stopping, its bounds, and reloads."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from perdure import InMemoryLightningStore
from perdure.kernel.config import Settings, load_settings
from perdure.kernel.errors import Unauthorized
from perdure.kernel.lifecycle import DAEMON, Component, InPhase, Step, StopPhase
from perdure.runtime.app import App
from perdure.runtime.process import ServiceProcess
from perdure.runtime.reloads import Reloads


class Recorder:
    """A component that writes down what happens to it."""

    def __init__(self, name: str, seen: list[str], *, fails: bool = False) -> None:
        self.name = name
        self.seen = seen
        self.fails = fails

    async def start(self) -> None:
        self.seen.append(f"start {self.name}")
        if self.fails:
            raise ValueError(self.name)

    async def stop(self) -> None:
        self.seen.append(f"stop {self.name}")


class Claimer(Recorder):
    async def stop_claiming(self) -> None:
        self.seen.append(f"quiet {self.name}")


class Everywhere(Recorder):
    """Does something in every phase."""

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        return {phase: self._step(phase) for phase in StopPhase}

    def _step(self, phase: StopPhase) -> Step:
        async def step() -> None:
            self.seen.append(phase.name)

        return step


class Hanging(Recorder):
    """Never stops by itself."""

    async def stop(self) -> None:
        await asyncio.Event().wait()


def made(
    services: list[Component], *, timeout: float = 30.0, codes: list[int] | None = None
) -> ServiceProcess:
    ended = [] if codes is None else codes
    return ServiceProcess(services, timeout=timeout, end_process=ended.append)


async def stopped_by(process: ServiceProcess, number: int = signal.SIGTERM) -> list[str]:
    """Run a process until it runs, end it with a signal, and tell its statuses."""
    statuses: list[str] = []

    def told(status: str) -> None:
        statuses.append(status)
        if status == "running":
            os.kill(os.getpid(), number)

    process.on_status(told)
    await process.run()
    return statuses


def test_the_table_has_the_statuses_of_the_seed() -> None:
    path = ["start", "all services started", "stop requested", "cleaned up"]
    status, seen = "stopped", []
    for event in path:
        status = DAEMON.step(status, event)
        seen.append(status)
    assert seen == ["starting", "running", "stopping", "stopped"]
    assert DAEMON.step("starting", "start failed") == "stopped"
    assert DAEMON.step("stopping", "stop requested") == "stopping"


async def test_services_start_in_order_and_stop_by_phases() -> None:
    seen: list[str] = []
    services: list[Component] = [
        InPhase(StopPhase.STORAGE, Recorder("storage", seen)),
        InPhase(StopPhase.INTAKE, Recorder("timer", seen)),
        Claimer("worker", seen),
        Everywhere("all", seen),
    ]
    process = made(services)
    assert await stopped_by(process) == ["starting", "running", "stopping", "stopped"]
    assert process.signal == signal.SIGTERM
    assert not process.failed
    assert seen[:4] == ["start storage", "start timer", "start worker", "start all"]
    assert seen[4:] == [
        "ANNOUNCE",
        "INTAKE",
        "quiet worker",
        "stop timer",
        "STREAMS",
        "REQUESTS",
        "WORK",
        "stop worker",
        "SUPPORT",
        "STORAGE",
        "stop storage",
        "PROCESS",
    ]


async def test_a_start_that_fails_stops_what_had_started() -> None:
    seen: list[str] = []
    services: list[Component] = [Recorder("a", seen), Recorder("b", seen, fails=True), Recorder("c", seen)]
    process = made(services)
    statuses: list[str] = []
    process.on_status(statuses.append)
    with pytest.raises(ValueError, match="b"):
        await process.run()
    assert statuses == ["starting", "stopped"]
    assert seen == ["start a", "start b", "stop b", "stop a"]


async def test_a_signal_ends_a_start_that_hangs() -> None:
    class Slow(Recorder):
        async def start(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    seen: list[str] = []
    process = made([Recorder("a", seen), Slow("b", seen), Recorder("c", seen)])
    statuses: list[str] = []
    process.on_status(statuses.append)
    await process.run()
    assert statuses == ["starting", "stopping", "stopped"]
    assert seen == ["start a", "stop b", "stop a"]


async def test_a_service_that_ends_by_itself_stops_the_process() -> None:
    class Ending(Recorder):
        async def ended(self) -> None:
            raise ValueError("it broke")

    seen: list[str] = []
    process = made([Recorder("a", seen), Ending("b", seen)])
    statuses: list[str] = []
    process.on_status(statuses.append)
    with pytest.raises(ValueError, match="it broke"):
        await process.run()
    assert statuses == ["starting", "running", "stopping", "stopped"]
    assert seen == ["start a", "start b", "stop b", "stop a"]


async def test_the_process_ends_with_its_work() -> None:
    seen: list[str] = []

    async def work() -> None:
        seen.append("work")

    process = made([Recorder("a", seen)])
    await process.run(work)
    assert seen == ["start a", "work", "stop a"]
    assert process.signal is None


async def test_what_does_not_stop_is_cancelled_and_the_rest_still_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []
    services: list[Component] = [InPhase(StopPhase.STORAGE, Recorder("storage", seen)), Hanging("h", seen)]
    process = made(services, timeout=0.2)
    await stopped_by(process)
    assert process.failed
    assert seen[-1] == "stop storage"
    assert "Hanging failed to stop" in caplog.text


async def test_a_service_that_fails_to_stop_keeps_no_other_from_it() -> None:
    class Broken(Recorder):
        async def stop(self) -> None:
            raise ValueError("broken")

    seen: list[str] = []
    process = made([Recorder("a", seen), Broken("b", seen), Recorder("c", seen)])
    await stopped_by(process)
    assert process.failed
    assert seen == ["start a", "start b", "start c", "stop c", "stop a"]


async def test_a_second_signal_ends_the_process_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    codes: list[int] = []

    class Stubborn(Recorder):
        async def stop(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    process = made([Stubborn("s", seen)], codes=codes)
    process.before_forced_end(lambda: seen.append("secret removed"))
    await stopped_by(process, signal.SIGTERM)
    assert codes == [128 + signal.SIGINT]
    assert seen[-1] == "secret removed"
    assert "ended at once: by a second signal (SIGINT)" in capfd.readouterr().err


async def test_a_process_whose_loop_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    monkeypatch.setattr("perdure.runtime.process.OVERDUE_SECONDS", 0.01)
    ended = threading.Event()

    class Blocking(Recorder):
        async def stop(self) -> None:
            assert ended.wait(30)

    process = ServiceProcess([Blocking("b", [])], timeout=0.01, end_process=lambda code: ended.set())
    await stopped_by(process)


async def test_signals_are_handled_as_before_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    await stopped_by(made([]))
    assert signal.getsignal(signal.SIGTERM) is before


# --- reloading --------------------------------------------------------------------------------------------


async def test_a_reload_applies_what_it_can_and_says_what_needs_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "perdure.toml").write_text('[perdure]\nlog_level = "info"\nport = 1000\n')
    reloads = Reloads(load_settings({"host": "127.0.0.1"}))
    levels: list[str] = []

    async def level(settings: Settings) -> str | None:
        levels.append(settings.log_level)
        return f"the level is {settings.log_level}"

    async def files(settings: Settings) -> str | None:
        raise ValueError("line 3")

    reloads.add("log level", level, settings=["log_level"])
    reloads.add("workflow files", files)
    (tmp_path / "perdure.toml").write_text('[perdure]\nlog_level = "debug"\nport = 2000\nhost = "::1"\n')
    report = await reloads.run()
    assert report.changed == {"log level": "the level is debug"}
    assert report.failed == {"workflow files": "ValueError: line 3"}
    assert report.needs_restart == ["port"]
    assert (reloads.settings.log_level, reloads.settings.port) == ("debug", 1000)
    (tmp_path / "perdure.toml").write_text("[perdure]\nlog_level = 3\n")
    report = await reloads.run()
    assert "log_level" in report.failed["settings"]
    assert levels == ["debug"]


async def test_sighup_reloads(caplog: pytest.LogCaptureFixture) -> None:
    done = asyncio.Event()
    reloads = Reloads(Settings())

    async def reload(settings: Settings) -> str | None:
        done.set()
        return "read again"

    reloads.add("crons", reload)
    process = ServiceProcess([], timeout=30.0, reloads=reloads, end_process=lambda code: None)
    process.on_status(lambda status: os.kill(os.getpid(), signal.SIGHUP) if status == "running" else None)
    with caplog.at_level(logging.INFO):
        await process.run(done.wait)  # type: ignore[arg-type]
    assert process.signal is None


async def test_a_key_is_changed_but_not_given_up_by_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = "a-key-of-the-server-1", "a-key-of-the-server-2"
    (tmp_path / "key").write_text(first)
    monkeypatch.setenv("PERDURE_API_KEY_FILE", "key")
    async with InMemoryLightningStore() as store:
        app = App(store, load_settings())
        (tmp_path / "key").write_text(second)
        assert (await app.reloads.run()).changed == {"API key": "the key has changed"}
        assert (await app.admit(second, None)).actor == "key"
        with pytest.raises(Unauthorized):
            await app.admit(first, None)
        monkeypatch.delenv("PERDURE_API_KEY_FILE")
        assert "a restart is needed" in (await app.reloads.run()).failed["API key"]
        assert app.settings.api_key == second
        # With a token, callers still need one.
        await app.services.access.create_token("me", scopes=["admin"])
        assert (await app.reloads.run()).changed == {"API key": "the key was removed"}
        with pytest.raises(Unauthorized):
            await app.admit(None, None)
