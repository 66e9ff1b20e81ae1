"""The web page in a real Chromium, on a real server with the default voice.

The browser is the file that S1_MINI_TEST_CHROMIUM names, or the first of BROWSERS on PATH (docs/page.md).
"""

from __future__ import annotations

import io
import itertools
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import soundfile
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.audio.container import encode
from s1_mini.families.codec_lm.stage import LanguageModel
from s1_mini.families.mel.random import write_random_checkpoint
from tests.server.conftest import Door, serving
from waiting import EVENTUALLY_S, wait_until

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
# Read before the tests' fixture removes all S1_MINI_* variables.
CHROMIUM = os.environ.get("S1_MINI_TEST_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no browser: none of {', '.join(BROWSERS)} is on PATH, S1_MINI_TEST_CHROMIUM is not set"
)

# A browser takes seconds of CPU time for each page. Without this mark, one test each shows that the page speaks, adds
# voices, explains errors, asks for keys and is reachable by keyboard.
each_detail = pytest.mark.long

TEXT = "The sky turned dark and the wind grew strong. We walked home slowly."
LONG = " ".join([TEXT] * 20)
FRAMES = 40  # 2 s: more than the page buffers before it plays, less than the longer sentence of TEXT lasts

# Listens at the audio output: every source that a page connects is also connected to an analyser, which records when
# the first audio plays, and whether the response was still arriving then.
EAR = """
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (to, ...rest) {
  if (to instanceof AudioDestinationNode) {
    const ear = new AnalyserNode(to.context);
    const samples = new Float32Array(ear.fftSize);
    connect.call(this, ear);
    const timer = setInterval(() => {
      ear.getFloatTimeDomainData(samples);
      if (!samples.some((sample) => Math.abs(sample) > 0.01)) return;
      clearInterval(timer);
      const { generatedMs } = document.getElementById("page").dataset;
      document.documentElement.dataset.heard ??= generatedMs ? "after it was made" : "while it is made";
    }, 10);
  }
  return connect.call(this, to, ...rest);
};
"""

# Streams break after their first audio, while `broken` is true.
BREAK = """
const send = window.fetch;
window.broken = true;
window.fetch = async (...request) => {
  const answer = await send(...request);
  if (!window.broken || !String(request[0]).includes("/stream/")) return answer;
  const transform = (bytes, stream) => {
    if (document.getElementById("page").dataset.firstByteMs) stream.error(new TypeError("network error"));
    else stream.enqueue(bytes);
  };
  return new Response(answer.body.pipeThrough(new TransformStream({ transform })), { headers: answer.headers });
};
"""

Open = Callable[..., Page]
WITHIN_MS = 1000 * EVENTUALLY_S
expect.set_options(timeout=WITHIN_MS)


@pytest.fixture(scope="module")
def voiced() -> Iterator[ProductionTTSEngine]:
    """An engine with the default voice."""
    with ProductionTTSEngine(EngineConfig(device="cpu", max_batch_size=4)) as engine:
        yield engine


@pytest.fixture(scope="module")
def shown(voiced: ProductionTTSEngine) -> Iterator[Door]:
    """A server with that engine."""
    with serving(voiced) as door:
        yield door


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser, with a fake microphone. Closed after the module, as it has its own event loop."""
    with sync_playwright() as playwright:
        arguments = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, shown: Door) -> Iterator[Open]:
    """Open the page; after the test the console has no error, not even of the security policy."""
    complaints: list[str] = []
    contexts = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def open_page(url: str = shown.url, script: str = "", **options: object) -> Page:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(WITHIN_MS)
        page.add_init_script(EAR + script)
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Generation stops after `FRAMES` steps until this event is set, however slow the browser is."""
    event, numbers, plain = threading.Event(), itertools.count(), LanguageModel.step

    def step(self: LanguageModel, slots: Sequence[int], size: int) -> Any:
        if next(numbers) >= FRAMES:
            event.wait(EVENTUALLY_S)
        return plain(self, slots, size)

    monkeypatch.setattr(LanguageModel, "step", step)
    yield event
    event.set()


def data(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate("({...document.getElementById('page').dataset})")
    return found


def speak(page: Page, text: str, voice: str = "clara") -> None:
    page.get_by_role("textbox", name="Text").fill(text)
    page.get_by_role("radio", name=voice).check()
    page.get_by_role("button", name="Speak").click()


def adding(page: Page) -> Page:
    """Open the dialog that adds a voice."""
    page.get_by_role("button", name="Add a voice").click()
    return page


def upload(page: Page, content: bytes, name: str = "a.wav") -> None:
    file = {"name": name, "mimeType": "audio/wav", "buffer": content}
    page.locator("#add-file").set_input_files(file)


@pytest.mark.slow
@needs_browser
def test_audio_plays_while_it_is_generated_and_every_sample_is_kept(
    visit: Open, voiced: ProductionTTSEngine, more: threading.Event, tmp_path: Path
) -> None:
    """Audio plays before all of it is generated, and the download equals the engine's output."""
    page = visit()
    page.get_by_text("Advanced").click()
    page.get_by_label("Seed").fill("7")

    speak(page, TEXT)
    expect(page.locator("html")).to_have_attribute("data-heard", "while it is made")
    more.set()
    expect(page.locator("main")).to_have_attribute("data-state", "done")
    measured = data(page)
    assert float(measured["firstSoundMs"]) < float(measured["generatedMs"])
    assert float(measured["firstByteMs"]) <= float(measured["firstSoundMs"])
    expect(page.locator("#first-sound")).to_have_text(f"{float(measured['firstSoundMs']) / 1000:.2f} s")
    expect(page.locator("#factor")).to_have_text(re.compile(r"^\d+\.\d\d$"))
    expect(page.get_by_role("status").filter(has_text="Finished")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download", exact=True).click()

    assert download.value.suggested_filename == "the-sky-turned-dark-and.wav"
    download.value.save_as(tmp_path / "said.wav")
    wave, rate = soundfile.read(tmp_path / "said.wav")
    whole = voiced.generate(TEXT, voice="clara", seed=7)
    assert rate == whole.sample_rate
    assert len(wave) == len(whole.audio) == round(float(measured["seconds"]) * rate)
    np.testing.assert_allclose(wave, whole.audio, atol=2 / 32_768)


@each_detail
@needs_browser
def test_stop_cancels_the_request_in_the_engine(
    visit: Open, voiced: ProductionTTSEngine, more: threading.Event
) -> None:
    """Stop ends playback and request, keeps the received audio, and preserves keyboard focus."""
    page = visit()
    speak(page, LONG)
    expect(page.locator("main")).to_have_attribute("data-state", "speaking")
    expect(page.get_by_role("button", name="Stop")).to_be_focused()

    page.keyboard.press("Enter")

    expect(page.locator("main")).to_have_attribute("data-state", "stopped")
    expect(page.get_by_role("button", name="Speak")).to_be_focused()
    expect(page.get_by_role("button", name="Download", exact=True)).to_be_visible()
    assert "generatedMs" not in data(page)
    expect(page.locator("#history-list .about")).to_contain_text("stopped early")
    more.set()
    wait_until(lambda: voiced.health_check()["requests"] == 0)


@each_detail
@needs_browser
def test_audio_whose_stream_broke_is_marked_in_the_history(visit: Open, more: threading.Event) -> None:
    """Audio that arrived whole has no mark."""
    page = visit(script=BREAK)
    speak(page, LONG)
    expect(page.locator("main")).to_have_attribute("data-first-byte-ms", re.compile(r"\d"))
    more.set()

    expect(page.get_by_role("alert")).to_contain_text("The connection was lost. The audio broke off after")
    expect(page.locator("#history-list .about")).to_contain_text(re.compile(r"clara · \d+\.\d s · broke off · seed"))
    page.evaluate("window.broken = false")
    speak(page, "Hello there.")
    expect(page.locator("main")).to_have_attribute("data-state", "done")
    expect(page.locator("#history-list .about").first).to_contain_text(re.compile(r"clara · \d+\.\d s · seed"))


@each_detail
@needs_browser
def test_finished_audio_can_be_replayed_and_seeked(visit: Open) -> None:
    page = visit()
    speak(page, "Hello there.")
    expect(page.locator("main")).to_have_attribute("data-state", "done")
    position = page.get_by_role("slider", name="Position")

    position.press("Home")
    expect(position).to_have_attribute("aria-valuetext", re.compile(r"^0\.0 of \d+\.\d seconds$"))
    page.get_by_role("button", name="Play", exact=True).click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()

    assert float(position.input_value()) == pytest.approx(float(data(page)["seconds"]), abs=0.01)


@needs_browser
def test_an_invalid_value_is_explained_at_its_field(visit: Open) -> None:
    """Numbers are validated before the request; messages are for a visitor, and disappear when the field is edited."""
    page = visit()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    alert, text = page.get_by_role("alert"), page.get_by_role("textbox", name="Text")
    page.get_by_text("Advanced").click()
    for label, wrong in (("Seed", "-1"), ("Temperature", "9"), ("Top-p", "2")):
        field = page.get_by_label(label)
        field.fill(wrong)
        page.get_by_text("Advanced").click()
        speak(page, TEXT)
        expect(alert).to_contain_text(f"{label.lower()} is a", ignore_case=True)
        expect(field).to_be_focused()
        expect(field).to_have_attribute("aria-invalid", "true")
        colors = field.evaluate("(e) => [getComputedStyle(e).outlineColor, getComputedStyle(e).borderColor]")
        assert colors[0] == colors[1]
        field.fill("1")
        expect(alert).to_be_hidden()
    text.fill(" ")
    page.keyboard.press("Control+Enter")
    expect(alert).to_have_text("Write some text first.")
    expect(text).to_be_focused()
    assert "POST" not in sent

    text.fill("a😀")
    expect(page.locator("#count")).to_have_text("2 / 20,000")
    text.fill("a" * 30_000)
    expect(page.locator("#count.over")).to_have_text("30,000 / 20,000")
    page.keyboard.press("Control+Enter")
    expect(alert).to_have_text(
        "The text has 30000 characters; the limit is 20000. Split the text.", use_inner_text=True
    )
    assert page.evaluate("document.getElementById('text').offsetHeight <= innerHeight / 2")


@each_detail
@needs_browser
def test_voices_are_listed_and_can_be_previewed(visit: Open, voiced: ProductionTTSEngine) -> None:
    page = visit()
    expect(page.get_by_role("radio")).to_have_count(len(voiced.voice_names()))
    expect(page.get_by_role("radio", name="default")).to_be_checked()

    listen = page.get_by_role("button", name="Listen to anna")
    listen.click()
    expect(listen).to_have_attribute("aria-pressed", "true")
    expect(page.locator("html")).to_have_attribute("data-heard", re.compile("made"))
    listen.click()

    expect(listen).to_have_attribute("aria-pressed", "false")
    assert data(page) == {"state": "idle"}


@needs_browser
def test_a_recorded_voice_is_added_used_and_deleted(visit: Open, voiced: ProductionTTSEngine) -> None:
    page = adding(visit())
    page.get_by_role("textbox", name="Name").fill("My voice")
    page.get_by_role("button", name="Use the microphone").click()
    expect(page.locator("#record-clock")).to_have_text(re.compile(r"^([2-9]|\d\d) s$"))
    page.get_by_role("button", name="Stop recording").click()
    expect(page.locator("#add-audio")).to_be_visible()
    page.get_by_role("button", name="Add voice").click()

    expect(page.get_by_role("radio", name="my-voice")).to_be_checked()
    expect(page.get_by_role("radio", name="my-voice")).to_be_focused()
    page.get_by_role("textbox", name="Text").fill("Hello.")
    page.keyboard.press("Control+Enter")
    expect(page.locator("main")).to_have_attribute("data-state", "done")
    page.get_by_role("button", name="Delete my-voice").click()
    page.get_by_role("button", name="Delete", exact=True).click()

    expect(page.get_by_role("radio", name="my-voice")).to_have_count(0)
    assert "my-voice" not in voiced.voice_names()


def wav_of(seconds: float) -> bytes:
    """Return a recording of a hum."""
    hum = 0.2 * np.sin(2 * np.pi * 150 * np.arange(round(seconds * 16_000)) / 16_000)
    return encode(hum.astype(np.float32), 16_000, "wav")


@each_detail
@needs_browser
def test_a_short_recording_can_be_a_voice_and_a_deleted_voice_refreshes_the_list(visit: Open, shown: Door) -> None:
    """The README's own sample has 2.7 s; Add may be pressed while it is still being read. Added voices come last."""
    page = adding(visit())
    page.get_by_role("textbox", name="Name").fill("aaron")
    page.get_by_label("Transcript").fill("The wind was strong.")
    page.locator("#add-file").set_input_files(ROOT / "docs" / "voice" / "reference.wav")
    page.get_by_role("button", name="Add voice").click()
    expect(page.get_by_role("radio", name="aaron")).to_be_checked()
    expect(page.get_by_role("radio").last).to_have_value("aaron")
    expect(page.locator(".about").last).to_have_text("added, 2.7 s")

    with shown.client() as client:
        assert client.delete("/v1/voices/aaron").status_code == 204
    speak(page, "Hello.", voice="aaron")
    expect(page.get_by_role("alert")).to_contain_text("Unknown voice 'aaron'")
    expect(page.get_by_role("alert")).to_contain_text("list of voices has been refreshed; choose another")
    expect(page.get_by_role("radio", name="aaron")).to_have_count(0)


@each_detail
@needs_browser
def test_an_existing_voice_can_be_replaced_where_the_error_allows_it(visit: Open) -> None:
    page = visit()
    for _ in range(2):
        page.get_by_role("button", name="Add a voice").click()
        page.get_by_role("textbox", name="Name").fill("hum")
        upload(page, wav_of(5.0))
        expect(page.locator("#add-audio")).to_be_visible()
        page.get_by_label("Transcript").fill("Hm.")
        page.get_by_role("button", name="Add voice").click()
        if page.get_by_role("radio", name="hum").count() == 0:
            expect(page.get_by_role("radio", name="hum")).to_be_checked()

    expect(page.locator("#add-error")).to_contain_text("or tick “Replace an added voice")
    page.get_by_role("checkbox", name="Replace").check()
    page.get_by_role("button", name="Add voice").click()
    expect(page.get_by_text("hum was added.")).to_be_visible()
    page.get_by_role("button", name="Delete hum").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("radio", name="hum")).to_have_count(0)


@each_detail
@needs_browser
@pytest.mark.parametrize("is_kept", [False, True])
def test_the_page_says_whether_added_voices_are_persistent(
    visit: Open, tiny: Path, tmp_path: Path, is_kept: bool
) -> None:
    path = tmp_path if is_kept else None
    with (
        ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", voices_path=path)) as engine,
        serving(engine) as door,
    ):
        engine.add_voice("hum", wav_of(1.0), "Hm.")
        page = adding(visit(door.url))
        expect(page.get_by_label("Add a voice").get_by_text("forgets added voices")).to_be_visible(visible=not is_kept)
        expect(page.locator(".about")).to_have_text("added, 1.0 s")


@each_detail
@needs_browser
def test_missing_parts_of_a_new_voice_are_reported(visit: Open) -> None:
    page = adding(visit())
    send, alert = page.get_by_role("button", name="Add voice"), page.locator("#add-error")

    send.click()
    expect(alert).to_have_text("Give the voice a name.")
    expect(page.get_by_role("textbox", name="Name")).to_be_focused()
    page.get_by_role("textbox", name="Name").fill("one")
    send.click()
    expect(alert).to_have_text("Choose a recording, or use the microphone.")
    upload(page, b"no audio")
    expect(page.locator("#record-note")).to_contain_text("cannot read the file")
    expect(page.locator("#add-audio")).to_be_hidden()
    page.get_by_label("Transcript").fill("Nothing.")
    send.click()
    expect(alert).not_to_be_empty()
    page.keyboard.press("Escape")

    expect(page.get_by_role("button", name="Add a voice")).to_be_focused()


@needs_browser
def test_the_api_key_is_requested_and_stored_in_the_tab_only(visit: Open, voiced: ProductionTTSEngine) -> None:
    with serving(voiced, api_key="open sesame") as door:
        page = visit(door.url)
        expect(page.get_by_role("alert")).to_have_text("This server requires an API key.")
        expect(page.get_by_label("API key")).to_be_focused()
        page.get_by_label("API key").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_have_text("The server does not accept this API key.")
        expect(page.get_by_label("API key")).to_be_focused()
        page.get_by_label("API key").fill("open sesame")
        page.keyboard.press("Enter")

        expect(page.get_by_role("radio").first).to_be_visible()
        expect(page.get_by_label("API key")).to_be_hidden()
        kept = page.evaluate("[Object.values(sessionStorage), localStorage.length, document.cookie]")
        assert kept == [["open sesame"], 0, ""]


@each_detail
@needs_browser
def test_the_page_fits_a_phone(visit: Open) -> None:
    """At 360 px nothing scrolls sideways, and buttons are 44 px high, also in the dialog and with a history."""
    page = visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True)
    expect(page.get_by_text("Samples")).to_be_in_viewport()
    expect(page.get_by_role("radio").first).to_be_visible()
    rows = page.evaluate("[...document.querySelectorAll('.voice')].map((e) => e.getBoundingClientRect().height)")
    assert max(rows) - min(rows) < 1
    page.get_by_text("Advanced").tap()
    speak(page, "Hello there.")
    expect(page.locator("main")).to_have_attribute("data-state", "done")

    for opener in (None, "Add a voice"):
        if opener:
            page.get_by_role("button", name=opener).tap()
        wide = page.evaluate(
            "[...document.querySelectorAll('html, dialog[open]')].map((e) => e.scrollWidth - e.clientWidth)"
        )
        assert all(more <= 0 for more in wide)
        sizes = page.evaluate(
            "[...document.querySelectorAll('button, select')].map((e) => e.getBoundingClientRect().height)"
        )
        assert all(height == 0 or height >= 44 for height in sizes)


@needs_browser
def test_every_control_is_reachable_by_keyboard_in_order_and_has_a_name(
    visit: Open, voiced: ProductionTTSEngine
) -> None:
    page = visit()
    expect(page.get_by_role("radio").first).to_be_visible()
    reached = []
    for _ in range(14 + len(voiced.voice_names())):
        page.keyboard.press("Tab")
        name = "e.labels?.[0]?.textContent || e.getAttribute('aria-label') || e.textContent"
        reached.append(page.evaluate(f"((e) => ({name}).trim().replace(/\\s+/g, ' '))(document.activeElement)"))

    voices = [name for name in reached if name.startswith("Listen to")]
    assert reached[:6] == ["Or call the API", "Text", "Story", "Numbers", "Questions", "Dialogue"]
    assert reached[6:12] == ["Speed", "Markup", "Download as", "Speak", "Voice: julia", "Advanced"]
    in_order = sorted(voiced.voices(), key=lambda info: not info.is_default)
    assert voices == [f"Listen to {info.name}" for info in in_order]
    assert reached[-1] == "Add a voice"
    assert page.locator("html").get_attribute("lang") == "en"
    page.get_by_role("radio", name="clara").check()
    expect(page.locator("#chosen")).to_have_text("Voice: clara")


@needs_browser
def test_messages_of_the_server_name_what_the_page_shows_and_no_field_of_the_api(visit: Open) -> None:
    said = visit().evaluate(
        """async () => {
          const { inWords } = await import("/static/errors.js");
          const say = (field, reason, isNewVoice) => inWords({ field, message: `${field}: ${reason}` }, isNewVoice);
          return [
            say("voice_settings.speed", "9: input should be less than or equal to 4"),
            say("text", "line 1, column 7: <a> is not closed"),
            say("text", `this voice cannot pronounce '你'. Remove it, or set on_unsupported to "skip".`),
            say("top_p", "is not supported by this model, which does not sample; omit it"),
            say("text", "is empty; provide the exact words of the recording", true),
            say("name", "'hum' already exists; choose a different name, or set replace", true),
            inWords({ field: null, message: "the error was logged with this request_id", request_id: "r1" }),
            inWords({ field: null, message: "the file is 9 bytes; compress it or raise S1_MINI_MAX_REFERENCE_BYTES" }),
          ];
        }"""
    )

    assert said == [
        "The speed should be less than or equal to 4, not 9.",
        "Line 1, column 7: <a> is not closed.",
        "This voice cannot pronounce '你'. Remove it, or press “Speak the rest”.",
        "Top-p is not supported by this model, which does not sample; omit it.",
        "The transcript is empty; provide the exact words of the recording.",
        "'hum' already exists; choose a different name, or tick “Replace an added voice of this name”.",
        "The error was logged as r1.",
        "The file is 9 bytes; compress it.",
    ]


@each_detail
@needs_browser
def test_text_and_choices_are_restored_and_visible_after_a_reload(visit: Open, voiced: ProductionTTSEngine) -> None:
    page = visit(viewport={"width": 1280, "height": 720})
    last = [info.name for info in voiced.voices() if not info.is_default][-1]
    page.get_by_role("radio", name=last).check()
    text = page.get_by_role("textbox", name="Text")
    example = text.input_value()

    text.fill("Not lost.")
    page.reload()
    expect(text).to_have_value("Not lost.")
    expect(page.get_by_role("radio", name=last)).to_be_checked()
    expect(page.get_by_role("radio", name=last)).to_be_in_viewport(ratio=1)
    text.fill("")
    page.evaluate("localStorage.setItem('s1_mini.voice', 'nobody')")
    page.reload()
    expect(text).to_have_value(example)
    expect(page.get_by_role("radio", name="default")).to_be_checked()


@each_detail
@needs_browser
def test_the_page_works_without_browser_storage(visit: Open, voiced: ProductionTTSEngine) -> None:
    """As with cookies blocked: even reading the storage raises."""
    with serving(voiced, api_key="open sesame") as door:
        page = visit()
        page.add_init_script(
            "for (const name of ['localStorage', 'sessionStorage'])"
            "  Object.defineProperty(window, name, { get() { throw new DOMException('no', 'SecurityError'); } });"
        )
        page.goto(door.url)
        page.get_by_label("API key").fill("open sesame")
        page.keyboard.press("Enter")
        expect(page.get_by_role("radio").first).to_be_visible()
        speak(page, "Hello there.")
        expect(page.locator("main")).to_have_attribute("data-state", "done")


@each_detail
@needs_browser
def test_the_page_works_for_a_checkpoint_without_voices(visit: Open, door: Door) -> None:
    page = visit(door.url)
    expect(page.get_by_text("no named voices")).to_be_visible()

    page.get_by_role("textbox", name="Text").fill(TEXT)
    page.get_by_role("button", name="Speak").click()
    expect(page.locator("html")).to_have_attribute("data-heard", re.compile("made"))
    page.keyboard.press("Escape")

    expect(page.get_by_role("button", name="Speak")).to_be_visible()


@each_detail
@needs_browser
def test_the_page_names_the_model_and_offers_its_options(visit: Open, shown: Door, tmp_path: Path) -> None:
    """A mel model cannot clone from recordings and does not sample: the page offers voice files, and no temperature."""
    write_random_checkpoint(tmp_path / "noise")
    vector, file = np.random.default_rng(0).standard_normal(512).astype(np.float32), io.BytesIO()
    np.save(file, vector)
    built_in = visit(shown.url)
    expect(built_in.get_by_text("Built-in English voice.")).to_be_visible()
    default = built_in.evaluate("fetch('health').then((answer) => answer.json()).then(({model}) => model.defaults)")
    expect(built_in.get_by_label("Temperature")).to_have_attribute("placeholder", f"{default['temperature']:g}")
    config = EngineConfig(checkpoint_path=tmp_path / "noise", device="cpu")
    with ProductionTTSEngine(config) as engine, serving(engine) as other:
        page = visit(other.url)
        expect(page.get_by_text("Model: SpeechT5 (noise).")).to_be_visible()
        page.get_by_text("Advanced").click()
        expect(page.get_by_label("Seed")).to_be_visible()
        expect(page.get_by_label("Temperature")).to_be_hidden()
        page.get_by_role("button", name="Add a voice").click()
        expect(page.get_by_role("button", name="microphone")).to_be_hidden()
        expect(page.get_by_label("Transcript")).to_be_hidden()
        page.get_by_role("textbox", name="Name").fill("mine")
        page.get_by_label("Voice file").set_input_files(
            {"name": "mine.npy", "mimeType": "application/octet-stream", "buffer": file.getvalue()}
        )
        page.get_by_role("button", name="Add voice").click()
        expect(page.locator(".about").last).to_have_text("added")
        speak(page, TEXT, voice="mine")  # long enough that a slow browser hears some of it
        expect(page.locator("html")).to_have_attribute("data-heard", re.compile("made"))
        page.keyboard.press("Escape")


def test_the_page_runs_its_own_files_only(http: httpx2.Client) -> None:
    page = http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<style|style=|<script(?![^>]* src=)|\son\w+=|https?://(?!www\.w3\.org)", page.text)

    for name in re.findall(r'"(static/[^"]+)"', page.text):
        assert http.get(f"/{name}").status_code == 200
    script = http.get("/static/page.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    known = http.get("/static/page.js", headers={"If-None-Match": script.headers["etag"]})
    assert (known.status_code, known.content) == (304, b"")
    assert http.head("/").status_code == 200


@pytest.mark.parametrize("name", ["..%2fpage.py", "nothing.js", "%00.js", "x" * 5000 + ".js"])
def test_no_other_file_is_served(http: httpx2.Client, name: str) -> None:
    answer = http.get(f"/static/{name}")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"
