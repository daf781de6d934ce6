"""The playground over HTTP and in a real browser."""

import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import FilePayload, Page, async_playwright, expect

from dragoman_service.errors import ConfigError
from dragoman_service.security.api_keys import new_key
from tests.integration.running_server import RunningServer, http_client, running_server, write_callers
from tests.tiny_bundle import build_tiny_bundle

_FILES = ["", "/app.js", "/style.css", "/icon.svg"]
expect.set_options(timeout=60_000)  # on a busy machine
_TEXT = "A man rides a bicycle. {name} plays with 🚲 a red ball."


async def test_page_and_its_files_are_served_with_a_strict_content_policy(tiny_model: Path) -> None:
    async with (
        running_server(tiny_model, http__playground=True) as server,
        http_client(server) as client,
    ):
        answers = [await client.get(f"/playground{path}") for path in _FILES]

    assert [answer.status_code for answer in answers] == [200] * len(_FILES)
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert set(re.findall(r"https?://[^\s\"'<]+", answer.text)) <= {
            "https://example.com",
            "http://www.w3.org/2000/svg",
        }
    page = answers[0].text
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]* src=)", page)


async def test_playground_is_off_by_default(server: RunningServer) -> None:
    async with http_client(server) as client:
        assert [(await client.get(f"/playground{path}")).status_code for path in _FILES] == [404] * len(_FILES)


async def test_playground_without_the_api_is_a_config_error(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"http\.playground"):
        async with running_server(tiny_model, http__playground=True, http__api=False):
            pass


@asynccontextmanager
async def browser_page(url: str, **options: object) -> AsyncIterator[Page]:
    """Open a page in Debian's Chromium; fails if a request goes elsewhere, or the page reports an error."""
    chromium = shutil.which("chromium")
    if chromium is None and "CI" not in os.environ:
        pytest.skip("needs chromium")
    errors: list[str] = []
    requested: list[str] = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(**options)  # type: ignore[arg-type]
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        await page.goto(f"{url}/playground")
        yield page
        await browser.close()
    assert all(each.startswith(url) for each in requested)
    assert not [error for error in errors if "401" not in error]  # browsers report each response with this status


@pytest.mark.slow
async def test_keyboard_user_gets_translations_alignment_and_attention(tiny_model: Path) -> None:
    async with (
        running_server(tiny_model, http__playground=True) as server,
        browser_page(server.url) as page,
    ):
        await expect(page.locator("#target-language")).to_have_value("de")
        await page.get_by_label("Text", exact=True).fill(_TEXT)
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#status")).to_contain_text("2 sentences in")
        assert await page.locator("#model").text_content() == "tiny/1, English detected"
        answer = await _translated(server)

        sentences = page.locator("#sentences > li")
        first, second = sentences.nth(0), sentences.nth(1)
        assert await page.get_by_label("Translation").text_content() == "".join(each["text"] for each in answer)
        assert await first.locator(".line.source").text_content() == "A man rides a bicycle."
        assert await second.locator(".line.source").text_content() == "{name} plays with 🚲 a red ball."
        assert await second.locator(".line.target").text_content() == answer[1]["hypotheses"][0]["text"]

        link = answer[0]["hypotheses"][0]["alignment"][0]
        await first.get_by_role("button").first.focus()
        await expect(first.locator(".source .linked")).to_have_text(_piece(_TEXT, link["source"]))
        await expect(first.locator(".target .linked")).to_have_count(1)

        await first.get_by_text("3 candidates").press("Enter")
        assert await first.locator(".candidates li").count() == len(answer[0]["hypotheses"])
        await first.get_by_text("Attention").press("Enter")
        attention = answer[0]["hypotheses"][0]["attention"][0]
        await expect(first.locator("tbody td")).to_have_count(len(attention["weights"]))
        assert await first.locator(".legend").text_content() is not None
        assert await page.get_by_role("alert").is_hidden()


@pytest.mark.slow
async def test_source_language_restricts_the_target_languages(tmp_path: Path) -> None:
    for source, target in (("de", "en"), ("en", "de")):
        name = f"{source}-{target}"
        directory = tmp_path / name / "1"
        build_tiny_bundle(directory, name=name, source_language=source, target_language=target, precisions=("fp32",))
    async with running_server(tmp_path, http__playground=True) as server, browser_page(server.url) as page:
        targets = page.locator("#target-language option")
        await expect(page.locator("#source-language")).to_have_value("")  # detected
        await expect(targets).to_have_count(2)
        await expect(page.locator("#target-language")).to_have_value("de")
        await page.get_by_label("From").select_option("de")
        await expect(targets).to_have_count(1)
        await expect(page.locator("#target-language")).to_have_value("en")


@pytest.mark.slow
async def test_phone_layout_fits_the_screen_and_requests_a_key(tiny_model: Path, tmp_path: Path) -> None:
    key = new_key()
    settings = {"http__playground": True, "access__callers_file": write_callers(tmp_path, {"shop": key})}
    async with (
        running_server(tiny_model, **settings) as server,
        browser_page(server.url, viewport={"width": 360, "height": 740}, has_touch=True) as page,
    ):
        await expect(page.get_by_role("alert")).to_contain_text("UNAUTHENTICATED")
        await page.get_by_label("Sent with each request").fill(key)
        await page.get_by_label("Sent with each request").blur()
        await expect(page.locator("#target-language")).to_have_value("de")
        await page.get_by_role("button", name="Translate").tap()
        await expect(page.locator("#status")).to_contain_text("2 sentences in")

        width = await page.evaluate("document.documentElement.scrollWidth")
        unlabelled = await page.evaluate(
            "[...document.querySelectorAll('select, input, textarea')].filter((each) => !each.labels.length).length"
        )
        assert width <= 360
        assert unlabelled == 0
        assert await page.get_by_role("alert").is_hidden()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
async def test_languages_are_swapped_files_are_translated_and_warnings_are_at_their_spans(
    tmp_path: Path, width: int
) -> None:
    (tmp_path / "documents").mkdir()
    for source, target in (("de", "en"), ("en", "de")):
        directory = tmp_path / "models" / f"{source}-{target}" / "1"
        build_tiny_bundle(
            directory, name=f"{source}-{target}", source_language=source, target_language=target, precisions=("fp32",)
        )
    settings = {"http__playground": True, "documents__directory": tmp_path / "documents"}
    async with (
        running_server(tmp_path / "models", **settings) as server,
        browser_page(server.url, viewport={"width": width, "height": 800}) as page,
    ):
        await page.locator("#source-language").select_option("en")
        await page.get_by_label("Text", exact=True).fill("Call 555 1234 before 12:30, Anna.")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#status")).to_contain_text("1 sentence in")
        warned = page.locator("#sentences mark.warned")
        num_warnings = await page.locator("#sentences .warning").count()
        assert (await warned.count() > 0) == (num_warnings > 0)
        translation = await page.get_by_label("Translation").text_content()

        await page.get_by_role("button", name="Swap the languages").click()
        await expect(page.locator("#source-language")).to_have_value("de")
        await expect(page.locator("#target-language")).to_have_value("en")
        await expect(page.get_by_label("Text", exact=True)).to_have_value(translation or "")

        file: FilePayload = {"name": "a.txt", "mimeType": "text/plain", "buffer": b"Ein Mann."}
        await page.locator("#file").set_input_files(file)
        async with page.expect_download() as download:
            await page.get_by_role("link", name="Download a.txt").click()
        assert (await download.value).suggested_filename == "a.txt"
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
async def test_files_are_not_offered_without_a_directory(tiny_model: Path) -> None:
    async with running_server(tiny_model, http__playground=True) as server, browser_page(server.url) as page:
        await expect(page.locator("#target-language")).to_have_value("de")
        assert await page.locator("#files").is_hidden()


async def _translated(server: RunningServer) -> list[dict[str, Any]]:
    options = {"numHypotheses": 3, "returnAlignment": True, "returnAttention": "ATTENTION_DETAIL_AVERAGED"}
    body = {"text": _TEXT, "sourceLanguage": "en", "targetLanguage": "de", "options": options}
    async with http_client(server) as client:
        lines = (await client.post("/v1/translate/document", json=body)).text.split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith('data: {"')]


def _piece(text: str, span: dict[str, int]) -> str:
    return text[span.get("start", 0) : span["end"]]
