"""Forms of spans: names of attributes that many spans have alike are stored once, and each span its values.

The names are a part as a resource is one, under the hash of their content. A form is used from the third span
on that has it, so that names which no other span has cost no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from perdure.kernel.codec import decode_json, encode_wire
from perdure.spans.plans import FigurePlan, build_plan, may_count
from perdure.spans.rows import PartRow, part_hash

JSON, OTLP, FORM = "json", "otlp", "form"
"""What the body of a span is: an object; bytes as OTLP has them; or a list of the values of its attributes,
whose names are the part `scope_hash`, while all else of the span is in columns."""
USED_FROM = 3
MOST_FORMS = 2_000
"""How many forms a store makes while it is open: their parts are never deleted."""
MOST_BYTES = 8_192
"""How large the names of a form may be."""
REMEMBERED = 4_096
_NAMES = "attributes"


class Form(msgspec.Struct, frozen=True):
    """What spans of a form share."""

    part: PartRow
    counts: bool
    """Whether one of the attributes may be counted."""
    plan: FigurePlan | None
    """How it is counted; None if that is left to `figures_of`."""


class Forms:
    """The forms that a store knows."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, ...], Form] = {}
        self._bodies: dict[str, bytes] = {}
        self._seen: dict[int, int] = {}
        """How often others were seen, by their hashes alone: names may be large."""

    def of(self, attributes: Mapping[str, Any], kind: str | None = None) -> Form | None:
        """The form of a span with these attributes; None if it is stored with their names."""
        key = (kind, *attributes)
        return self._known.get(key) or self._seen_again(key)

    def parts_of(self, hashes: Iterable[str | None]) -> dict[str, bytes]:
        """Those of the parts that are names, by their hashes."""
        bodies = self._bodies
        return {name: bodies[name] for name in set(hashes) if name in bodies}

    def _seen_again(self, key: tuple[str | None, ...]) -> Form | None:
        seen, known = self._seen, hash(key)
        times = seen.get(known, 0) + 1
        if times == USED_FROM and len(self._known) < MOST_FORMS:
            made = _new_form(key)
            if made is not None:
                # Its part first: another thread may use it from the next line on.
                self._bodies[made.part.hash] = made.part.body
                self._known[key] = made
                return made
        if len(seen) >= REMEMBERED:
            seen.clear()
        seen[known] = times
        return None


def _new_form(key: tuple[str | None, ...]) -> Form | None:
    kind, *names = key
    if not all(isinstance(name, str) for name in names):
        return None
    # A name may be a member of an enumeration, which is a string too.
    fields: dict[str, Any] = {_NAMES: list(map(str.__str__, names))}
    if kind is not None:
        fields["kind"] = kind
    try:
        body = encode_wire(fields)
    except UnicodeEncodeError:
        return None
    if len(body) > MOST_BYTES:
        return None
    return Form(PartRow(part_hash(body), body), may_count(fields[_NAMES]), build_plan(fields[_NAMES]))


class SharedForm(NamedTuple):
    """What a stored form says: the names of attributes, and fields that are alike too."""

    names: list[str]
    fields: dict[str, Any]

    def attributes_of(self, body: bytes) -> dict[str, Any]:
        """The attributes of a span with this body; ValueError if it is not one of the form."""
        return dict(zip(self.names, decode_json(body), strict=True))


def shared_in(part: bytes) -> SharedForm:
    """What the part of a form says."""
    fields = decode_json(part)
    return SharedForm(fields.pop(_NAMES), fields)
