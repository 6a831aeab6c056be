"""Comparison of two attempts of a rollout, span by span, with the first difference."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from perdure.diagnostics.model import DiagnosedAttemptRow
from perdure.kernel.clock import to_seconds, to_seconds_or_none
from perdure.kernel.codec import encode_json
from perdure.kernel.record import Record
from perdure.rollouts.records import AttemptStatus
from perdure.spans.records import Span
from perdure.traces.outline import SpanOutline, SpanOutlineRow, outline_from

MOST_SPANS = 500
"""Number of spans compared per attempt, from the first span on."""
MOST_BYTES = 8 * 2**20
"""Limit of span contents that one comparison reads; further spans are compared by outline."""
MOST_DIFFERENCES = 20
MAX_VALUE = 200

PairKind = Literal["same", "changed", "left", "right"]

_VOLATILE: Final = re.compile(
    r"(^|[._])(id|ids|uuid|pid|port|seed|time|times|timestamp|duration|latency|thread|created|nano|ns|ms)$"
)
"""Names of attributes with values that differ in every execution."""


class ComparedAttempt(Record, kw_only=True):
    """One side of a comparison."""

    attempt_id: str
    sequence_id: int
    status: AttemptStatus
    worker_id: str | None
    start_time: float
    end_time: float | None
    spans: int
    """Number of its spans that are compared."""
    more: bool
    """True if the attempt has more spans."""


class SpanDifference(Record, kw_only=True):
    """A difference between two spans: `status`, `error` or an attribute; null if a side has none."""

    field: str
    left: str | None
    right: str | None


class Pair(Record, kw_only=True):
    """A span of the left attempt and the corresponding one of the right attempt."""

    kind: PairKind
    """`left` and `right` are spans of one attempt only."""
    left: SpanOutline | None = None
    right: SpanOutline | None = None
    differences: list[SpanDifference]


class Comparison(Record, kw_only=True):
    """Comparison of two attempts of a rollout."""

    rollout_id: str
    left: ComparedAttempt
    right: ComparedAttempt
    sentence: str
    first_divergence: int | None
    """Index of the first pair that differs, from 0; null if there is none."""
    same: int
    changed: int
    only_left: int
    only_right: int
    unread: int
    """Number of pairs compared by name and status only, because their contents are too large."""
    total: int
    """Number of pairs."""
    items: list[Pair]


class ComparisonSide(NamedTuple):
    """An attempt with the outlines of its first spans, in the order of their start."""

    attempt: DiagnosedAttemptRow
    spans: Sequence[SpanOutlineRow]
    more: bool


Spans = Mapping[tuple[str, str], Span]
"""Spans by attempt and id."""
Aligned = tuple[SpanOutlineRow | None, SpanOutlineRow | None]


def align(left: Sequence[SpanOutlineRow], right: Sequence[SpanOutlineRow]) -> list[Aligned]:
    """Align two lists by the longest common subsequence of names."""
    start, most = 0, min(len(left), len(right))
    while start < most and left[start].name == right[start].name:
        start += 1
    end = 0
    while end < most - start and left[-1 - end].name == right[-1 - end].name:
        end += 1
    pairs: list[Aligned] = list(zip(left[:start], right[:start], strict=True))
    pairs += _align(left[start : len(left) - end], right[start : len(right) - end])
    pairs += zip(left[len(left) - end :], right[len(right) - end :], strict=True)
    return pairs


def _align(left: Sequence[SpanOutlineRow], right: Sequence[SpanOutlineRow]) -> list[Aligned]:
    ours, theirs = [span.name for span in left], [span.name for span in right]
    best = [[0] * (len(theirs) + 1)]
    for name in reversed(ours):
        below, row, length = best[-1], [0] * (len(theirs) + 1), 0
        for place in range(len(theirs) - 1, -1, -1):
            length = below[place + 1] + 1 if theirs[place] == name else max(below[place], length)
            row[place] = length
        best.append(row)
    best.reverse()
    pairs: list[Aligned] = []
    i = j = 0
    while i < len(ours) or j < len(theirs):
        if i < len(ours) and j < len(theirs) and ours[i] == theirs[j]:
            pairs.append((left[i], right[j]))
            i, j = i + 1, j + 1
        elif j >= len(theirs) or (i < len(ours) and best[i + 1][j] >= best[i][j + 1]):
            pairs.append((left[i], None))
            i += 1
        else:
            pairs.append((None, right[j]))
            j += 1
    return pairs


def readable(pairs: Sequence[Aligned]) -> list[SpanOutlineRow]:
    """Return the spans with a counterpart, up to the limit of bytes."""
    spans: list[SpanOutlineRow] = []
    left_to_read = MOST_BYTES
    for one, other in pairs:
        if one is not None and other is not None:
            left_to_read -= one.size + other.size
            if left_to_read < 0:
                break
            spans += (one, other)
    return spans


def build_comparison(
    rollout_id: str,
    left: ComparisonSide,
    right: ComparisonSide,
    pairs: Sequence[Aligned],
    read: Spans,
    *,
    limit: int,
    offset: int,
) -> Comparison:
    """Build the comparison of two attempts."""
    compared = [_build_pair(one, other, read) for one, other in pairs]
    parting = next((place for place, pair in enumerate(compared) if pair.kind != "same"), None)
    counts = {
        kind: sum(1 for pair in compared if pair.kind == kind)
        for kind in ("same", "changed", "left", "right")
    }
    matched = counts["same"] + counts["changed"]
    return Comparison(
        rollout_id=rollout_id,
        left=_build_side(left),
        right=_build_side(right),
        sentence=_build_sentence(compared, parting),
        first_divergence=parting,
        same=counts["same"],
        changed=counts["changed"],
        only_left=counts["left"],
        only_right=counts["right"],
        unread=matched - len(read) // 2,
        total=len(compared),
        items=compared[offset : offset + limit],
    )


def _build_side(side: ComparisonSide) -> ComparedAttempt:
    attempt = side.attempt
    return ComparedAttempt.model_validate(
        {
            "attempt_id": attempt.id,
            "sequence_id": attempt.sequence_id,
            "status": attempt.status,
            "worker_id": attempt.worker_id,
            "start_time": to_seconds(attempt.start_time),
            "end_time": to_seconds_or_none(attempt.end_time),
            "spans": len(side.spans),
            "more": side.more,
        }
    )


def _build_pair(one: SpanOutlineRow | None, other: SpanOutlineRow | None, read: Spans) -> Pair:
    if one is None or other is None:
        assert one is not None or other is not None
        return Pair(
            kind="left" if other is None else "right",
            left=None if one is None else outline_from(one),
            right=None if other is None else outline_from(other),
            differences=[],
        )
    differences = _find_differences(one, other, read)
    return Pair(
        kind="changed" if differences else "same",
        left=outline_from(one),
        right=outline_from(other),
        differences=differences[:MOST_DIFFERENCES],
    )


def _find_differences(one: SpanOutlineRow, other: SpanOutlineRow, read: Spans) -> list[SpanDifference]:
    differences = []
    if one.status_code != other.status_code:
        differences.append(SpanDifference(field="status", left=one.status_code, right=other.status_code))
    ours, theirs = read.get((one.attempt_id, one.span_id)), read.get((other.attempt_id, other.span_id))
    if ours is None or theirs is None:
        return differences
    if (ours.status.description or "") != (theirs.status.description or ""):
        error, other_error = _format_text(ours.status.description), _format_text(theirs.status.description)
        differences.append(SpanDifference(field="error", left=error, right=other_error))
    for name in dict.fromkeys((*ours.attributes, *theirs.attributes)):
        mine, other_value = ours.attributes.get(name), theirs.attributes.get(name)
        if mine != other_value and not _VOLATILE.search(name):
            difference = SpanDifference(field=name, left=_format_text(mine), right=_format_text(other_value))
            differences.append(difference)
    return differences


def _format_text(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else encode_json(value)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 1] + "…"


def _build_sentence(pairs: Sequence[Pair], parting: int | None) -> str:
    if not pairs:
        return "Neither attempt has spans."
    if parting is None:
        return "Both attempts did the same."
    alike = "1 span" if parting == 1 else f"{parting} spans"
    pair = pairs[parting]
    span = pair.left or pair.right
    assert span is not None
    if pair.kind == "changed":
        first = pair.differences[0].field
        how = f"which differs in {first}"
    else:
        how = f"which only the {pair.kind} attempt has"
    sentence = "They part at the first span" if parting == 0 else f"They are alike for {alike}, and part at"
    return f"{sentence}{' ' if parting else ', '}“{span.name}”, {how}."
