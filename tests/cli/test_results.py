"""Fetching and printing of lists."""

import json
from typing import Any

import pytest

from perdure.cli.shell.options import CommandContext
from perdure.cli.shell.output import Output
from perdure.cli.shell.results import PAGE_SIZE, listing, pages, showing
from perdure.cli.shell.target import CommandTarget
from perdure.kernel.pages import PaginatedResult

EVERYTHING = range(2500)


class Source:
    """Numbers in pages, and the requested pages."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    async def fetch(self, limit: int, cursor: str | None) -> PaginatedResult[int]:
        begin = int(cursor or 0)
        self.asked.append((limit, begin))
        items = list(EVERYTHING[begin : begin + limit])
        after = str(begin + limit) if len(items) == limit else None
        return PaginatedResult(items=items, limit=limit, offset=0, total=len(EVERYTHING), next=after)


@pytest.mark.parametrize(
    ("limit", "asked"),
    [
        (1, [(1, 0)]),
        (PAGE_SIZE, [(PAGE_SIZE, 0)]),
        (1500, [(PAGE_SIZE, 0), (500, PAGE_SIZE)]),
        (10_000, [(PAGE_SIZE, 0), (PAGE_SIZE, PAGE_SIZE), (PAGE_SIZE, 2 * PAGE_SIZE)]),
    ],
)
async def test_a_long_list_is_fetched_in_pages(limit: int, asked: list[tuple[int, int]]) -> None:
    source = Source()
    found = await pages(source.fetch, limit)
    assert list(found) == list(EVERYTHING[:limit])
    assert found.total == len(EVERYTHING)
    assert source.asked == asked


async def test_fetching_stops_at_the_first_that_is_not_kept() -> None:
    source = Source()
    assert list(await pages(source.fetch, 10_000, lambda number: number < 7)) == list(range(7))
    assert source.asked == [(PAGE_SIZE, 0)]


def printed(
    capsys: pytest.CaptureFixture[str], found: list[int] | PaginatedResult[int], **options: Any
) -> str:
    context = CommandContext(CommandTarget(), Output(as_json=options.pop("as_json", False)))
    listing(context, found, ("n",), lambda n: (n,), noun="numbers", empty="No numbers yet.", **options)
    return capsys.readouterr().out


def test_a_list_is_a_table_with_a_hint_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    page = PaginatedResult(items=[1, 2], limit=2, offset=0, total=5)
    assert printed(capsys, page).split("\n", 3)[3] == "Showing 2 of 5 numbers. Use --limit to show more.\n"
    assert "Showing" not in printed(capsys, page, hint=False)
    assert json.loads(printed(capsys, page, as_json=True)) == {"items": [1, 2], "total": 5}
    assert json.loads(printed(capsys, [1, 2], as_json=True)) == {"items": [1, 2]}
    assert printed(capsys, []) == "No numbers yet.\n"
    assert printed(capsys, [], filtered=True) == "No numbers match.\n"


def test_one_thing_is_its_properties_and_a_table_below_them(capsys: pytest.CaptureFixture[str]) -> None:
    context = CommandContext(CommandTarget(), Output())
    showing(context, {}, [("name", "n"), ("missing", None)], ("a",), [(1,)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines == [["name", "n"], [], ["a"], ["1"]]
