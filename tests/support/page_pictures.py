"""Pictures of the live page before a real cluster under load, to be looked at: page_pictures.py MODEL FOLDER.

Light and dark, wide and narrow, at its top and as a whole, idle and busy, with a prompt that streams and a request that
is opened.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import httpx
from live_cluster import LiveCluster
from playwright.async_api import Page, async_playwright

CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    *(
        "--prefill",
        "2",
        "--decode",
        "2",
        "--kv-memory",
        "128MiB",
        "--max-model-len",
        "2048",
        "--chunk-size",
        "64",
        "--slo-ttft-s",
        "2",
    ),
    *("--slo-tpot-s", "0.1"),
)
ASKED = "Tell me a long story of a lighthouse keeper and her cat, and say what they see from the tower. "
SIZES = {"wide": (1400, 900), "narrow": (420, 900)}
BUSY_S = 6.0


async def load(url: str, model: str, name: str) -> None:
    """Ask again and again, with prompts of different lengths."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        for number in range(1000):
            prompt = f"{name}{number}: " + ASKED * (1 + (ord(name) + number) % 9)
            body = {"model": model, "prompt": prompt, "max_tokens": 120, "temperature": 0.7, "seed": number}
            await client.post("/v1/completions", json=body)


async def take(folder: Path, cluster: LiveCluster) -> None:
    """Take them all."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        pages: dict[str, Page] = {}
        for scheme in ("light", "dark"):
            for size, (width, height) in SIZES.items():
                page = await browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
                await page.goto(f"{cluster.http}/ui")
                await page.wait_for_selector("#state.live")
                pages[f"{scheme}-{size}"] = page
        await pages["light-wide"].screenshot(path=folder / "light-wide-idle.png", full_page=True)
        callers = [asyncio.create_task(load(cluster.http, cluster.model_name, chr(97 + i))) for i in range(5)]
        await asyncio.sleep(BUSY_S)
        for name, page in pages.items():
            if name.endswith("wide"):
                await page.fill("#prompt", "Why is the sky blue?")
                await page.keyboard.press("Control+Enter")
                await asyncio.sleep(1.0)
            await page.screenshot(path=folder / f"{name}.png", full_page=True)
        await pages["light-wide"].locator("#request-list button").first.click()
        await pages["light-wide"].screenshot(path=folder / "light-wide-opened.png", full_page=True)
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        await browser.close()


def main() -> None:
    """Start a cluster, take the pictures."""
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    cluster = LiveCluster(model, *FLAGS)
    try:
        asyncio.run(take(folder, cluster))
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
