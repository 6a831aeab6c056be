"""The native routes of remote workers."""

from __future__ import annotations

from perdure.access.endpoints import PREFIX
from perdure.client import native_wire as wire
from perdure.client import work_wire
from perdure.kernel.errors import Fenced, NotFound, NotSupported
from perdure.server.native import run_work_handlers as handlers
from perdure.server.native.declare import declaring
from perdure.threads.records import Checkpoint

_work = declaring("work", PREFIX + "/work")

MAX_BODY = 32 << 20
"""What agents write may be large."""

RUN_WORK_ROUTES = (
    _work(
        "POST",
        "/register",
        handlers.register,
        "worker",
        "Say which agents a worker can run",
        body=work_wire.Registration,
        answer=wire.Ok,
        errors=(NotSupported,),
    ),
    _work(
        "POST",
        "/claim",
        handlers.claim,
        "worker",
        "Claim runs, as soon as there is one; a repeated Idempotency-Key gives the same ones",
        body=work_wire.Claim,
        answer=work_wire.Assignments,
        errors=(NotSupported,),
        ends_with_caller=True,
    ),
    _work(
        "POST",
        "/renew",
        handlers.renew,
        "worker",
        "Keep leases, and hear what is to become of each run",
        body=work_wire.Renewal,
        answer=work_wire.Verdicts,
        errors=(NotSupported,),
    ),
    _work(
        "POST",
        "/controls",
        handlers.controls,
        "worker",
        "Wait for runs that are not to go on",
        body=work_wire.Watch,
        answer=work_wire.Controls,
        errors=(NotSupported,),
        ends_with_caller=True,
    ),
    _work(
        "POST",
        "/events",
        handlers.append,
        "worker",
        "Add events to the streams of runs; each item is told of by itself",
        body=work_wire.Appends,
        max_body=MAX_BODY,
        answer=work_wire.Appended,
        errors=(NotSupported,),
    ),
    _work(
        "POST",
        "/checkpoints",
        handlers.save,
        "worker",
        "Keep a state of a run's thread",
        body=work_wire.SavedState,
        max_body=MAX_BODY,
        answer=Checkpoint,
        errors=(NotFound, Fenced, NotSupported),
    ),
    _work(
        "POST",
        "/graphs",
        handlers.record,
        "worker",
        "Keep what the graph of a run has done, with events",
        body=work_wire.Steps,
        max_body=MAX_BODY,
        answer=work_wire.RecordSteps,
        errors=(NotFound, Fenced, NotSupported),
    ),
    _work(
        "POST",
        "/graphs/find",
        handlers.find_graphs,
        "worker",
        "Read checkpoints of the graphs of a run's thread",
        body=work_wire.GraphSearch,
        answer=work_wire.FoundGraphs,
        errors=(NotSupported,),
    ),
    _work(
        "POST",
        "/graphs/deltas",
        handlers.find_deltas,
        "worker",
        "Read the channels of a graph that are kept as changes",
        body=work_wire.DeltaSearch,
        answer=work_wire.FoundDeltas,
        errors=(NotSupported,),
    ),
    _work(
        "POST",
        "/steps",
        handlers.keep,
        "worker",
        "Keep the result of a step",
        body=work_wire.KeptStep,
        max_body=MAX_BODY,
        answer=wire.Ok,
        errors=(NotFound, Fenced, NotSupported),
    ),
    _work(
        "POST",
        "/finish",
        handlers.finish,
        "worker",
        "End attempts; each is told of by itself, and doing it twice does it once",
        body=work_wire.Endings,
        max_body=MAX_BODY,
        answer=work_wire.Results,
        errors=(NotSupported,),
    ),
    _work(
        "POST",
        "/release",
        handlers.release,
        "worker",
        "Give runs back, uncharged and at their old place",
        body=work_wire.Release,
        answer=wire.Ok,
        errors=(NotSupported,),
    ),
)
