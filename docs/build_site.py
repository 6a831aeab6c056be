"""Build the guide: static pages with search, and files for coding agents. ./dev docs runs it.

The pages of docs/ are copied into a temporary folder together with the repository files that they link to,
and the generator converts them to HTML. docs/index.md is the table of contents: its headings and lists define
the navigation and llms.txt.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import posixpath
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
INDEX = DOCS / "index.md"
TARGET = ROOT / "src" / "perdure" / "web" / "guide"
OUTSIDE = "project"
"""Folder of the guide for repository files outside docs/."""
MANIFEST = "manifest.json"
POLL_SECONDS = 0.5
STYLE = "guide.css"
IMAGES = "images"
QUIET = re.compile(rf"{OUTSIDE}/|adr/0")
BEHIND = "---\nsearch:\n  boost: 0.2\n---\n"
"""Front matter that ranks decisions, changes and sources below pages for users in a search."""

FENCE = re.compile(r"^(```+).*?^\1\s*$", re.MULTILINE | re.DOTALL)
MERMAID = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRANSITION = re.compile(r"^\s*(\S+) --> (\S+?)(?:: (.+))?$")
LINK = re.compile(r"(\[[^\]]*\]\()([^)\s]+)(\))")
ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<link>[^)]+)\)(?:: (?P<about>.+))?$")
INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
FOREIGN = re.compile(r"^(?:[a-z]+:|#|//)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml"}
UNUSED = ("404.html", "sitemap.xml", "sitemap.xml.gz", "assets/javascripts/lunr")
"""Output of the generator for other hosts and other languages than English."""


class NotBuilt(Exception):
    """Raised if the generator refused the pages; its message names them."""


class Entry(NamedTuple):
    """A page in the table of contents."""

    title: str
    page: str
    """Path of the page from the root of the repository."""
    about: str


class Section(NamedTuple):
    """A task in the table of contents, with its pages."""

    title: str
    entries: list[Entry]


def contents(text: str | None = None) -> list[Section]:
    """Parse the table of contents in docs/index.md: a heading for each task, and a list of pages below."""
    sections: list[Section] = []
    for line in (INDEX.read_text(encoding="utf-8") if text is None else text).splitlines():
        if line.startswith("## "):
            sections.append(Section(line[3:].strip(), []))
        elif sections and (found := ENTRY.match(line)):
            page = posixpath.normpath(posixpath.join("docs", found["link"]))
            sections[-1].entries.append(Entry(found["title"], page, found["about"] or ""))
    return [section for section in sections if section.entries]


def place_of(path: str) -> str:
    """Return the path in the guide of a repository file."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    name = f"{OUTSIDE}/{path}"
    if (ROOT / path).is_dir():
        return f"{name}/index.md"
    return name if name.endswith(".md") else f"{name}.md"


# --- pages ------------------------------------------------------------------------------------------------


def staged() -> dict[str, str]:
    """Return every page of the guide as Markdown, by path: those of docs/ and the files that they link to."""
    tracked = _tracked()
    waiting = [path.relative_to(ROOT).as_posix() for path in sorted(DOCS.rglob("*.md"))]
    seen, pages = set(waiting), {}
    while waiting:
        path = waiting.pop()
        links: set[str] = set()
        pages[place_of(path)] = _markdown(path, links, tracked)
        waiting += sorted(links - seen)
        seen |= links
    return pages


def _tracked() -> frozenset[str]:
    """Return the files that a page may show. Files that Git ignores, such as secrets, are left out."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        return frozenset(filter(None, listing.stdout.split("\0")))
    # An unpacked archive has no repository, and no ignored files.
    folders = (ROOT / name for name in ("deploy", "examples", "src", "tests"))
    found = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
    return frozenset(path.relative_to(ROOT).as_posix() for path in found if path.is_file())


def _markdown(path: str, links: set[str], tracked: frozenset[str]) -> str:
    """Convert a repository file to a page; `links` collects the files outside docs/ that it links to."""
    source = ROOT / path
    if source.is_dir():
        inside = sorted(name for name in tracked if name.startswith(path + "/"))
        lines = "".join(f"- [{name}]({posixpath.relpath(name, path)})\n" for name in inside)
        return _with_links(f"# {path}\n\n{lines}", f"{path}/index.md", links, tracked)
    text = source.read_text(encoding="utf-8")
    if source.suffix != ".md":
        return f"# {path}\n\n````{LANGUAGES.get(source.suffix, 'text')}\n{text.rstrip()}\n````\n"
    charts = MERMAID.sub(lambda found: _transitions(found[1]), text)
    return _with_links(charts, path, links, tracked)


def _transitions(chart: str) -> str:
    """Convert a chart to a table, because a library for charts is larger than all pages."""
    rows = ["| from | on | to |", "|---|---|---|"]
    for line in chart.splitlines():
        if found := TRANSITION.match(line):
            start, end, event = found.groups()
            if end != "[*]":
                names = {"[*]": "*new*", "any": "*any status*"}
                rows.append(f"| {names.get(start, f'`{start}`')} | {event or ''} | `{end}` |")
    return "\n".join(rows)


def _with_links(text: str, path: str, links: set[str], tracked: frozenset[str]) -> str:
    """Return the page with links to the paths of files in the guide."""
    here = place_of(path) if (ROOT / path).exists() else f"{OUTSIDE}/{path}"

    def replaced(found: re.Match[str]) -> str:
        if FOREIGN.match(found[2]):
            return found[0]
        name, _, anchor = found[2].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(name)))
        is_folder = any(each.startswith(target + "/") for each in tracked)
        if not target.startswith("docs/") and (target in tracked or is_folder):
            links.add(target)
        elif not (ROOT / target).exists():
            return found[0]
        place = posixpath.relpath(place_of(target), posixpath.dirname(here) or ".")
        return found[1] + place + ("#" + anchor if anchor else "") + found[3]

    return "".join(part if is_code else LINK.sub(replaced, part) for part, is_code in _without_fences(text))


def _without_fences(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a page, and whether each is a block of code."""
    end = 0
    for found in FENCE.finditer(text):
        yield text[end : found.start()], False
        yield found[0], True
        end = found.end()
    yield text[end:], False


# --- for coding agents ------------------------------------------------------------------------------------


def llms_text(sections: list[Section]) -> str:
    """Format the table of contents as llms.txt; its links lead to the pages as Markdown."""
    head, _, rest = INDEX.read_text(encoding="utf-8").partition("\n\n")
    lines = [head, "", "> " + rest.partition("\n\n")[0].replace("\n", " "), ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        lines += [f"- [{each.title}]({place_of(each.page)}): {each.about}" for each in section.entries]
        lines.append("")
    return "\n".join(lines)


def full_text(sections: list[Section], pages: dict[str, str]) -> str:
    """Join all pages in one file, in the order of the table of contents; unlisted pages follow."""
    named = [place_of(entry.page) for section in sections for entry in section.entries]
    others = sorted(place for place in pages if place not in named and not place.startswith(OUTSIDE + "/"))
    return "\n\n".join(f"<!-- {place} -->\n\n{pages[place].strip()}" for place in [*named, *others]) + "\n"


# --- building ---------------------------------------------------------------------------------------------


def stage(folder: Path, site: Path) -> dict[str, str]:
    """Write the pages and the generator's configuration. Unchanged pages are not written."""
    pages = staged()
    for place, text in pages.items():
        _write(folder / "docs" / place, (BEHIND if QUIET.match(place) else "") + text)
    shutil.copytree(DOCS / IMAGES, folder / "docs" / IMAGES, dirs_exist_ok=True)
    _write(folder / "docs" / STYLE, (DOCS / STYLE).read_text(encoding="utf-8"))
    for path in (folder / "docs").rglob("*.md"):
        if path.relative_to(folder / "docs").as_posix() not in pages:
            path.unlink()
    settings = (DOCS / "mkdocs.yml").read_text(encoding="utf-8")
    navigation = [
        {section.title: [{each.title.replace("`", ""): place_of(each.page)} for each in section.entries]}
        for section in contents()
    ]
    added = {
        "docs_dir": str(folder / "docs"),
        "site_dir": str(site),
        "not_in_nav": f"/adr/0*.md\n/{OUTSIDE}/",
        "nav": [{"Contents": "index.md"}, *navigation],
    }
    # JSON is YAML too.
    lines = (f"{name}: {json.dumps(value)}\n" for name, value in added.items())
    _write(folder / "mkdocs.yml", settings + "\n" + "".join(lines))
    return pages


def _write(path: Path, text: str) -> None:
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def generator(command: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "mkdocs", command, "--config-file", str(folder / "mkdocs.yml")]


def build(target: Path = TARGET) -> Path:
    """Build the guide into a folder, which is replaced as a whole. A dead link ends the build."""
    with tempfile.TemporaryDirectory(prefix="perdure-docs-") as temporary:
        folder, site = Path(temporary), Path(temporary) / "site"
        pages = stage(folder, site)
        environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
        # --quiet would also hide the warnings that --strict counts.
        command = [*generator("build", folder), "--strict"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            raise NotBuilt(ended.stderr.strip() or ended.stdout.strip())
        finish(site, pages)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(site, target)
    return target


def finish(site: Path, pages: dict[str, str]) -> None:
    """Add the files for coding agents, remove unused ones, and list the files that a server may serve."""
    for name in UNUSED:
        path = site / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for path in site.rglob("*.map"):
        path.unlink()
    sections = contents()
    for place, text in pages.items():
        _write(site / place, text)
    _write(site / "llms.txt", llms_text(sections))
    _write(site / "llms-full.txt", full_text(sections, pages))
    files = {path.relative_to(site).as_posix(): path for path in sorted(site.rglob("*")) if path.is_file()}
    scripts = {
        base64.b64encode(sha256(script.encode()).digest()).decode()
        for name, path in files.items()
        if name.endswith(".html")
        for script in INLINE_SCRIPT.findall(path.read_text(encoding="utf-8"))
    }
    digests = {name: sha256(path.read_bytes()).hexdigest()[:20] for name, path in files.items()}
    _write(site / MANIFEST, json.dumps({"files": digests, "scripts": sorted(scripts)}, indent=1))


def serve() -> int:
    """Serve the pages, and rebuild them after each change."""
    with tempfile.TemporaryDirectory(prefix="perdure-docs-") as temporary:
        folder = Path(temporary)
        stage(folder, folder / "site")
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        process = subprocess.Popen(generator("serve", folder))
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                stage(folder, folder / "site")
            return process.returncode
        except KeyboardInterrupt:
            return 0
        finally:
            process.terminate()
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev docs", description="Build the guide.")
    parser.add_argument("--serve", action="store_true", help="show the pages while you write them")
    if parser.parse_args().serve:
        return serve()
    try:
        target = build()
    except NotBuilt as error:
        print(f"{error}\nThe guide was not built.", file=sys.stderr)
        return 1
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) / 1e6
    print(f"The guide is in {target.relative_to(ROOT)} ({size:.1f} MB). perdure serves it at /docs/guide/.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
