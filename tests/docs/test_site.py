"""The documentation's site: it builds without a warning, its links lead somewhere, and it shows every public name."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import rtl_agent_gym

ROOT = Path(__file__).resolve().parents[2]
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


def test_the_build_says_nothing_that_is_a_warning(built: tuple[Path, str]) -> None:
    assert not re.search(r"warning|error", built[1], re.IGNORECASE), built[1]


def test_every_page_is_in_the_navigation(built: tuple[Path, str], pages: dict[Path, Page]) -> None:
    site = built[0]
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    reached = {
        (site / unquote(urlsplit(link).path)).resolve().relative_to(site.resolve())
        for link in pages[site / "index.html"].links
        if not urlsplit(link).scheme and urlsplit(link).path.endswith(".html")
    }
    assert written - {Path("index.html")} <= reached


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


def test_the_reference_shows_every_public_name(pages: dict[Path, Page]) -> None:
    names = public_names()
    assert len(names) > 90
    shown = set().union(*(page.ids for path, page in pages.items() if path.parent.name == "reference"))
    paths: dict[str, set[str]] = defaultdict(set)  # a name may be exported by several packages, and shown at one
    for name, home in names:
        paths[home] |= {name, home}
    assert [name for name, home in names if not paths[home] & shown] == []


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
    shutil.copy(ROOT / "docs" / "training.md", folder / "docs")
    return build(folder / "site", folder)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "complaint"), BROKEN.items())
def test_a_broken_link_fails_the_build(refused: subprocess.CompletedProcess[str], line: str, complaint: str) -> None:
    assert refused.returncode != 0
    warnings = [row for row in refused.stderr.splitlines() if row.startswith("WARNING") and "index.md" in row]
    assert any(complaint in row for row in warnings), refused.stderr


def test_the_script_builds_it(tmp_path: Path) -> None:
    """With a site of one page: that the project's own builds is shown above."""
    script = ROOT / "scripts" / "docs"
    assert os.access(script, os.X_OK)
    text = script.read_text()
    assert text.startswith("#!/usr/bin/env bash\n#")
    assert "\nset -euo pipefail\n" in text
    if (ROOT / ".venv/setup-stamp").exists() and not (ROOT / ".venv").is_symlink():  # scripts/setup made it here
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "index.md").write_text("# Home\n")
        (tmp_path / "mkdocs.yml").write_text("site_name: small\n")
        command = [str(script), "--config-file", str(tmp_path / "mkdocs.yml"), "--site-dir", str(tmp_path / "site")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / "site" / "index.html").is_file()
