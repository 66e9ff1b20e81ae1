// The page: speaks a text with a voice and plays the audio while it is generated. Measurements are data attributes of <main>.

import { Adding } from "./adding.js";
import { ApiError, keepKey, readHealth, speak, speakFile } from "./api.js";
import { Clip } from "./clip.js";
import { element, save, setIcon, swap } from "./dom.js";
import { History } from "./history.js";
import { readRequest, showSupported, startOptions } from "./options.js";
import { Player, audioContext } from "./player.js";
import { Voices } from "./voices.js";
import { Wave } from "./wave.js";
import { Words, showWord } from "./words.js";

const CHARACTERS_PER_S = 15; // of English speech; used for the width of the waveform while its duration is unknown
const FIELDS = {
  text: "text",
  seed: "seed",
  temperature: "temperature",
  top_p: "top-p",
  language: "language",
  instructions: "instructions",
};
const ACTIVE = ["waiting", "speaking", "playing"]; // states in which Stop is shown

const page = element("page");
const player = new Player();
const wave = new Wave(element("wave"));
const voices = new Voices();
const adding = new Adding();
const history = new History();
let current = null; // {body, clip, words, warning, cut}: the audio that is being generated, or was played last
let word = null; // the highlighted word of the current text
let abort = null; // AbortController of the speech request
let saving = null; // AbortController of a download
let asked = 0; // when Speak was pressed, by performance.now()

/** Speak the text; `skips` leaves out characters that the voice cannot pronounce. */
async function start(skips = false) {
  if (abort) return;
  showError(null);
  if (!element("text").value.trim()) return showError(new ApiError("Write some text first.", { field: "text" }));
  const wrong = Object.keys(FIELDS).find((field) => !element(FIELDS[field]).validity.valid);
  if (wrong) return showError(new ApiError(element(FIELDS[wrong]).dataset.wrong, { field: wrong }));
  voices.stop();
  player.pause();
  audioContext(current?.clip?.rate ?? 44100); // created during the click, otherwise browsers keep it silent
  const speech = begin({ ...readRequest(voices.chosen), on_unsupported: skips ? "skip" : "error" });
  const { signal } = abort;
  try {
    await receive(speech, await speak(speech.body, signal), signal);
    if (!speech.clip.length) throw new ApiError("The server sent no audio.");
    enter("playing", "Speaking…");
  } catch (error) {
    speech.cut = signal.aborted ? "stopped early" : "broke off";
    if (signal.aborted) return;
    player.pause();
    const { clip } = speech;
    const cut = clip?.length ? ` The audio broke off after ${clip.seconds.toFixed(1)} s.` : "";
    showError(error instanceof ApiError ? error : new ApiError("The connection was lost."), cut);
    enter("failed", "");
  } finally {
    end(speech);
  }
}

function begin(body) {
  abort = new AbortController();
  asked = performance.now();
  highlight(null);
  current = { body, clip: null, words: new Words(body.text, body.text_type), warning: "", cut: "" };
  for (const name of Object.keys(page.dataset)) delete page.dataset[name];
  const expected = 0.5 + body.text.length / CHARACTERS_PER_S / body.speed;
  Object.assign(wave, { clip: null, position: 0, expected });
  wave.draw();
  element("position").disabled = true;
  element("position").value = 0;
  for (const id of ["play", "download"]) element(id).hidden = true;
  element("figures").classList.add("unseen");
  element("clock").textContent = "";
  element("progress").classList.remove("unseen");
  element("progress").removeAttribute("value");
  enter("waiting", "Waiting for the first audio…");
  return current;
}

/** Read the stream to its end; play and draw every piece as it arrives. */
async function receive(speech, { rate, warning, pieces }, signal) {
  const clip = (speech.clip = wave.clip = new Clip(rate));
  speech.warning = warning;
  player.open(clip);
  player.play();
  for await (const { bytes, alignment } of pieces) {
    signal.throwIfAborted();
    page.dataset.firstByteMs ??= since(performance.now());
    if (alignment) speech.words.add(alignment);
    clip.append(bytes);
    element("progress").value = clip.seconds / Math.max(wave.expected, 1.05 * clip.seconds);
    player.feed();
    wave.draw();
  }
  signal.throwIfAborted();
  page.dataset.generatedMs = since(performance.now());
}

/** Finish a request that is complete, failed or aborted: its received audio can now be played and saved. */
function end(speech) {
  const { clip } = speech;
  abort = null;
  if (clip?.length) {
    clip.end();
    history.add(speech);
  }
  if (speech !== current) return; // a replay has stopped this stream
  if (clip?.length) {
    if (page.dataset.generatedMs) page.dataset.factor = (page.dataset.generatedMs / 1000 / clip.seconds).toFixed(3);
    page.dataset.gaps = player.gaps;
    offer();
    player.feed();
  }
  element("progress").classList.add("unseen");
  if (!ACTIVE.includes(page.dataset.state)) settle();
  showFigures();
  showPosition();
}

/** Enable seeking and download of the current clip, which is complete. */
function offer() {
  const { clip } = current;
  page.dataset.seconds = clip.seconds.toFixed(3);
  Object.assign(wave, { clip, expected: 0 });
  Object.assign(element("position"), { max: clip.seconds, disabled: false });
  element("download").hidden = false;
}

/** Play or pause an item of the history. */
function replay(speech) {
  if (speech === current && player.playing) return player.pause();
  stop();
  showError(null);
  if (speech !== current) {
    highlight(null);
    current = speech;
    for (const name of Object.keys(page.dataset)) delete page.dataset[name];
    player.open(speech.clip);
    offer();
    element("progress").classList.add("unseen");
    showFigures();
    enter("done", `From the history: ${speech.clip.seconds.toFixed(1)} s${speech.cut && `, ${speech.cut}`}.`);
    settle();
  }
  player.play();
}

/** Save an item in the chosen format. For formats other than wav, generate it again with the same seed. */
async function download({ body, clip }) {
  const format = element("format").value;
  const words = body.text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["speech"];
  const name = `${words.slice(0, 5).join("-").slice(0, 60)}.${format}`;
  if (format === "wav") return save(clip.wav(), name);
  saving?.abort();
  saving = new AbortController();
  const { signal } = saving;
  const status = element("status");
  status.textContent = `Generating ${format}…`;
  try {
    const { file, seconds } = await speakFile(body, format, signal);
    save(file, name);
    const isSame = Math.abs(seconds - clip.seconds) < 0.01;
    const differs = ` The audio was generated again and takes ${seconds.toFixed(1)} s; what you heard takes ${clip.seconds.toFixed(1)} s. To save exactly what you heard, choose wav.`;
    status.textContent = `Saved as ${format}.${isSame ? "" : differs}`;
  } catch (error) {
    if (signal.aborted) return;
    status.textContent = "";
    showError(error);
  }
}

function stop() {
  const { state } = page.dataset;
  if (!ACTIVE.includes(state)) return;
  const heard = player.position;
  enter("stopped", heard ? `Stopped after ${heard.toFixed(1)} s.` : "Stopped.");
  abort?.abort();
  player.pause();
  settle();
}

/** Return to the state in which Speak can be pressed. */
function settle() {
  swap(element("stop"), element("speak"));
  element("play").hidden = !current?.clip?.length;
  showPlay();
}

function enter(state, words) {
  page.dataset.state = state;
  element("status").textContent = words;
  if (ACTIVE.includes(state)) swap(element("speak"), element("stop"));
}

function showFigures() {
  const { firstSoundMs, factor } = page.dataset;
  element("first-sound").textContent = firstSoundMs ? `${(firstSoundMs / 1000).toFixed(2)} s` : "–";
  element("factor").textContent = factor ? Number(factor).toFixed(2) : "–";
  element("figures").classList.toggle("unseen", !firstSoundMs);
}

function showPosition() {
  const clip = current?.clip;
  if (!clip?.length) return;
  const { position } = player;
  wave.position = position;
  wave.draw();
  element("position").value = position;
  element("position").setAttribute("aria-valuetext", `${position.toFixed(1)} of ${clip.seconds.toFixed(1)} seconds`);
  element("clock").textContent = `${position.toFixed(1)} / ${clip.seconds.toFixed(1)} s`;
  const spoken = current.words.at(position);
  if (spoken !== word) highlight(spoken);
}

/** Highlight a word of the current text in the history, and in the text field unless its text was changed. */
function highlight(spoken) {
  word = spoken;
  if (!current) return;
  const { text } = current.body;
  showWord(element("echo"), text, element("text").value === text ? word : null, element("text"));
  element("echo").scrollTop = element("text").scrollTop;
  history.show(current, player.playing, word);
}

function showPlay() {
  setIcon(element("play"), player.playing ? "pause" : "play");
  element("play").querySelector("span").textContent = player.playing ? "Pause" : "Play";
  history.show(current, player.playing, word);
}

function showError(error, more = "") {
  for (const id of Object.values(FIELDS)) element(id).removeAttribute("aria-invalid");
  const isGone = error?.code === "voice_not_found"; // another client deleted the voice
  const hint = isGone ? " The list of voices has been refreshed; choose another voice." : "";
  element("error").textContent = error ? error.message + more + hint : "";
  element("skip-row").hidden = !error?.canSkip;
  if (isGone) voices.load();
  if (error?.status === 401) {
    element("key-form").hidden = false;
    element("key").focus();
  }
  const field = error && FIELDS[error.field] && element(FIELDS[error.field]);
  if (!field) return;
  if (field.closest("details")) element("advanced").open = true;
  field.setAttribute("aria-invalid", "true");
  field.focus();
}

/** Show the name of the model, and only the options that it supports. */
async function showModel() {
  const { model, checkpoint, origin } = await readHealth().catch(() => ({}));
  if (!model) return;
  const name = origin?.repository ?? checkpoint.split(/[\\/]/).pop();
  element("model").textContent = model.built_in ? "Built-in English voice." : `Model: ${model.family} (${name}).`;
  showSupported(model);
  showCount(model.max_text_length);
  if (!model.clones) adding.takeFiles();
}

function showCount(most = element("count").dataset.most) {
  const count = Array.from(element("text").value).length; // as the server counts
  const shown = (number) => Number(number).toLocaleString("en");
  Object.assign(element("count").dataset, most && { most });
  element("count").textContent = most ? `${shown(count)} / ${shown(most)}` : shown(count);
  element("count").classList.toggle("over", count > most);
}

function since(moment) {
  return (moment - asked).toFixed(0);
}

player.addEventListener("sound", ({ detail }) => {
  if (!ACTIVE.includes(page.dataset.state)) return; // a replay, which is not measured
  page.dataset.firstSoundMs ??= since(detail);
  if (page.dataset.state === "waiting") enter("speaking", "Speaking…");
  showFigures();
});
player.addEventListener("tick", showPosition);
player.addEventListener("play", () => {
  voices.stop();
  showPlay();
});
player.addEventListener("pause", showPlay);
player.addEventListener("finish", () => {
  if (page.dataset.state === "playing") enter("done", `Finished: ${current.clip.seconds.toFixed(1)} s. ${current.warning}`);
  settle();
  showPosition();
  highlight(null);
});
voices.addEventListener("listen", () => {
  stop();
  player.pause();
  showError(null);
});
voices.addEventListener("loaded", showModel);
voices.addEventListener("error", ({ detail }) => showError(detail));
adding.addEventListener("unauthorized", ({ detail }) => showError(detail));
adding.addEventListener("added", async ({ detail: name }) => {
  await voices.choose(name);
  voices.note(`${name} was added.`);
  element("voice-list").querySelector(":checked")?.focus();
});

element("speak-form").addEventListener("submit", (event) => {
  event.preventDefault();
  start();
});
for (const id of ["speak-form", "key-form"]) {
  element(id).addEventListener("input", ({ target }) => {
    if (target !== element("position")) showError(null);
  });
}
element("stop").addEventListener("click", stop);
element("skip").addEventListener("click", () => start(true));
history.addEventListener("play", ({ detail }) => replay(detail));
history.addEventListener("save", ({ detail }) => download(detail));
element("download").addEventListener("click", () => download(current));
element("play").addEventListener("click", () => (player.playing ? player.pause() : player.play()));
element("position").addEventListener("input", ({ target }) => player.seek(Number(target.value)));
element("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepKey(element("key").value);
  element("key-form").hidden = true;
  element("key").value = "";
  element("text").focus();
  showError(null);
  voices.load();
});
document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    stop();
    player.pause();
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
});
element("text").addEventListener("input", () => {
  highlight(word); // the text has changed
  showCount();
});
element("text").addEventListener("scroll", ({ target }) => {
  element("echo").scrollTop = target.scrollTop;
});
element("advanced").addEventListener("toggle", ({ target }) => {
  if (target.open) target.scrollIntoView({ block: "nearest" }); // it may open below the edge of the window
});
startOptions(voices);
showCount();
wave.draw();
voices.load();
