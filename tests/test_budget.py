"""The source keeps to its committed budget; see tests/support/budget.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.budget import ROOT, Source, allowed_lines, read_budget

SOURCE = Source()
MODULE = """
class Row:
    pass


def name_of(row):
    return _name(row)


def _name(row):
    return 1
"""
HELP = "run `python -m tests.support.budget` to see the figures"


@pytest.mark.parametrize("figure", sorted(read_budget()["product"]))
def test_the_product_does_not_grow_beyond_its_budget(figure: str) -> None:
    allowed = read_budget()["product"][figure]
    assert SOURCE.product()[figure] <= allowed * 1.01, f"more {figure} than {allowed}; {HELP}"


def test_no_domain_grows_without_a_feature() -> None:
    budget = read_budget()
    over = {
        domain: f"{lines} lines, {allowed_lines(budget, domain)} allowed"
        for domain, lines in SOURCE.lines().items()
        if lines > allowed_lines(budget, domain)
    }
    assert over == {}, f'name the feature in CHANGELOG.md, then allow it with --grow DOMAIN "feature"; {HELP}'


def test_growth_is_named_in_the_changelog() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert [growth for growth in read_budget()["grown"] if growth["feature"] not in changelog] == []


def test_class_names_are_unique() -> None:
    assert SOURCE.doubled_class_names() == []


def test_a_source_that_grows_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "domain").mkdir()
    module = tmp_path / "domain" / "model.py"
    module.write_text(MODULE)
    (tmp_path / "domain" / "rows.py").write_text("class Row:\n    pass\n\n\nclass RowPage:\n    pass\n")
    source = Source(tmp_path)
    assert source.doubled_class_names() == ["Row"]
    assert source.page_classes() == ["RowPage"]
    assert source.x_of_functions() == ["name_of"]
    assert source.called_once() == ["_name"]
    assert source.lines() == {"domain": 17}
