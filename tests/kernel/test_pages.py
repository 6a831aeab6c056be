"""Requests of lists: cursors, the row that shows that there is more, and what `Part` has of a sequence."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import pytest

from perdure.kernel.errors import InvalidInput
from perdure.kernel.pages import Keyset, PaginatedResult, Part


class Place(NamedTuple):
    at: int
    id: str


ROWS = [(n // 2, f"n{n}") for n in range(6)]
LIST = Keyset[tuple[int, str], Place]("things", Place(-1, ""), lambda row: row)


def read_part(limit: int, cursor: str | None = None) -> Part[str]:
    request = LIST.open_part(limit, cursor)
    rows = [row for row in ROWS if row > request.place][: request.rows]
    return request.build_part(rows, lambda row: row[1])


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 7])
def test_parts_by_their_cursors_are_the_whole_list(limit: int) -> None:
    part = read_part(limit)
    walked, parts = part.items, 1
    while part.next is not None:
        part = read_part(limit, part.next)
        walked, parts = walked + part.items, parts + 1
    assert walked == [id for _, id in ROWS]
    # No empty part follows a last part that is full.
    assert parts == -(-len(ROWS) // limit)


def test_a_place_has_the_type_of_the_first_one() -> None:
    assert LIST.open_part(3, None).place == Place(-1, "")
    place = LIST.open_part(3, LIST.write((2, "n4"))).place
    assert isinstance(place, Place)
    assert place == Place(2, "n4")
    assert Keyset[Any, Any]("things", None, tuple, [str]).read(None) is None


def test_a_part_of_nothing_has_no_next() -> None:
    assert read_part(0) == Part(items=[], next=None)


@pytest.mark.parametrize(
    ("limit", "offset", "cursor"),
    [(-1, 0, None), (1001, 0, None), (True, 0, None), (1, 1, LIST.write((0, "n0"))), (1, 0, ""), (1, 0, "x")],
)
def test_a_wrong_request_is_refused(limit: Any, offset: int, cursor: str | None) -> None:
    with pytest.raises(InvalidInput):
        LIST.open_part(limit, cursor, offset)
    with pytest.raises(InvalidInput):
        LIST.open_page(limit, offset, cursor)


def test_a_cursor_of_another_list_is_refused() -> None:
    other = Keyset[tuple[int, str], Place]("others", Place(-1, ""), lambda row: row)
    with pytest.raises(InvalidInput, match="invalid cursor"):
        LIST.open_part(1, other.write((0, "n0")))


def test_a_page_that_is_full_has_a_cursor() -> None:
    request = LIST.open_page(2, 0, None)
    page: PaginatedResult[str] = request.build_page(ROWS[:2], (id for _, id in ROWS[:2]), 6)
    assert (page.items, page.total, page.next) == (["n0", "n1"], 6, LIST.write(ROWS[1]))
    assert request.build_page(ROWS[:1], ["n0"], 1).next is None


def test_a_part_is_a_sequence_of_its_items() -> None:
    part = read_part(3)
    assert (len(part), part[0], part[-2:], [*part]) == (3, "n0", ["n1", "n2"], ["n0", "n1", "n2"])
    assert "n1" in part
    assert not read_part(0)
    assert msgspec.json.decode(msgspec.json.encode(part)) == {"items": part.items, "next": part.next}
