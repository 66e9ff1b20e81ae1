"""`GET /docs`, the page of the API: made of /openapi.json in the browser, by the package's own files alone."""

from __future__ import annotations

import configparser
import json
import re
import shlex

import httpx2
import pytest
from playwright.sync_api import Page, expect

from s1_mini.server.limits import GUARDED
from tests.server.conftest import Door
from tests.server.test_page import ROOT, TOO_PALE, Open, browser, needs_browser, visit

__all__ = ["browser", "visit"]  # fixtures


@pytest.fixture
def shown(door: Door) -> Door:
    """The server that the browser visits."""
    return door


@pytest.fixture
def docs(visit: Open, door: Door) -> Page:
    """The page, complete, with nothing of it folded away."""
    page = visit(f"{door.url}/docs")
    expect(page.locator("main")).to_have_attribute("aria-busy", "false")
    page.get_by_role("button", name="Open all").click()
    return page


@needs_browser
def test_every_operation_is_there_with_each_of_its_fields_and_answers(docs: Page, http: httpx2.Client) -> None:
    told = http.get("/openapi.json").json()
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            place = docs.locator(f'[id="{method}-{path}"]')
            expect(place.locator("summary")).to_contain_text(f"{method.upper()} {path}")
            expect(place).to_contain_text(operation["summary"])
            words = place.inner_text()
            assert all(re.search(rf"^{status}\b", words, re.MULTILINE) for status in operation["responses"])
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                assert kind in words
                assert set(content["schema"]["properties"]) <= set(words.split())


@needs_browser
def test_bounds_choices_and_defaults_are_told(docs: Page) -> None:
    def row(operation: str, field: str) -> str:
        name = docs.locator(f'[id="{operation}"]').get_by_role("rowheader", name=field, exact=True).first
        return " ".join(name.locator("xpath=..").inner_text().split())

    assert "number from 0 to 2, 0.8 if left out" in row("post-/v1/tts", "temperature")
    assert "number above 0 up to 1, 0.8 if left out" in row("post-/v1/tts", "top_p")
    assert "whole number from 0 to below 2^63" in row("post-/v1/tts", "seed")
    assert "mp3, opus, flac, wav or pcm, mp3 if left out" in row("post-/v1/audio/speech", "response_format")
    assert "text of 1 to 20000 characters, needed" in row("post-/v1/tts", "text")
    assert "list of 1 to 32, needed" in row("post-/v1/tts/batch", "items")
    assert "text of 1 to 20000 characters, needed" in row("post-/v1/tts/batch", "items[].text")


@needs_browser
def test_its_examples_do_what_they_say(docs: Page, http: httpx2.Client, door: Door) -> None:
    lines = docs.locator("pre").all_inner_texts()
    commands = [shlex.split(line) for line in lines]
    sent = [command for command in commands if "-d" in command]

    assert {tuple(command[:3]) for command in commands} == {("curl", "-sS", "--fail-with-body")}
    assert len(sent) >= 4
    assert {command[-1] for command in sent if "-o" in command} == {"speech.wav", "speech.mp3"}
    for command in sent:
        url = next(word for word in command if word.startswith(door.url))
        body = json.loads(command[command.index("-d") + 1])
        body = {name: value for name, value in body.items() if name != "voice"}  # the tiny checkpoint has none
        assert http.post(url, json=body | {"max_new_tokens": 8}).status_code == 200


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_stands_out(visit: Open, door: Door, scheme: str) -> None:
    page = visit(f"{door.url}/docs", viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page.get_by_role("button", name="Open all").click()

    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.evaluate(TOO_PALE) == []


@needs_browser
def test_the_page_to_speak_from_leads_there_and_back(visit: Open, door: Door) -> None:
    page = visit()
    page.get_by_role("link", name="API").click()
    expect(page).to_have_url(f"{door.url}/docs")
    page.get_by_role("link", name="page to speak from").click()
    expect(page).to_have_url(f"{door.url}/")


def test_it_runs_the_packages_own_files_only(http: httpx2.Client) -> None:
    page = http.get("/docs")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in page.headers["content-security-policy"]
    assert not re.search(r"<style|style=|<script(?![^>]* src=)|\son\w+=|(?<!<a href=\")https?://", page.text)
    for name in re.findall(r'"(static/[^"]+)"', page.text):
        assert http.get(f"/{name}").status_code == 200


def test_it_says_which_paths_want_the_key_and_where_to_read_on(http: httpx2.Client) -> None:
    page, package = http.get("/docs").text, configparser.ConfigParser()
    package.read(ROOT / "setup.cfg")
    urls = dict(line.split(" = ") for line in package["metadata"]["project_urls"].strip().splitlines())

    assert all(f"<code>{path}</code>" in page for path in GUARDED)
    assert f'<a href="{urls["Documentation"].replace("/tree/", "/blob/")}/http.md#' in page
