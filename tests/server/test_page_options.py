"""The web page: speed, markup, samples, highlighted words, history and downloads, in a real Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from held_generation import held_generation
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.families import registry
from s1_mini.types import Word
from tests.server.conftest import Door, serving
from tests.server.test_page import Open, browser, data, needs_browser, shown, speak, visit, voiced
from tests.toy.family import NAME, Toy
from waiting import wait_until

__all__ = ["browser", "shown", "visit", "voiced"]  # fixtures
pytestmark = [needs_browser, pytest.mark.long]

TEXT = "Eight small boats sailed out at dawn."
DIALOGUE = "[clara] Are you there? [pause 0.5s] [henry] Yes, I am."
FRAMES = 40  # 2 s of audio, which is more than the page buffers before it plays, and less than TEXT has

# Records each word that is highlighted in the text field.
WATCH = """
addEventListener("DOMContentLoaded", () => {
  window.highlighted = [];
  const note = () => {
    const word = document.querySelector("#echo mark")?.textContent;
    if (word && word !== window.highlighted.at(-1)) window.highlighted.push(word);
  };
  new MutationObserver(note).observe(document.getElementById("echo"), { childList: true });
});
"""


def watched(visit: Open, url: str | None = None, **options: object) -> Page:
    """Open the page with `WATCH`, and a fixed seed."""
    page = visit(*filter(None, [url]), script=WATCH, **options)
    page.get_by_text("Advanced").click()
    page.get_by_label("Seed").fill("7")
    return page


def finish(page: Page, text: str = TEXT, voice: str = "clara") -> float:
    """Speak a text to its end; return the duration of its audio in seconds."""
    speak(page, text, voice)
    expect(page.locator("main")).to_have_attribute("data-state", "done")
    return float(data(page)["seconds"])


def download(page: Page, path: Path, button: str | re.Pattern[str] = "Download") -> Path:
    """Return the file that a button downloads."""
    with page.expect_download() as started:
        page.get_by_role("button", name=button, exact=isinstance(button, str)).click()
    target = path / started.value.suggested_filename
    started.value.save_as(target)
    return target


def seek_to_end(page: Page) -> None:
    for key in ("Home", "End"):
        page.get_by_role("slider", name="Position").press(key)


def live_words(engine: ProductionTTSEngine, text: str, voice: str) -> list[Word]:
    """Return the words of a stream with the page's options."""
    chunks = engine.stream(text, voice=voice, seed=7, word_times=True, chunk_profile="ttfa")
    return [word for chunk in chunks for word in chunk.words]


def test_twice_the_speed_is_about_half_the_duration(visit: Open) -> None:
    page = watched(visit)
    normal = finish(page)
    speed = page.get_by_role("slider", name="Speed")
    for _ in range(4):
        speed.press("ArrowRight")
    expect(speed).to_have_attribute("aria-valuetext", "2 times")
    expect(page.locator("#speed-value")).to_have_text("2×")

    assert finish(page) == pytest.approx(normal / 2, rel=0.05)


def test_each_format_is_downloaded_as_it_was_heard(visit: Open, tmp_path: Path) -> None:
    page = watched(visit)
    page.get_by_role("slider", name="Speed").press("ArrowRight")
    seconds = finish(page)

    heard, rate = soundfile.read(download(page, tmp_path))
    assert len(heard) / rate == pytest.approx(seconds, abs=0.001)
    for name in ("mp3", "flac", "ogg"):
        page.get_by_label("Download as").select_option(name)
        file = download(page, tmp_path)
        expect(page.locator("#status")).to_have_text(f"Saved as {name}.")
        assert file.name == f"eight-small-boats-sailed-out.{name}"
        wave, file_rate = soundfile.read(file)
        assert len(wave) / file_rate == pytest.approx(seconds, abs=0.1)
        assert np.sqrt(np.mean(wave**2)) == pytest.approx(np.sqrt(np.mean(heard**2)), rel=0.05)
        if name == "flac":
            np.testing.assert_allclose(wave, heard, atol=2 / 32_768)


def test_a_download_that_differs_from_the_audio_heard_says_so(visit: Open, tmp_path: Path) -> None:
    """Here playback was stopped; on a busy GPU without batch invariance the same seed may also give other audio."""
    page = watched(visit)
    with held_generation(FRAMES):
        speak(page, TEXT)
        expect(page.locator("main")).to_have_attribute("data-state", "speaking")
        page.keyboard.press("Escape")
        expect(page.locator("main")).to_have_attribute("data-state", "stopped")
    page.get_by_label("Download as").select_option("flac")

    file = download(page, tmp_path)

    seconds = [soundfile.info(file).duration, float(data(page)["seconds"])]
    saved, heard = page.evaluate("all => all.map((each) => each.toFixed(1))", seconds)  # Python rounds 2.25 down
    expect(page.locator("#status")).to_contain_text("Saved as flac. The audio was generated again")
    expect(page.locator("#status")).to_contain_text(f"and takes {saved} s;")
    expect(page.locator("#status")).to_contain_text(f"what you heard takes {heard} s")


def test_a_failed_download_shows_the_message_of_the_server(visit: Open, voiced: ProductionTTSEngine) -> None:
    page = visit()
    voiced.add_voice("guest", voiced.generate(TEXT, seed=1, return_bytes=True).audio_bytes, TEXT)
    page.reload()
    finish(page, "Hello.", "guest")
    page.get_by_label("Download as").select_option("mp3")
    voiced.delete_voice("guest")

    page.get_by_role("button", name="Download", exact=True).click()

    expect(page.get_by_role("alert")).to_contain_text("Unknown voice 'guest'")
    page.get_by_label("Download as").select_option("wav")
    with page.expect_download():
        page.get_by_role("button", name="Download", exact=True).click()


def test_the_word_that_is_spoken_is_highlighted(visit: Open, voiced: ProductionTTSEngine) -> None:
    """During playback in order, and at each position that is sought, in the text field and in the history."""
    page = watched(visit)
    finish(page)
    words = live_words(voiced, TEXT, "clara")
    assert [word.text for word in words] == TEXT.rstrip(".").split()

    # a page that the machine starves may skip a short word
    seen = [
        TEXT.split().index(word) for word in page.evaluate("highlighted.map((word) => word.replace('dawn', 'dawn.'))")
    ]
    assert seen == sorted(set(seen))
    assert len(seen) > 1
    expect(page.locator("mark")).to_have_count(0)
    for word in words:
        page.get_by_role("slider", name="Position").fill(str(word.start_s + 0.002))
        expect(page.locator("#echo mark")).to_have_text(word.text)
        expect(page.locator("#history mark")).to_have_text(word.text)

    page.get_by_role("textbox", name="Text").press("End")
    page.keyboard.type(" More.")
    expect(page.locator("#echo mark")).to_have_count(0)
    expect(page.locator("#history mark")).to_have_count(1)


def test_a_checkpoint_without_times_of_words_highlights_none(
    visit: Open, door: Door, small_engine: ProductionTTSEngine
) -> None:
    """Its audio has the model's own sample rate."""
    page = watched(visit, door.url)
    page.get_by_role("textbox", name="Text").fill("Hm, hm.")
    with page.expect_request(f"**/with-timestamps?output_format=pcm_{small_engine.sample_rate}"):
        page.get_by_role("button", name="Speak").click()

    expect(page.locator("#history-list > li")).to_have_count(1)
    seek_to_end(page)
    assert page.evaluate("highlighted") == []


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProductionTTSEngine]:
    """An engine whose checkpoint has a choice of languages and takes instructions."""
    monkeypatch.setitem(registry.FAMILIES, NAME, "tests.toy.family:Toy")
    Toy().write_random(tmp_path / "toy", size="tiny", form="compact", seed=0)
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tmp_path / "toy", device="cpu")) as engine:
        yield engine


def test_language_and_instructions_are_used_if_the_model_supports_them(
    visit: Open, toy: ProductionTTSEngine, tmp_path: Path
) -> None:
    """With the keyboard alone."""
    with serving(toy) as door:
        page = watched(visit, door.url)
        language = page.get_by_label("Language")
        expect(language.locator("option")).to_have_text(["Automatic", "English", "Klingon"])
        assert Axe().run(page).violations_count == 0
        page.get_by_role("textbox", name="Text").fill("Hello.")
        page.get_by_label("Top-p").press("Tab")
        page.keyboard.press("k")
        page.keyboard.press("Tab")
        expect(page.get_by_label("Instructions")).to_be_focused()
        page.keyboard.type("Whisper.")
        expect(language).to_have_value("Klingon")
        page.keyboard.press("Control+Enter")
        expect(page.locator("#history-list > li")).to_have_count(1)
        heard, _ = soundfile.read(download(page, tmp_path, "Download: Hello."))

    expected, plain = (
        toy.generate("Hello.", seed=7, **options).audio
        for options in ({"language": "Klingon", "instructions": "Whisper."}, {})
    )
    np.testing.assert_allclose(heard, expected, atol=2 / 32_768)
    assert len(plain) != len(expected)


def test_language_and_instructions_are_hidden_if_the_model_does_not_support_them(visit: Open) -> None:
    page = watched(visit)
    expect(page.get_by_label("Top-p")).to_be_visible()
    expect(page.locator("#model")).not_to_be_empty()  # the model is known

    expect(page.get_by_label("Language")).to_be_hidden()
    expect(page.get_by_label("Instructions")).to_be_hidden()


def test_several_voices_speak_one_text(visit: Open, voiced: ProductionTTSEngine, tmp_path: Path) -> None:
    page = watched(visit)
    page.get_by_role("button", name="Dialogue").click()
    expect(page.get_by_label("Markup")).to_have_value("marked")
    expect(page.get_by_role("textbox", name="Text")).to_have_value(re.compile(r"^\[\w+\] .*\[pause 0.5s\]"))
    finish(page, DIALOGUE, "anna")

    heard, _ = soundfile.read(download(page, tmp_path))
    both = voiced.generate(DIALOGUE, voice="anna", seed=7, text_type="marked").audio
    one = voiced.generate(DIALOGUE.replace("henry", "clara"), voice="anna", seed=7, text_type="marked").audio
    np.testing.assert_allclose(heard, both, atol=2 / 32_768)
    assert len(one) != len(both) or not np.allclose(one, both, atol=0.01)
    assert {"clara", "henry", "pause"}.isdisjoint(page.evaluate("highlighted"))


def test_a_voice_mark_is_inserted_at_the_cursor_and_can_be_undone(visit: Open) -> None:
    page = visit()
    text = page.get_by_role("textbox", name="Text")
    expect(page.get_by_role("button", name="Insert [clara]")).to_be_hidden()
    page.get_by_label("Markup").select_option("Voice marks")
    expect(page.locator("#markup-hint")).to_have_text("[name] changes the voice, [pause 0.5s] pauses.")
    text.fill("Hello.")
    text.press("Home")

    page.get_by_role("button", name="Insert [clara]").click()

    expect(text).to_have_value("[clara] Hello.")
    expect(text).to_be_focused()
    page.keyboard.press("Control+z")
    expect(text).to_have_value("Hello.")


def test_the_message_for_an_error_in_markup_is_shown(visit: Open) -> None:
    page = visit()
    page.get_by_label("Markup").select_option("SSML")
    speak(page, "<speak>One.</spoken>")

    expect(page.get_by_role("alert")).to_contain_text("Line 1, column")
    expect(page.get_by_role("textbox", name="Text")).to_be_focused()
    expect(page.get_by_role("textbox", name="Text")).to_have_attribute("aria-invalid", "true")


def test_a_warning_is_shown_with_the_result(visit: Open) -> None:
    page = visit()
    page.get_by_label("Markup").select_option("SSML")
    finish(page, "<speak>One <emphasis>two</emphasis>.</speak>")

    expect(page.locator("#status")).to_contain_text("Ignored markup that this engine does not support: <emphasis>.")


def test_the_rest_of_a_text_that_the_voice_cannot_pronounce_is_spoken_and_downloaded(
    visit: Open, tmp_path: Path
) -> None:
    page = visit()
    page.get_by_label("Download as").select_option("mp3")
    speak(page, "Good 日 morning.")
    expect(page.get_by_role("alert")).to_contain_text("Remove it, or press “Speak the rest”.")
    page.get_by_role("button", name="Speak the rest").click()

    expect(page.locator("main")).to_have_attribute("data-state", "done")
    expect(page.get_by_role("button", name="Speak the rest")).to_be_hidden()
    expect(page.locator("#status")).to_contain_text("Skipped characters that this voice cannot pronounce")
    assert download(page, tmp_path / "said.mp3").stat().st_size > 0


def test_the_history_replays_and_downloads_each_item(visit: Open, voiced: ProductionTTSEngine, tmp_path: Path) -> None:
    page = watched(visit)
    finish(page, "First one.", "anna")
    finish(page, "Number two.", "clara")
    rows = page.locator("#history-list > li")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("Number two.")
    expect(rows.last).to_contain_text(re.compile(r"anna · \d\.\d s · seed 7"))

    first = page.get_by_role("button", name="Play: First one.")
    first.click()
    expect(rows.last).to_have_attribute("aria-current", "true")
    expect(first).to_have_attribute("aria-pressed", "false")
    assert float(page.get_by_role("slider", name="Position").input_value()) > 0.5
    seek_to_end(page)
    expect(rows.last.locator("mark")).to_have_text("one")
    expect(page.locator("#echo mark")).to_have_count(0)  # the field has another text

    for name, voice in (("First one.", "anna"), ("Number two.", "clara")):
        wave, _ = soundfile.read(download(page, tmp_path, f"Download: {name}"))
        np.testing.assert_allclose(wave, voiced.generate(name, voice=voice, seed=7).audio, atol=2 / 32_768)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#history")).to_be_hidden()
    expect(page.get_by_role("textbox", name="Text")).to_be_focused()


def test_a_replay_ends_the_speech_that_is_being_generated(visit: Open, voiced: ProductionTTSEngine) -> None:
    page = watched(visit)
    finish(page, "First one.")
    with held_generation(FRAMES):
        speak(page, TEXT)
        expect(page.locator("main")).to_have_attribute("data-state", "speaking")

        page.get_by_role("button", name="Play: First one.").click()

        wait_until(lambda: voiced.health_check()["requests"] == 0)
    expect(page.locator("#history-list > li")).to_have_count(2)  # what was received of it is kept
    expect(page.locator("main")).to_have_attribute("data-state", "done")
    expect(page.locator("#history-list > li").last).to_have_attribute("aria-current", "true")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_options_are_restored_after_a_reload(visit: Open) -> None:
    page = visit()
    page.get_by_role("slider", name="Speed").fill("8")
    page.get_by_label("Markup").select_option("ssml")
    page.get_by_label("Download as").select_option("flac")

    page.reload()

    expect(page.locator("#speed-value")).to_have_text("1.25×")
    expect(page.get_by_label("Markup")).to_have_value("ssml")
    expect(page.get_by_label("Download as")).to_have_value("flac")
    page.evaluate("localStorage.setItem('s1_mini.format', 'gone')")
    page.reload()
    expect(page.get_by_label("Download as")).to_have_value("wav")


def test_everything_works_with_the_keyboard_alone(visit: Open) -> None:
    page = visit()
    expect(page.get_by_role("radio").first).to_be_visible()

    def go_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(
                "(e => e.labels?.[0]?.textContent || e.ariaLabel || e.textContent)(document.activeElement)"
            ).startswith(name):
                return
        pytest.fail(f"{name} is not reachable")

    go_to("Questions")
    page.keyboard.press("Enter")
    expect(page.get_by_role("textbox", name="Text")).to_have_value(re.compile("window"))
    go_to("Speed")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#speed-value")).to_have_text("1.1×")
    go_to("Download as")
    page.keyboard.press("f")
    expect(page.get_by_label("Download as")).to_have_value("flac")
    page.keyboard.press("Control+Enter")
    expect(page.locator("main")).to_have_attribute("data-state", "done")
    go_to("Play: Could you")
    page.keyboard.press("Enter")
    expect(page.locator(":focus")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    expect(page.locator(":focus")).to_have_attribute("aria-pressed", "false")
    go_to("Download: Could you")
    with page.expect_download() as started:
        page.keyboard.press("Enter")
    assert started.value.suggested_filename.endswith(".flac")


@pytest.mark.parametrize(("width", "height", "scheme"), [(1280, 720, "light"), (390, 844, "dark")])
def test_axe_finds_no_violation(visit: Open, width: int, height: int, scheme: str) -> None:
    """In each state of the page; contrast included."""
    page = visit(viewport={"width": width, "height": height}, color_scheme=scheme)
    expect(page.get_by_role("radio").first).to_be_visible()

    def check() -> None:
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()

    check()
    page.get_by_role("button", name="Dialogue").click()
    page.get_by_text("Advanced").click()
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("#history-list > li")).to_have_count(1)
    seek_to_end(page)
    expect(page.locator("#echo mark")).to_be_visible()
    check()
    page.get_by_role("textbox", name="Text").fill("[pause 99s]")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    check()
    page.get_by_role("button", name="Add a voice").click()
    check()
