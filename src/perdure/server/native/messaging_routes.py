"""Native routes of messaging sessions, with the handlers that wait for a turn or stream it."""

from __future__ import annotations

from functools import partial
from urllib.parse import quote

from starlette.responses import Response

from perdure.messaging.records import SentMessage, TurnEnd
from perdure.messaging.service import Messaging
from perdure.server.http.long_responses import MEDIA_TYPE as EVENT_STREAM
from perdure.server.http.long_responses import DelayedJson
from perdure.server.http.routes import Call, Route
from perdure.server.native.derive import ByHand, arguments_for, derive_routes, get_endpoint
from perdure.server.native.events import streaming
from perdure.service.endpoints import PREFIX


def _places(sent: SentMessage, rest: str) -> dict[str, str]:
    """Return the location headers of a turn, which is a run."""
    place = PREFIX + "/runs/" + quote(sent.turn_id, safe="")
    return {"Content-Location": place, "Location": place + rest}


async def ask(call: Call) -> Response:
    """Send a message and answer with the end of its turn; blank lines precede the answer."""
    messaging = call.services.messaging
    sent = await messaging.send(**arguments_for(get_endpoint(Messaging.ask), call))
    return DelayedJson(call, messaging.join_turn(sent), headers=_places(sent, "/wait"))


async def stream(call: Call) -> Response:
    """Send a message and stream the events of its turn."""
    services = call.services
    sent = await services.messaging.send(**arguments_for(get_endpoint(Messaging.stream), call))
    follow = partial(services.threads.follow_run, sent.turn_id, fresh=True)
    return await streaming(call, follow, headers=_places(sent, "/stream"))


MESSAGING_ROUTES: tuple[Route, ...] = derive_routes(
    Messaging,
    lambda call: call.services.messaging,
    {
        Messaging.ask: ByHand(ask, answer=TurnEnd),
        Messaging.stream: ByHand(stream, answer=str, answer_form=EVENT_STREAM),
    },
)
