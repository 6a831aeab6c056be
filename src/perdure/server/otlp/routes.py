"""The routes of the OTLP protocol."""

from __future__ import annotations

from perdure.kernel.errors import InvalidInput, TooLarge, UnknownRoute
from perdure.server.http.routes import Route
from perdure.server.otlp.decode import PROTOBUF_FORM
from perdure.server.otlp.http import OTLP, discard_signal, export_traces

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
            handler=discard_signal,
            protocol=OTLP,
            scope="worker",
            body=bytes,
            body_form=PROTOBUF_FORM,
            answer=bytes,
            answer_form=PROTOBUF_FORM,
            errors=(InvalidInput, TooLarge, UnknownRoute),
            summary="Accept and discard a batch where the settings say so; 404 elsewhere",
            tag="otlp",
        )
        for path in OTHER_SIGNALS
    ),
)
