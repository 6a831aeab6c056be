"""The house rules that a tool cannot be configured to check, read off the source itself."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

from perdure.rollouts.records import AttemptStatus, RolloutStatus, WorkerStatus

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "perdure"
LONGEST_FILE = 420

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
    "opentelemetry": re.compile(r"rollouts/ot(el|el_tracer|lp\w*)\.py|server/otlp/.*\.py|testing/.*\.py"),
    "google": re.compile(r"rollouts/otlp(_reader)?\.py|server/otlp/.*\.py"),
    "redis": re.compile(r"kernel/signals/redis\.py"),
    "langgraph": re.compile(r"langgraph/\w+\.py|integrations/langgraph/\w+\.py"),
    "langgraph_sdk": re.compile(r"langgraph/(custom_auth|factory)\.py"),
    "langchain_core": re.compile(r"langgraph/\w+\.py|integrations/langgraph/\w+\.py"),
    "grpc": re.compile(r"server/grpc/.*\.py|server/otlp/grpc_server\.py"),
}
# One letter of each stands in brackets, so that this file does not contain what it looks for.
FOREIGN = re.compile(
    r"(?<![\w.~$}])/(?:[r]oot|[w]ork|[h]ome|[U]sers)/\w"
    r"|py[p]i\.org|python[h]osted\.org|registry\.[n]pmjs|--(?:extra-)?[i]ndex-url|--[f]ind-links"
)
UNFINISHED = re.compile(r"\b([T]ODO|[F]IXME|[X]XX)\b")
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


def test_a_bare_import_loads_no_engine() -> None:
    program = (
        "import sys, time; started = time.perf_counter(); import perdure; "
        f"print(time.perf_counter() - started, sorted(set(sys.modules) & {set(ENGINES)}))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    seconds, loaded = answer.stdout.split(maxsplit=1)
    print(f"import perdure took {float(seconds) * 1000:.0f} ms")
    assert loaded.strip() == "[]"
