"""Write generated content: charts, references and the OpenAPI document (docs/regenerate.py)."""

import json
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from docs import benchmarks, journeys, stubs
from docs.references import PAGES

from perdure.diagnostics.machines import MACHINES
from perdure.kernel import errors
from perdure.server.http.openapi import document
from perdure.server.table import ROUTES

OPENAPI = DOCS / "openapi.json"


def error_classes() -> list[type[errors.PerdureError]]:
    """List every error, in the order of the source."""
    return [
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.PerdureError)
    ]


def error_table() -> str:
    """Format the errors as a table."""
    rows = ["| code | class | HTTP | meaning |", "|---|---|---|---|"]
    for each in error_classes():
        meaning = (each.__doc__ or "").strip().partition("\n")[0]
        rows.append(f"| `{each.code}` | `{each.__name__}` | {each.http_status} | {meaning} |")
    return "\n".join(rows) + "\n"


def blocks() -> dict[str, dict[str, str]]:
    """Generate the text between the markers of each page."""
    charts = {f"machine {each.name}": f"```mermaid\n{each.chart()}```\n" for each in MACHINES}
    return {
        "state-machines.md": charts,
        "errors.md": {"errors": error_table()},
        "benchmarks.md": benchmarks.blocks(),
        "architecture.md": journeys.blocks(),
    }


def filled(page: str, name: str, text: str) -> str:
    """Return the page with `text` between the markers of `name`."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    head, rest = page.split(begin, 1)
    return head + begin + text + end + rest.split(end, 1)[1]


def page_as_generated(name: str) -> str:
    """Return a generated page, or a page with its generated parts up to date."""
    if name in PAGES:
        return PAGES[name]()
    page = (DOCS / name).read_text(encoding="utf-8")
    for block, text in blocks()[name].items():
        page = filled(page, block, text)
    return page


def openapi() -> str:
    """Generate the OpenAPI document of the native API, one line per value, for readable diffs."""
    found = document(route for route in ROUTES if route.protocol.name == "native")
    # A release changes only the version.
    found["info"].pop("version")
    return json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OPENAPI.write_text(openapi(), encoding="utf-8")
    (DOCS / "reference").mkdir(exist_ok=True)
    for name in (*blocks(), *PAGES):
        (DOCS / name).write_text(page_as_generated(name), encoding="utf-8")
    for name, plot in benchmarks.plots().items():
        (DOCS / name).write_text(plot, encoding="utf-8")
    (DOCS / journeys.DRAWING).write_text(journeys.draw(), encoding="utf-8")
    for path, text in stubs.files().items():
        path.write_text(text(), encoding="utf-8")
