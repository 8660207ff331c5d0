"""The live page before pods that compute nothing: what it does when it is stopped, and when a key is asked for."""

from __future__ import annotations

import secrets
from pathlib import Path

from fake_pod import FakePod, fingerprint
from page_probes import OpenPage
from router_rig import StartRouter

from pagewire.router.keys import KEY_BYTES, NewKey


async def test_a_key_is_asked_for_and_says_what_is_shown(
    start: StartRouter, open_page: OpenPage, tmp_path: Path
) -> None:
    keys = {name: NewKey.of(secrets.token_bytes(KEY_BYTES)) for name in ("acme", "boss")}
    rows = [
        f"[tenants.{name}]\nkeys = ['{key.line}']\noperator = {str(name == 'boss').lower()}"
        for name, key in keys.items()
    ]
    file = tmp_path / "keys.toml"
    file.write_text("\n".join(rows))
    boss = {"authorization": f"Bearer {keys['boss'].key}"}
    async with start(FakePod("c0"), api_keys=str(file), headers=boss) as router:
        assert (await router.complete("of the boss", max_tokens=2)).status_code == 200
        page = await open_page(router.addresses["http"], waits="#key[open]")
        assert await page.evaluate("document.activeElement.id") == "key-text"
        await page.keyboard.type("pw_wrong")
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#key-why:has-text('not known here')")
        await page.keyboard.type(keys["acme"].key)
        await page.keyboard.press("Enter")
        await page.wait_for_selector("#state.live")
        assert await page.inner_text("#requests-title") == "Your requests"
        assert "operators alone" in await page.inner_text("#pods-note")
        assert await page.locator(".pod").count() == 0
        await page.wait_for_function("document.querySelector('#model').options.length === 1")
        await page.fill("#prompt", "hello")
        await page.keyboard.press("Control+Enter")
        await page.wait_for_selector("#answer-timeline svg")
        await page.wait_for_selector(".request:has-text('finished')")
        assert await page.locator(".request").count() == 1
        assert "hello" in await page.inner_text("#answer")
        # It is in this tab's storage alone, and stays there over a reload.
        assert await page.evaluate("[...Object.values(sessionStorage)]") == [keys["acme"].key]
        assert keys["acme"].key not in await page.evaluate(
            "JSON.stringify(localStorage) + document.cookie + location.href"
        )
        await page.reload()
        await page.wait_for_selector("#state.live")
        await page.click("#forget")
        await page.wait_for_selector("#key[open]")
        assert await page.evaluate("sessionStorage.length") == 0
        await page.fill("#key-text", keys["boss"].key)
        await page.keyboard.press("Enter")
        await page.wait_for_selector(".pod:has-text('c0')")
        assert await page.locator(".request").count() == 2
        await page.close()


async def test_escape_ends_the_request(start: StartRouter, open_page: OpenPage) -> None:
    pod = FakePod("c0")
    pod.hold_at = 3
    async with start(pod) as router:
        page = await open_page(router.addresses["http"])
        await page.wait_for_function("document.querySelector('#model').options.length === 1")
        await page.fill("#prompt", "hello")
        await page.keyboard.press("Control+Enter")
        await page.wait_for_selector(".request:has-text('runs: streams, 3 tokens')")
        await page.keyboard.press("Escape")
        await page.wait_for_selector("#ask-state:has-text('Stopped')")
        await page.wait_for_selector(".request:has-text('failed: cancelled')")
        assert [each.request_id for each in pod.cancels] == [pod.submits[0].spec.request_id]
        assert await page.is_enabled("#send")
        assert await page.is_disabled("#stop")
        pod.hold_at = None
        await page.close()


async def test_what_others_named_is_shown_and_never_run(
    start: StartRouter, open_page: OpenPage, tmp_path: Path
) -> None:
    """Names of pods, models and requests, a prompt and its answer, all of them with marks of HTML in them."""
    image, script = "<img/src=x onerror=window.ran=1>\"'&", "<script>window.ran++</script>\"'&"
    async with start(
        FakePod(image, serves=fingerprint(model_name=script)), model=(f"{script}={tmp_path / 'model'}",)
    ) as router:
        named = {"x-request-id": image}
        body = {"model": script, "prompt": image, "max_tokens": 2}
        assert (await router.http.post("/v1/completions", json=body, headers=named)).status_code == 200
        page = await open_page(router.addresses["http"])
        await page.wait_for_function("(name) => document.querySelector('#model').value === name", arg=script)
        await page.fill("#prompt", image + script)
        await page.keyboard.press("Control+Enter")
        await page.wait_for_selector("#answer-timeline svg")
        assert image + script in await page.inner_text("#answer")
        assert image in await page.inner_text(".pod h3")
        assert image in await page.inner_text(".request:last-child button")
        assert await page.evaluate("[window.ran, document.images.length]") == [None, 0]
        await page.close()


async def test_tokens_that_come_together_took_no_time_and_are_drawn(start: StartRouter, open_page: OpenPage) -> None:
    pod = FakePod("d")
    pod.tokens_per_record = 2
    async with start(pod) as router:
        body = {"model": pod.serves.model_name, "prompt": "x", "max_tokens": 2}
        assert (await router.http.post("/v1/completions", json=body)).status_code == 200
        page = await open_page(router.addresses["http"])
        await page.wait_for_selector(".spark polyline", state="attached")
        drawn = await page.evaluate(
            "[...document.querySelectorAll('.spark polyline')].map((each) => each.getAttribute('points'))"
        )
        assert len(drawn) == 2
        assert not [points for points in drawn if "NaN" in points]
        await page.close()


async def test_models_that_come_later_can_be_chosen(start: StartRouter, open_page: OpenPage, tmp_path: Path) -> None:
    small, large, later = (FakePod(name, serves=fingerprint(model_name=name)) for name in ("small", "large", "later"))
    folders = tuple(f"{name}={tmp_path / 'model'}" for name in ("later", "small", "large"))
    async with start(small, large, model=folders) as router:
        page = await open_page(router.addresses["http"])
        lists = "(names) => [...document.querySelector('#model').options].map((each) => each.value).join() === names"
        await page.wait_for_function(lists, arg="small,large")
        await page.select_option("#model", "large")
        await later.start()
        await router.registry.register(later.registration)
        await page.wait_for_function(lists, arg="later,small,large")
        assert await page.input_value("#model") == "large"
        await page.close()
        await later.die()
