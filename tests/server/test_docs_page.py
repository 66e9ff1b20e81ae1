"""`GET /docs`: Swagger UI for /openapi.json, from files of installed packages alone."""

from __future__ import annotations

import configparser
import re

import httpx2
import pytest
from playwright.sync_api import Locator, Page, expect

from s1_mini import ProductionTTSEngine
from s1_mini.server.limits import PUBLIC, STATIC
from tests.server.conftest import Door, serving
from tests.server.test_page import ROOT, Open, browser, needs_browser, visit

__all__ = ["browser", "visit"]  # fixtures


# Duration of an audio element, once it is known.
LENGTH = """(audio) => new Promise((resolve, reject) => {
  if (audio.readyState > 0) resolve(audio.duration);
  audio.addEventListener("loadedmetadata", () => resolve(audio.duration));
  audio.querySelector("source").addEventListener("error", () => reject(new Error("the audio cannot be played")));
})"""


@pytest.fixture
def shown(door: Door) -> Door:
    """The server that the browser opens."""
    return door


def operation(page: Page, method: str, path: str) -> Locator:
    """Return one operation of the page."""
    return page.locator(f".opblock-{method}").filter(has=page.locator(f'[data-path="{path}"]'))


def try_out(page: Page, path: str, body: str) -> Locator:
    """Open a POST operation, enter a body and send the request."""
    place = operation(page, "post", path)
    place.locator(".opblock-summary-control").click()
    place.get_by_role("button", name="Try it out").click()
    place.locator("textarea.body-param__text").fill(body)
    place.get_by_role("button", name="Execute").click()
    return place


@needs_browser
def test_every_operation_of_the_document_is_listed_and_nothing_comes_from_another_host(
    visit: Open, door: Door, http: httpx2.Client
) -> None:
    page = visit()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.get_by_role("link", name="API").click()
    expect(page.locator(".information-container")).to_contain_text("Try it out")

    for path, methods in http.get("/openapi.json").json()["paths"].items():
        for method, output in methods.items():
            expect(operation(page, method, path)).to_contain_text(output["summary"])
    assert f"{door.url}/static/swagger-ui-bundle.js" in requested
    assert [url for url in requested if not url.startswith((door.url, "data:"))] == []
    with page.expect_popup() as opened:
        page.get_by_role("link", name="web page", exact=True).click()
    expect(opened.value).to_have_url(f"{door.url}/")


@needs_browser
def test_a_request_sent_from_the_page_returns_audio_and_its_curl_line(visit: Open, door: Door) -> None:
    page = visit(f"{door.url}/docs")
    with page.expect_response(f"{door.url}/v1/tts") as answered:
        place = try_out(page, "/v1/tts", '{"text": "Hi.", "max_new_tokens": 8}')
    player = place.locator(".live-responses-table audio")
    expect(player).to_be_visible()

    assert answered.value.status == 200
    seconds = float(answered.value.headers["x-audio-seconds"])
    assert player.evaluate(LENGTH) == pytest.approx(seconds, abs=0.01)  # it plays the response, not a second request
    expect(place.locator(".curl-command")).to_contain_text(f"{door.url}/v1/tts")
    expect(place.locator(".live-responses-table .response .response-col_status")).to_have_text("200")


@pytest.mark.long
@needs_browser
def test_with_an_api_key_requests_fail_until_authorize_has_the_key(
    visit: Open, small_engine: ProductionTTSEngine
) -> None:
    with serving(small_engine, api_key="open sesame") as locked:
        page = visit(f"{locked.url}/docs")
        with page.expect_response(f"{locked.url}/v1/tts") as refused:
            place = try_out(page, "/v1/tts", '{"text": "Hi.", "max_new_tokens": 8}')
        page.locator(".auth-wrapper .authorize").click()
        page.get_by_role("dialog").or_(page.locator(".modal-ux")).locator("input").fill("open sesame")
        page.locator(".modal-ux").get_by_role("button", name=re.compile("apply|authorize", re.IGNORECASE)).click()
        page.locator(".modal-ux").get_by_role("button", name="Close").last.click()
        with page.expect_response(f"{locked.url}/v1/tts") as answered:
            place.get_by_role("button", name="Execute").click()

        assert (refused.value.status, answered.value.status) == (401, 200)
        assert page.evaluate("localStorage.length + sessionStorage.length") == 0  # the key is forgotten with the page


def test_only_routes_behind_the_key_ask_for_it_and_only_if_the_server_has_one(
    http: httpx2.Client, small_engine: ProductionTTSEngine
) -> None:
    with serving(small_engine, api_keys="open sesame") as locked, locked.client() as client:
        document = client.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        for output in methods.values():
            assert ("security" in output) == path.startswith(("/v1/", "/v2/", "/dev/"))
    assert "securitySchemes" not in http.get("/openapi.json").json().get("components", {})


def test_its_policy_allows_only_this_server_and_icons_of_its_style_sheet(http: httpx2.Client) -> None:
    page = http.get("/docs")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'" in policy
    assert "data:" not in http.get("/").headers["content-security-policy"]
    assert not re.search(r"<style|style=|<script(?![^>]* src=)|\son\w+=|https?://", page.text)
    for name in re.findall(r'"(static/[^"]+)"', page.text):
        assert http.get(f"/{name}").status_code == 200


def test_its_introduction_names_the_paths_that_need_no_key_and_the_page_about_websockets(http: httpx2.Client) -> None:
    text, package = http.get("/openapi.json").json()["info"]["description"], configparser.ConfigParser()
    package.read(ROOT / "setup.cfg")
    urls = dict(line.split(" = ") for line in package["metadata"]["project_urls"].strip().splitlines())

    assert all(f"`{path}`" in text for path in (*PUBLIC, STATIC))
    assert f"({urls['Documentation'].replace('/tree/', '/blob/')}/websocket.md)" in text
