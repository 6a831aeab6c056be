"""The routes of the OTLP protocol."""

from __future__ import annotations

from perdure.kernel.errors import InvalidInput, NotSupported, TooLarge
from perdure.server.http.routes import Route
from perdure.server.otlp.decode import PROTOBUF_FORM
from perdure.server.otlp.http import OTLP, export_traces, refuse_signal

OTHER_SIGNALS = ("/v1/metrics", "/v1/logs", "/v1/development/profiles")

ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/traces",
        handler=export_traces,
        protocol=OTLP,
        scope="worker",
        body=bytes,
        body_form=PROTOBUF_FORM,
        answer=bytes,
        answer_form=PROTOBUF_FORM,
        errors=(InvalidInput, TooLarge),
        summary="Take a batch of spans, as protobuf or JSON",
        tag="otlp",
    ),
    *(
        Route(
            method="POST",
            path=path,
            handler=refuse_signal,
            protocol=OTLP,
            scope="worker",
            body_form=PROTOBUF_FORM,
            errors=(NotSupported,),
            status=501,
            summary="Not served: only traces are",
            tag="otlp",
        )
        for path in OTHER_SIGNALS
    ),
)
