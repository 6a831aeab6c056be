"""The routes of OTLP over HTTP: one batch a request, answered in the request's form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from perdure.kernel.errors import InvalidInput, PerdureError, TooLarge, UnknownRoute
from perdure.server.http.bodies import build_headers
from perdure.server.http.routes import Call, Route
from perdure.server.otlp.ingest import IngestOutcome, ingest
from perdure.server.otlp.messages import (
    PROTOBUF_FORM,
    Form,
    decode,
    encode_outcome,
    encode_status,
    http_status,
    parse_form,
)

# --- one batch --------------------------------------------------------------------------------------------


SOURCE = "otlp_http"


class OtlpProtocol:
    """Refuses a request with a google.rpc.Status."""

    name = "otlp"

    def refuse(self, error: PerdureError, request_id: str, request: Request) -> Response:
        """Encode the error as a google.rpc.Status in the request's form; protobuf if the form is unknown."""
        try:
            form: Form = parse_form(request.headers.get("content-type"))
        except InvalidInput:
            form = PROTOBUF_FORM
        body = encode_status(error, request_id, form)
        return Response(body, http_status(error), build_headers(error), form)


async def export_traces(call: Call) -> Response:
    """Store the spans of a batch. The response counts rejected spans."""
    form = parse_form(call.request.headers.get("content-type"))
    outcome = await ingest(call.app, call.caller, decode(call.body, form), SOURCE)
    return Response(encode_outcome(outcome, form), media_type=form)


async def discard_signal(call: Call) -> Response:
    """Discard a batch of logs, metrics or profiles if the settings allow it; otherwise answer 404."""
    if not call.app.settings.discard_other_signals:
        raise UnknownRoute(
            f"{call.request.url.path} is not served here, only traces are; with the setting "
            "discard_other_signals, other signals are accepted and discarded"
        )
    form = parse_form(call.request.headers.get("content-type"))
    return Response(encode_outcome(IngestOutcome(), form), media_type=form)


OTLP = OtlpProtocol()


# --- routes -----------------------------------------------------------------------------------------------


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
