"""Forms of spans: the names of attributes are stored once for many spans, and only the values with each span.

The names are a part like a resource, under the hash of their content. A form is used from its third span
on, so that rare names create no part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from perdure.kernel.codec import decode_json, encode_wire
from perdure.spans.plans import FigurePlan, build_plan, may_count
from perdure.spans.rows import PartRow, part_hash

JSON, OTLP, FORM = "json", "otlp", "form"
"""Formats of a span's body: a JSON object; OTLP bytes; or a list of attribute values. In the last format, the
names are the part `scope_hash`, and all other fields are in columns."""
USED_FROM = 3
MOST_FORMS = 2_000
"""Maximum number of forms that a store creates while it is open: their parts are never deleted."""
MOST_BYTES = 8_192
"""Maximum size of the names of a form."""
REMEMBERED = 4_096
_NAMES = "attributes"


class Form(msgspec.Struct, frozen=True):
    """The part of a form, and how its spans are counted."""

    part: PartRow
    counts: bool
    """Whether any of the attributes may be counted."""
    plan: FigurePlan | None
    """How spans are counted; None if `count_figures` does it."""


class Forms:
    """The forms of a store."""

    def __init__(self) -> None:
        self._forms: dict[tuple[str | None, ...], Form] = {}
        self._bodies: dict[str, bytes] = {}
        self._seen: dict[int, int] = {}
        """How often keys without a form were seen, by hash, because the names in a key may be large."""

    def of(self, attributes: Mapping[str, Any], kind: str | None = None) -> Form | None:
        """Return the form of a span with these attributes; None to store the span with the names."""
        key = (kind, *attributes)
        return self._forms.get(key) or self._count_key(key)

    def parts_of(self, hashes: Iterable[str | None]) -> dict[str, bytes]:
        """Return the bodies of those hashes that belong to forms."""
        bodies = self._bodies
        return {name: bodies[name] for name in set(hashes) if name in bodies}

    def _count_key(self, key: tuple[str | None, ...]) -> Form | None:
        seen, key_hash = self._seen, hash(key)
        times = seen.get(key_hash, 0) + 1
        if times == USED_FROM and len(self._forms) < MOST_FORMS:
            form = _new_form(key)
            if form is not None:
                # Add the part first, because another thread may use the form from the next line on.
                self._bodies[form.part.hash] = form.part.body
                self._forms[key] = form
                return form
        if len(seen) >= REMEMBERED:
            seen.clear()
        seen[key_hash] = times
        return None


def _new_form(key: tuple[str | None, ...]) -> Form | None:
    kind, *names = key
    if not all(isinstance(name, str) for name in names):
        return None
    # A name may be a member of a string enumeration.
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
    """A stored form: names of attributes, and fields with equal values."""

    names: list[str]
    fields: dict[str, Any]

    def attributes_of(self, body: bytes) -> dict[str, Any]:
        """Return the attributes of a span with this body; ValueError if the body does not fit the form."""
        return dict(zip(self.names, decode_json(body), strict=True))


def shared_in(part: bytes) -> SharedForm:
    """Decode the part of a form."""
    fields = decode_json(part)
    return SharedForm(fields.pop(_NAMES), fields)
