"""The budget of the source: the size of each domain.

`python -m tests.support.budget` prints the size of the source and the budget. `--update` sets the budget to
the current size. `--grow DOMAIN "feature"` allows a domain its current size because of a feature that
CHANGELOG.md names in these words.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "perdure"
FILE = ROOT / "tests" / "budget.json"
TWINS = {"Perdure", "PerdureClient"}
"""Classes of `perdure.sync` with the names of their asynchronous twins."""
NOT_COUNTED = {"testing"}
SLACK_SHARE, SLACK_LINES = 0.01, 20
"""A domain may exceed its budget by 1% and 20 lines, so that a correction needs no entry."""

Functions = (ast.FunctionDef, ast.AsyncFunctionDef)
Figures = dict[str, int]


class Source:
    """The modules of the package, parsed once."""

    def __init__(self, package: Path = PACKAGE) -> None:
        self.package = package

    @cached_property
    def modules(self) -> dict[Path, ast.Module]:
        """Return the syntax trees of all counted files, by path in the package."""
        paths = sorted(path.relative_to(self.package) for path in self.package.rglob("*.py"))
        counted = [path for path in paths if path.parts[0] not in NOT_COUNTED]
        return {path: ast.parse((self.package / path).read_text()) for path in counted}

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all syntax nodes."""
        return [node for tree in self.modules.values() for node in ast.walk(tree)]

    def doubled_class_names(self) -> list[str]:
        """Return the names without an underscore of several classes."""
        classes = Counter(node.name for node in self.nodes if isinstance(node, ast.ClassDef))
        return sorted(name for name, n in classes.items() if n > 1 and name[0] != "_" and name not in TWINS)

    def page_classes(self) -> list[str]:
        """Return the classes of pages of lists."""
        names = [node.name for node in self.nodes if isinstance(node, ast.ClassDef)]
        return sorted(name for name in names if name.endswith("Page") or name in ("Part", "PaginatedResult"))

    def x_of_functions(self) -> list[str]:
        """Return the functions whose name ends with `_of`, which hides the verb."""
        return sorted(
            node.name for node in self.nodes if isinstance(node, Functions) and node.name.endswith("_of")
        )

    def called_once(self) -> list[str]:
        """Return the private functions that are named only once beside their definition."""
        used = Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in self.nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )
        private = [
            n.name for n in self.nodes if isinstance(n, Functions) and n.name[0] == "_" and n.name[1] != "_"
        ]
        return sorted(name for name in private if used[name] == 1)

    def product(self) -> Figures:
        """Return the figures of the whole package."""
        return {
            "statements": sum(isinstance(node, ast.stmt) for node in self.nodes),
            "files": len(self.modules),
            "doubled_class_names": len(self.doubled_class_names()),
            "page_classes": len(self.page_classes()),
            "x_of_functions": len(self.x_of_functions()),
            "functions_called_once": len(self.called_once()),
            "lines_per_operation": sum(self.lines().values()) // sum(self.operations().values()),
        }

    def lines(self) -> Figures:
        """Return the lines of each domain."""
        lines: Counter[str] = Counter()
        for path in self.modules:
            lines[path.parts[0]] += (self.package / path).read_text().count("\n")
        return {name: n for name, n in sorted(lines.items()) if not name.endswith(".py")}

    def operations(self) -> Figures:
        """Return the number of public operations of each domain: the methods with `@call`."""
        operations: Counter[str] = Counter()
        for path, tree in self.modules.items():
            operations[path.parts[0]] += sum(
                isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "call"
                for node in ast.walk(tree)
                if isinstance(node, Functions)
                for decorator in node.decorator_list
            )
        return {name: n for name, n in sorted(operations.items()) if n}


def read_budget() -> Any:
    """Return the committed budget."""
    return json.loads(FILE.read_text())


def allowed_lines(budget: Any, domain: str) -> int:
    """Return how many lines a domain may have: its base plus the lines of features."""
    grown = sum(growth["lines"] for growth in budget["grown"] if growth["domain"] == domain)
    allowed = int(budget["lines"].get(domain, 0) + grown)
    return allowed + int(allowed * SLACK_SHARE) + SLACK_LINES


def main(arguments: list[str]) -> int:
    """Print the figures, or write the budget."""
    source, budget = Source(), read_budget() if FILE.exists() else {"product": {}, "lines": {}, "grown": []}
    product, lines = source.product(), source.lines()
    match arguments:
        case []:
            for name, n in product.items():
                print(f"{name:24}{n:8,}  of {budget['product'].get(name, 0):8,}")
            for domain, n in lines.items():
                print(f"{domain:24}{n:8,}  of {allowed_lines(budget, domain):8,}")
            return 0
        case ["--update"]:
            budget = {"product": product, "lines": lines, "grown": []}
        case ["--grow", domain, feature]:
            if feature not in (ROOT / "CHANGELOG.md").read_text():
                print(
                    f"CHANGELOG.md does not name {feature!r}; describe the feature there first",
                    file=sys.stderr,
                )
                return 1
            more = lines[domain] - allowed_lines(budget | {"grown": []}, domain) + SLACK_LINES
            budget["grown"] = [each for each in budget["grown"] if each["domain"] != domain]
            budget["grown"].append({"domain": domain, "lines": max(more, 0), "feature": feature})
            budget["product"] = product
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    FILE.write_text(json.dumps(budget, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
