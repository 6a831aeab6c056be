"""Prometheus metrics of a server."""

from __future__ import annotations

from platform import python_version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from perdure.kernel.version import VERSION


class Metrics:
    """The counters of one server. Gauges are read from the database; see `server/native/metrics`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        Info("perdure_build", "The version of perdure and Python.", registry=self.registry).info(
            {"version": VERSION, "python": python_version()}
        )
        self.requests = Counter(
            "perdure_http_requests",
            "Requests answered, by route and status.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "perdure_http_request_seconds",
            "How long requests took, by route.",
            ("method", "route"),
            registry=self.registry,
        )
        self.claims = Counter(
            "perdure_claims", "Claims by whether they found work.", ("result",), registry=self.registry
        )
        self.runs = Counter(
            "perdure_attempts_ended",
            "Attempts of runs that ended in a worker of this process, by result.",
            ("result",),
            registry=self.registry,
        )
        self.span_queue_size = Gauge(
            "perdure_span_queue_size",
            "Spans of runs in this process that wait to be stored.",
            registry=self.registry,
        )
        self.spans_ingested = Counter(
            "perdure_spans_ingested", "Spans stored, by protocol.", ("source",), registry=self.registry
        )
        self.spans_rejected = Counter(
            "perdure_spans_rejected", "Spans not stored, by reason.", ("reason",), registry=self.registry
        )

    def count_claim(self, claimed: int) -> None:
        """Count a claim by whether it returned work."""
        self.claims.labels("found" if claimed else "empty").inc()

    def count_spans(self, source: str, stored: int, sent: int) -> None:
        """Count stored spans, and sent spans that were stored before."""
        if stored:
            self.spans_ingested.labels(source).inc(stored)
        if sent > stored:
            self.spans_rejected.labels("known").inc(sent - stored)
