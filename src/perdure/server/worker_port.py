"""The worker's HTTP port: health for probes, metrics for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hmac import compare_digest
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from perdure.kernel.codec import encode_wire
from perdure.kernel.config import Settings
from perdure.kernel.errors import StartRefused
from perdure.kernel.lifecycle import Step, StopPhase
from perdure.kernel.metrics import Metrics
from perdure.kernel.tally import Tally
from perdure.runtime.app import is_loopback
from perdure.server.native.metrics import CollectedFamilies
from perdure.server.native.tally_metrics import tally_families
from perdure.worker.worker import RunWorker

KEY_NEEDED = "an address open to other machines needs the key: set api_key on the worker, and send it"
READ_SECONDS = 10.0


class WorkerPort:
    """Answers `/healthz`, `/readyz` and `/metrics` of a worker.

    Probes need no key. Metrics need the API key, except on a loopback address or with `insecure_no_auth`.
    """

    def __init__(
        self, worker: RunWorker, settings: Settings, port: int, metrics: Metrics, tally: Tally | None = None
    ) -> None:
        self._worker = worker
        self._settings = settings
        self._port = port
        self._metrics = metrics
        self._tally = tally
        self._process = ProcessCollector(registry=CollectorRegistry())
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen. Raise StartRefused if the port is taken."""
        application = web.Application()
        answers: Mapping[str, Callable[[web.Request], web.Response]] = {
            "/healthz": self._live,
            "/readyz": self._ready,
            "/metrics": self._count,
        }
        for path, answer in answers.items():
            application.router.add_get(path, _handler(answer))
        runner = web.AppRunner(application, access_log=None, keepalive_timeout=READ_SECONDS)
        await runner.setup()
        host = self._settings.host
        try:
            await web.TCPSite(runner, host, self._port).start()
        except OSError as error:
            await runner.cleanup()
            raise StartRefused(
                f"metrics_port {self._port} cannot be opened on {host}: {error.strerror or error}"
            ) from error
        self._runner = runner
        port = next(iter(runner.addresses))[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def stop_steps(self) -> Mapping[StopPhase, Step]:
        """Answer probes until the runs have ended."""
        return {StopPhase.SUPPORT: self.stop}

    def _live(self, request: web.Request) -> web.Response:
        return _json({"status": "ok"})

    def _ready(self, request: web.Request) -> web.Response:
        ready = self._worker.is_ready
        return _json({"status": "ok" if ready else "unavailable"}, 200 if ready else 503)

    def _count(self, request: web.Request) -> web.Response:
        if not self._may_read(request):
            return _json({"detail": KEY_NEEDED, "code": "unauthorized"}, 401)
        body = generate_latest(CollectedFamilies(self._families()))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def _may_read(self, request: web.Request) -> bool:
        if is_loopback(self._settings.host) or self._settings.insecure_no_auth:
            return True
        key = self._settings.api_key
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        sent = request.headers.get("x-api-key", bearer)
        return key is not None and compare_digest(sent.encode(), key.encode())

    def _families(self) -> Iterator[Metric]:
        slots = GaugeMetricFamily("perdure_worker_slots", "Slots of the worker, by state.", labels=("state",))
        for state, count in self._worker.statistics.worker().items():
            slots.add_metric((state,), count)
        yield slots
        yield from self._metrics.registry.collect()
        yield from self._process.collect()
        if self._tally is not None:
            yield from tally_families(self._tally)


def _handler(answer: Callable[[web.Request], web.Response]) -> Any:
    async def handle(request: web.Request) -> web.Response:
        return answer(request)

    return handle


def _json(body: Mapping[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=encode_wire(body), status=status, content_type="application/json")
