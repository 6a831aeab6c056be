"""OTLP over HTTP: one batch a request, answered in the request's form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from perdure.kernel.errors import InvalidInput, PerdureError, UnknownRoute
from perdure.server.http.problems import build_headers
from perdure.server.http.routes import Call
from perdure.server.otlp.answers import encode_outcome, encode_status, http_status
from perdure.server.otlp.decode import PROTOBUF_FORM, Form, decode, parse_form
from perdure.server.otlp.ingest import IngestOutcome, ingest

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
