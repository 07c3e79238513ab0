"""The documentation's site: it builds without a warning, its links lead somewhere, and it shows every public name.

What can be read from its text is checked by default; the slow suite builds it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import rtl_agent_gym
from tests.conftest import ROOT

DOCS = ROOT / "docs"
pytestmark = pytest.mark.timeout(900)  # a build takes 17 seconds of a processor, and much longer on a busy machine


def build(site: Path, checkout: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=800)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The site's folder, and what the build said."""
    site = tmp_path_factory.mktemp("site")
    done = build(site)
    assert done.returncode == 0, done.stdout + done.stderr
    return site, done.stdout + done.stderr


class Page(HTMLParser):
    """The ids of a page, and what it refers to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in ("link", "script", "img", "iframe"):
            self.fetched += [given[name] for name in ("href", "src") if name in given]


@pytest.fixture(scope="module")
def pages(built: tuple[Path, str]) -> dict[Path, Page]:
    return {path: Page(path) for path in built[0].rglob("*.html")}


def test_links_between_pages_name_files() -> None:
    broken = [
        f"{page.relative_to(DOCS)}: {link}"
        for page in DOCS.rglob("*.md")
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8"))
        if not urlsplit(link).scheme and not (page.parent / link).exists()
    ]
    assert broken == []


@pytest.mark.slow
def test_the_build_says_nothing_that_is_a_warning(built: tuple[Path, str]) -> None:
    assert not re.search(r"warning|error", built[1], re.IGNORECASE), built[1]


@pytest.mark.slow
def test_every_page_is_in_the_navigation(built: tuple[Path, str], pages: dict[Path, Page]) -> None:
    site = built[0]
    written = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    reached = {
        (site / unquote(urlsplit(link).path)).resolve().relative_to(site.resolve())
        for link in pages[site / "index.html"].links
        if not urlsplit(link).scheme and urlsplit(link).path.endswith(".html")
    }
    assert written - {Path("index.html")} <= reached


@pytest.mark.slow
def test_links_within_the_site_lead_somewhere(built: tuple[Path, str], pages: dict[Path, Page]) -> None:
    broken = [
        f"{path.relative_to(built[0])}: {link}"
        for path, page in pages.items()
        if path.name != "404.html"
        for link in page.links
        if not leads_somewhere(path, link, pages)
    ]
    assert broken == []


def leads_somewhere(path: Path, link: str, pages: dict[Path, Page]) -> bool:
    url = urlsplit(link)
    if url.scheme or url.netloc:
        return True
    target = (path.parent / unquote(url.path)).resolve() if url.path else path
    target = target / "index.html" if target.is_dir() else target
    if target not in pages:
        return target.is_file()
    return not url.fragment or url.fragment == "__codelineno" or unquote(url.fragment) in pages[target].ids


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, Page]) -> None:
    assert {url for page in pages.values() for url in page.fetched if urlsplit(url).netloc} == set()


def packages() -> Iterator[str]:
    yield "rtl_agent_gym"
    for found in pkgutil.walk_packages(rtl_agent_gym.__path__, "rtl_agent_gym."):
        if found.ispkg and "image_context" not in found.name:
            yield found.name


def public_names() -> list[tuple[str, str]]:
    """Each public name, and the path of what it names: where a function is called as its module is, that is shown."""
    names = []
    for package in packages():
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            home = f"{getattr(value, '__module__', package)}.{getattr(value, '__qualname__', name)}"
            if name in getattr(module, "_PACKAGES", {}):  # imported at first use, and shown where it lives
                home = f"{package}.{module._PACKAGES[name]}.{name}"
            names.append((f"{package}.{name}", home))
    return names


def not_shown(is_shown: Callable[[str], bool]) -> list[str]:
    """The public names without a path that is shown."""
    names = public_names()
    assert len(names) > 90
    paths: dict[str, set[str]] = defaultdict(set)  # a name may be exported by several packages, and shown at one
    for name, home in names:
        paths[home] |= {name, home}
    return [name for name, home in names if not any(map(is_shown, paths[home]))]


def test_the_reference_names_every_public_name_or_what_holds_it() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")]
    named = {name for text in pages for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)}
    assert not_shown(lambda path: not named.isdisjoint({path, path.rpartition(".")[0]})) == []


@pytest.mark.slow
def test_the_reference_shows_every_public_name(pages: dict[Path, Page]) -> None:
    shown = set().union(*(page.ids for path, page in pages.items() if path.parent.name == "reference"))
    assert not_shown(shown.__contains__) == []


BROKEN = {
    "[x](nowhere.md)": "nowhere.md",
    "[x](training.md#nowhere)": "#nowhere",
    "[x](../README.md)": "README.md",
    "[`X`][rtl_agent_gym.Nothing]": "rtl_agent_gym.Nothing",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """The build of a page with all `BROKEN` links."""
    folder = tmp_path_factory.mktemp("broken")
    (folder / "docs").mkdir()
    for name in ("mkdocs.yml", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    lines = "\n\n".join(BROKEN)
    (folder / "docs" / "index.md").write_text(f"# Home\n\n{lines}\n")
    shutil.copy(DOCS / "training.md", folder / "docs")
    return build(folder / "site", folder)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "complaint"), BROKEN.items())
def test_a_broken_link_fails_the_build(refused: subprocess.CompletedProcess[str], line: str, complaint: str) -> None:
    assert refused.returncode != 0
    warnings = [row for row in refused.stderr.splitlines() if row.startswith("WARNING") and "index.md" in row]
    assert any(complaint in row for row in warnings), refused.stderr


@pytest.mark.slow
@pytest.mark.skipif(
    not (ROOT / ".venv/setup-stamp").exists() or (ROOT / ".venv").is_symlink(),
    reason="this checkout was not set up by scripts/setup",
)
def test_the_script_builds_it(tmp_path: Path) -> None:
    """With a site of one page: that the project's own builds is shown above."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: small\n")
    options = ["--config-file", str(tmp_path / "mkdocs.yml"), "--site-dir", str(tmp_path / "site")]
    done = subprocess.run([str(ROOT / "scripts/docs"), *options], capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "index.html").is_file()
