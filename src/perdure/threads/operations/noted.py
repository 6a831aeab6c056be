"""The names of the writes to threads and runs in the audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.rollouts.operations.noted import NOT_AUDITED, NOTES, Note, first_of_each
from perdure.threads.operations import (
    assign,
    cancel,
    create,
    execute,
    finish,
    graphs,
    lifetimes,
    remove,
    states,
)
from perdure.threads.work import Lease


def _claim(held: Lease) -> str:
    return held.run_id + "/" + held.attempt_id


def _assigned(args: Sequence[Any], answer: Any) -> list[str]:
    return [run_id + "/" + attempt_id for share in answer for run_id, attempt_id, _ in share]


def _held(args: Sequence[Any], answer: Any) -> list[str]:
    """The claims of the calls that were not refused."""
    calls = zip(args[0], answer, strict=True)
    return [_claim(call.held) for call, said in calls if not isinstance(said, Exception)]


def _given_back(args: Sequence[Any], answer: Any) -> list[str]:
    calls = zip(args[0], answer, strict=True)
    return [_claim(held) for held, said in calls if not isinstance(said, Exception)]


def _itself(args: Sequence[Any], answer: Any) -> list[str]:
    return [answer]


def _all(args: Sequence[Any], answer: Any) -> list[str]:
    return list(answer)


def _thread(args: Sequence[Any], answer: Any) -> list[str]:
    return [args[0]]


NOTES.update(
    {
        create.create_runs: Note("create_run", first_of_each),
        create.create_all: Note("create_run", first_of_each),
        cancel.cancel_runs: Note("cancel_run", first_of_each),
        remove.delete_run: Note("delete_run", _itself),
        remove.delete_thread: Note("delete_thread", _itself),
        lifetimes.prune: Note("prune_thread", _all),
        states.create_threads: Note("create_thread", first_of_each),
        states.update_thread: Note("update_thread", _itself),
        states.copy_thread: Note("copy_thread", _itself),
        states.update_state: Note("update_state", _thread),
        states.update_graph_state: Note("update_state", _itself),
        assign.claim_runs: Note("claim_run", _assigned),
        execute.save: Note("save_checkpoint", _held),
        execute.keep: Note("keep_step", _held),
        finish.finish: Note("finish_run", _held),
        finish.hand_back: Note("release_run", _given_back),
    }
)

NOT_AUDITED.update({execute.renew, execute.tell, graphs.record})
