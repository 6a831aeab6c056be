"""The house rules that a tool cannot be configured to check, read off the source itself."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

from perdure.kernel.storage import dialect
from perdure.kernel.storage.dialect import BulkInsert, BulkUpdate
from perdure.kernel.storage.filters import Clause, Listing
from perdure.rollouts.records import AttemptStatus, RolloutStatus, WorkerStatus

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "perdure"
LONGEST_FILE = 600

SQL_CALLS = {
    "execute",
    "one",
    "all",
    "statement",
    "Statement",
    "fetch",
    "fetchval",
    "fetchrow",
    "executemany",
}
SQL_WORDS = re.compile(r"\b(SELECT\s.+\sFROM|INSERT\s+INTO|UPDATE\s+\w+\s+SET|DELETE\s+FROM)\b", re.DOTALL)
STATUSES = {*get_args(RolloutStatus), *get_args(AttemptStatus), *get_args(WorkerStatus)}
STATUS_LITERAL = re.compile("'(" + "|".join(sorted(STATUSES)) + ")'")

CODE_IN_DATA = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}
CODE_CALLS = {"eval", "exec", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
BLIND = {"Exception", "BaseException"}

# Where each optional engine may be imported; everything else loads without it.
ENGINES = {
    "asyncpg": re.compile(r"kernel/storage/postgres\w*\.py|kernel/signals/postgres\.py|testing/.*\.py"),
    "opentelemetry": re.compile(
        r"spans/ot(el\w*|lp\w*)\.py|server/otlp/.*\.py|server/grpc/otlp\.py|testing/.*\.py"
    ),
    "google": re.compile(r"spans/otlp\w*\.py|server/(otlp|grpc)/.*\.py|memory/messages\.py"),
    "redis": re.compile(r"kernel/signals/redis\.py"),
    "langgraph": re.compile(r"langgraph/\w+\.py|integrations/langgraph/\w+\.py"),
    "langgraph_sdk": re.compile(r"langgraph/(custom_auth|factory)\.py"),
    "langchain_core": re.compile(r"langgraph/\w+\.py|integrations/langgraph/\w+\.py"),
    "grpc": re.compile(r"(server|client)/grpc/.*\.py"),
    "mcp": re.compile(r"integrations/mcp/server\.py"),
}
# One letter of each stands in brackets, so that this file does not contain what it looks for.
FOREIGN = re.compile(
    r"(?<![\w.~$}])/(?:[r]oot|[w]ork|[h]ome|[U]sers)/\w"
    r"|py[p]i\.org|python[h]osted\.org|registry\.[n]pmjs|--(?:extra-)?[i]ndex-url|--[f]ind-links"
)
CONFLICT = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
UNFINISHED = re.compile(r"\b([T]ODO|[F]IXME|[X]XX)\b")
STATEMENTS = {"statement", "BulkInsert", "BulkUpdate", "Listing"}
"""What makes a constant of SQL."""
STORAGE = PACKAGE / "kernel" / "storage"
ROW_MODULES = re.compile(r"(?:operations|queries|sql|model|rows|encoding|reading|service)(?:/.*)?\.py")
"""The modules of a domain that rows pass through."""

SKIPS = {"skip", "skipif", "xfail", "importorskip", "skipTest", "skipUnless"}


def _sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def _nodes(folder: Path = PACKAGE) -> Iterator[tuple[Path, ast.AST]]:
    for path in _sources(folder):
        for node in ast.walk(_tree(path)):
            yield path, node


def _calls() -> Iterator[tuple[Path, ast.Call]]:
    return ((path, node) for path, node in _nodes() if isinstance(node, ast.Call))


def _place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"


def _last_name(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _texts(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _is_formatted(node: ast.AST) -> bool:
    """Whether an expression writes values into a text: an f-string, `%` or `format`."""
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _is_text(node.left)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_formatted(node.left) or _is_formatted(node.right)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format"


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _imports(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


@cache
def _files_of_the_project() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        paths = [ROOT / name for name in listing.stdout.split("\0") if name]
        return [path for path in paths if path.is_file()]
    # Unpacked from an archive, there is no repository to ask.
    folders = (PACKAGE.parent, ROOT / "tests", ROOT / "bench", ROOT / "docs", ROOT / ".ci")
    found = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def test_no_sql_is_formatted_where_it_is_run() -> None:
    wrong = [
        _place(path, call)
        for path, call in _calls()
        if _last_name(call.func) in SQL_CALLS and any(map(_is_formatted, call.args))
    ]
    assert wrong == []


def test_sql_is_formatted_in_the_storage_package_alone() -> None:
    wrong = [
        _place(path, node)
        for path, node in _nodes()
        if _is_formatted(node)
        and PACKAGE / "kernel" / "storage" not in path.parents
        and SQL_WORDS.search(" ".join(_texts(node)))
    ]
    assert wrong == []


def test_no_status_stands_in_sql() -> None:
    wrong = [
        _place(path, call)
        for path, call in _calls()
        if _last_name(call.func) in {"statement", "Statement"}
        and any(STATUS_LITERAL.search(text) for argument in call.args for text in _texts(argument))
    ]
    assert wrong == []


def test_nothing_stored_is_ever_executed() -> None:
    imported = [
        _place(path, node)
        for path, node in _nodes()
        if any(name.partition(".")[0] in CODE_IN_DATA for name in _imports(node))
    ]
    called = [_place(path, call) for path, call in _calls() if ast.unparse(call.func) in CODE_CALLS]
    assert imported + called == []


def test_no_file_is_too_long_to_read() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in _sources(PACKAGE)}
    assert {path: length for path, length in lengths.items() if length > LONGEST_FILE} == {}


def test_nothing_is_caught_and_forgotten() -> None:
    handlers = [_place(path, node) for path, node in _nodes() if _swallows(node)]
    suppressed = [
        _place(path, call)
        for path, call in _calls()
        if _last_name(call.func) == "suppress" and BLIND & {ast.unparse(argument) for argument in call.args}
    ]
    assert handlers + suppressed == []


def _swallows(node: ast.AST) -> bool:
    if not isinstance(node, ast.ExceptHandler):
        return False
    if node.type is None:
        return True
    caught = {ast.unparse(each) for each in getattr(node.type, "elts", [node.type])}
    return bool(BLIND & caught) and all(map(_does_nothing, node.body))


def _does_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Pass | ast.Continue | ast.Break)


def test_each_engine_is_imported_in_its_own_module_alone() -> None:
    wrong = [
        f"{_place(path, node)} imports {name}"
        for path, node in _nodes()
        for name in _imports(node)
        if (allowed := ENGINES.get(name.partition(".")[0]))
        and not allowed.fullmatch(str(path.relative_to(PACKAGE)))
    ]
    assert wrong == []


def test_no_domain_imports_the_public_package() -> None:
    domains = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"cli", "testing"}
    wrong = [
        _place(path, node)
        for path, node in _nodes()
        if "perdure" in _imports(node) and path.relative_to(PACKAGE).parts[0] in domains
    ]
    assert wrong == []


def test_nothing_is_left_unfinished() -> None:
    folders = (PACKAGE, ROOT / "tests", ROOT / "bench")
    paths = [ROOT / "dev", *(path for folder in folders for path in _sources(folder))]
    assert [str(path) for path in paths if UNFINISHED.search(path.read_text())] == []


def test_no_test_is_skipped() -> None:
    wrong = [
        _place(path, node)
        for path, node in _nodes(ROOT / "tests")
        if isinstance(node, ast.Attribute) and node.attr in SKIPS
    ]
    assert wrong == []


def test_no_file_speaks_of_one_machine_or_one_registry() -> None:
    wrong = {}
    for path in _files_of_the_project():
        found = FOREIGN.search(path.read_text(encoding="utf-8", errors="replace"))
        if found:
            wrong[str(path.relative_to(ROOT))] = found.group()
    assert wrong == {}


def test_no_file_holds_what_a_merge_left_behind() -> None:
    texts = {path: path.read_text(encoding="utf-8", errors="replace") for path in _files_of_the_project()}
    assert [str(path.relative_to(ROOT)) for path, text in texts.items() if CONFLICT.search(text)] == []


def test_a_bare_import_loads_no_engine() -> None:
    program = (
        "import sys, time; started = time.perf_counter(); import perdure; "
        f"print(time.perf_counter() - started, sorted(set(sys.modules) & {set(ENGINES)}))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, loaded = answer.stdout.split(maxsplit=1)
    print(f"import perdure took {float(seconds) * 1000:.0f} ms")
    assert loaded.strip() == "[]"


# --- statements and rows ----------------------------------------------------------------------------------


def _sql_modules() -> list[Path]:
    """The modules outside the storage package that make statements."""
    return [path for path in _sources(PACKAGE) if STORAGE not in path.parents and _makes_sql(path)]


def _makes_sql(path: Path) -> bool:
    modules = {name for node in ast.walk(_tree(path)) for name in _imports(node)}
    return bool(modules & {"perdure.kernel.storage.dialect", "perdure.kernel.storage.filters"}) and any(
        map(_is_statement, ast.walk(_tree(path)))
    )


def _is_statement(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) in STATEMENTS


def _constants(path: Path) -> list[ast.Assign | ast.AnnAssign]:
    assigned = (node for node in _tree(path).body if isinstance(node, ast.Assign | ast.AnnAssign))
    return [node for node in assigned if _is_statement(node.value)]


def _domain(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def test_every_statement_is_a_constant() -> None:
    wrong = []
    for path in _sql_modules():
        known = [node.value for node in _constants(path)]
        made = [node for node in ast.walk(_tree(path)) if _is_statement(node)]
        wrong += [_place(path, node) for node in made if node not in known]
    assert wrong == []


def test_every_statement_has_its_name_in_its_text() -> None:
    wrong = []
    for path in [*_sql_modules(), STORAGE / "labels.py"]:
        module = importlib.import_module(".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts))
        prefix = path.parent.name if path.stem == "sql" else path.stem
        for node in _constants(path):
            (name,) = [
                each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id.isupper()
            ][:1]
            comment = f"/* {prefix}.{name} */"
            wrong += [
                f"{comment} is not in {text}" for text in _both(getattr(module, name)) if comment not in text
            ]
    assert wrong == []


def _both(made: Any) -> tuple[str, str]:
    """The texts of a statement for SQLite and for PostgreSQL."""
    if isinstance(made, Listing):
        made = made.count(Clause("TRUE", {}))
    if isinstance(made, BulkInsert | BulkUpdate):
        return made.sqlite, dialect.commented(made, made.postgres(made.columns, "rows"))
    return made.sqlite, made.postgres


def test_every_statement_has_a_sentence_above_it() -> None:
    wrong = []
    for path in _sql_modules():
        lines = path.read_text().splitlines()
        for node in _constants(path):
            above = lines[node.lineno - 2]
            if not above.startswith("# ") or above.startswith("# ---"):
                wrong.append(_place(path, node))
    assert wrong == []


def test_rows_are_read_by_name() -> None:
    wrong = [
        f"{_place(path, node)} {ast.unparse(node)}"
        for path, node in _nodes()
        if isinstance(node, ast.Subscript)
        and ROW_MODULES.fullmatch("/".join(path.relative_to(PACKAGE).parts[1:]))
        and _domain(path) not in {"kernel", "testing"}
        and _is_by_position(node)
    ]
    assert wrong == []


def _is_by_position(node: ast.Subscript) -> bool:
    """Whether something is read by a fixed place: `row[2]` or `row[1:]`, but not the last of a list."""
    if isinstance(node.slice, ast.Slice):
        bounds = [bound for bound in (node.slice.lower, node.slice.upper) if isinstance(bound, ast.Constant)]
        return bool(bounds) and re.search(r"\brow\b|\btuple\(", ast.unparse(node.value)) is not None
    return isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int)


def test_operations_neither_encode_nor_decode() -> None:
    wrong = [
        f"{_place(path, call)} {ast.unparse(call.func)}"
        for path, call in _calls()
        if re.search(r"(?:operations|queries)(?:/\w+)?\.py$", str(path))
        and re.search(r"\b(?:encode_json|decode_json|msgspec\.json)\b", ast.unparse(call.func))
    ]
    assert wrong == []


def test_the_map_names_every_package_and_files_that_exist() -> None:
    text = (ROOT / "AGENTS.md").read_text().partition("## How to add")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)/`", row[0])}
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert named == packages - {"testing"}
    missing = [
        file
        for row in rows
        for file in re.findall(r"`([\w/]+\.py)`", row[2])
        if not any((PACKAGE / name / file).exists() for name in [*re.findall(r"`(\w+)/`", row[0]), ""])
    ]
    assert missing == []
