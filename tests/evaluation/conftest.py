"""A real browser, and an installation without tinker-cookbook."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rtl_agent_gym.renderers.coded import coded_dialect

if TYPE_CHECKING:
    from selenium import webdriver


@pytest.fixture(scope="session")
def browser() -> Iterator[webdriver.Chrome]:
    """Headless Chromium, through its own driver. Skips where there is none."""
    from selenium import webdriver

    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no Chromium with its driver on this machine; Debian has them as chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1500,950"):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's own sandbox refuses to run as root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    started.set_page_load_timeout(120)
    yield started
    started.quit()


@pytest.fixture
def without_cookbook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """tinker-cookbook cannot be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tinker_cookbook"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tinker_cookbook", None)
    coded_dialect.cache_clear()
    yield
    coded_dialect.cache_clear()
