// The page: text and voice in, speech out while it is made. Its measurements stand in data attributes of <main>.

import { Adding } from "./adding.js";
import { ApiError, keepKey, readHealth, speak } from "./api.js";
import { Clip } from "./clip.js";
import { element, setIcon, swap } from "./dom.js";
import { keep, recall } from "./kept.js";
import { Player, audioContext } from "./player.js";
import { Voices } from "./voices.js";
import { Wave } from "./wave.js";

const CHARACTERS_PER_S = 15; // of English speech; only for the width of the wave while its length is unknown
const TEXT = "s1_mini.text"; // what was written last, in this browser
const FIELDS = { text: "text", seed: "seed", temperature: "temperature", top_p: "top-p" };

const page = element("page");
const player = new Player();
const wave = new Wave(element("wave"));
const voices = new Voices();
const adding = new Adding();
let clip = null;
let abort = null;
let asked = 0; // when Speak was pressed, by performance.now()

function request() {
  const number = (id) => (element(id).value === "" ? undefined : Number(element(id).value));
  return {
    text: element("text").value,
    voice: voices.chosen,
    seed: number("seed"),
    temperature: number("temperature"),
    top_p: number("top-p"),
  };
}

async function start() {
  if (abort) return;
  showError(null);
  if (!element("text").value.trim()) return showError(new ApiError("Write some text first.", { field: "text" }));
  const wrong = Object.keys(FIELDS).find((field) => !element(FIELDS[field]).validity.valid);
  if (wrong) return showError(new ApiError(element(FIELDS[wrong]).dataset.wrong, { field: wrong }));
  voices.stop();
  player.pause();
  audioContext(clip?.rate ?? 44100); // within the click
  const body = request();
  begin(body.text);
  try {
    await receive(await speak(body, abort.signal));
    if (!clip.length) throw new ApiError("The server sent no audio.");
    enter("playing", "Speaking…");
  } catch (error) {
    if (page.dataset.state === "stopped") return;
    player.pause();
    const cut = clip?.length ? ` The audio broke off after ${clip.seconds.toFixed(1)} s.` : "";
    showError(error instanceof ApiError ? error : new ApiError("The connection was lost."), cut);
    enter("failed", "");
  } finally {
    end();
  }
}

function begin(text) {
  abort = new AbortController();
  asked = performance.now();
  clip = null;
  for (const name of Object.keys(page.dataset)) delete page.dataset[name];
  Object.assign(wave, { clip: null, position: 0, expected: 0.5 + text.length / CHARACTERS_PER_S });
  wave.draw();
  element("position").disabled = true;
  element("position").value = 0;
  for (const id of ["play", "download"]) element(id).hidden = true;
  element("figures").classList.add("unseen");
  element("clock").textContent = "";
  element("progress").classList.remove("unseen");
  element("progress").removeAttribute("value");
  enter("waiting", "Waiting for the first audio…");
}

/** Read the stream to its end; every piece is played and drawn as it comes. */
async function receive(response) {
  clip = wave.clip = new Clip(Number(response.headers.get("X-Sample-Rate")));
  player.open(clip);
  player.play();
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    page.dataset.firstByteMs ??= since(performance.now());
    clip.append(value);
    element("progress").value = clip.seconds / Math.max(wave.expected, 1.05 * clip.seconds);
    player.feed();
    wave.draw();
  }
  page.dataset.generatedMs = since(performance.now());
}

/** After a complete or failed fetch, the received audio can be played and saved. */
function end() {
  abort = null;
  element("progress").classList.add("unseen");
  wave.expected = 0;
  if (clip?.length) {
    clip.ended = true;
    page.dataset.seconds = clip.seconds.toFixed(3);
    page.dataset.gaps = player.gaps;
    if (page.dataset.generatedMs) page.dataset.factor = (page.dataset.generatedMs / 1000 / clip.seconds).toFixed(3);
    offerDownload();
    const position = element("position");
    Object.assign(position, { max: clip.seconds, disabled: false });
    player.feed();
  }
  if (["stopped", "failed"].includes(page.dataset.state)) settle();
  showFigures();
  showPosition();
}

function stop() {
  const { state } = page.dataset;
  if (!["waiting", "speaking", "playing"].includes(state)) return;
  const heard = player.position;
  enter("stopped", heard ? `Stopped after ${heard.toFixed(1)} s.` : "Stopped.");
  abort?.abort();
  player.pause();
  settle();
}

/** Back to where Speak can be pressed. */
function settle() {
  swap(element("stop"), element("speak"));
  element("play").hidden = !clip?.length;
  showPlay();
}

function enter(state, words) {
  page.dataset.state = state;
  element("status").textContent = words;
  if (["waiting", "speaking", "playing"].includes(state)) swap(element("speak"), element("stop"));
}

function offerDownload() {
  const link = element("download");
  if (link.href) URL.revokeObjectURL(link.href);
  const words = element("text").value.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? ["speech"];
  link.href = URL.createObjectURL(clip.wav());
  link.download = `${words.slice(0, 5).join("-").slice(0, 60)}.wav`;
  link.hidden = false;
}

function showFigures() {
  const { firstSoundMs, factor } = page.dataset;
  element("first-sound").textContent = firstSoundMs ? `${(firstSoundMs / 1000).toFixed(2)} s` : "–";
  element("factor").textContent = factor ? Number(factor).toFixed(2) : "–";
  element("figures").classList.toggle("unseen", !firstSoundMs);
}

function showPosition() {
  if (!clip?.length) return;
  wave.position = player.position;
  wave.draw();
  element("position").value = player.position;
  element("position").setAttribute("aria-valuetext", `${player.position.toFixed(1)} of ${clip.seconds.toFixed(1)} seconds`);
  element("clock").textContent = `${player.position.toFixed(1)} / ${clip.seconds.toFixed(1)} s`;
}

function showPlay() {
  setIcon(element("play"), player.playing ? "pause" : "play");
  element("play").querySelector("span").textContent = player.playing ? "Pause" : "Play";
}

function showError(error, more = "") {
  for (const id of Object.values(FIELDS)) element(id).removeAttribute("aria-invalid");
  const isGone = error?.code === "voice_not_found"; // another client deleted it
  const hint = isGone ? " The list of voices has been refreshed; choose another voice." : "";
  element("error").textContent = error ? error.message + more + hint : "";
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

/** Show the name of the model, and only the parameters that it supports. */
async function showModel() {
  const { model, checkpoint, origin } = await readHealth().catch(() => ({}));
  if (!model) return;
  const name = origin?.repository ?? checkpoint.split(/[\\/]/).pop();
  element("model").textContent = model.built_in ? "Built-in English voice." : `Model: ${model.family} (${name}).`;
  for (const name of ["temperature", "top_p"].filter((other) => !model.sampling.includes(other))) {
    element(FIELDS[name]).value = "";
    element(FIELDS[name]).closest(".field").hidden = true;
  }
  if (!model.clones) adding.takeFiles();
}

function since(moment) {
  return (moment - asked).toFixed(0);
}

player.addEventListener("sound", ({ detail }) => {
  if (!abort && page.dataset.firstSoundMs) return;
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
  if (page.dataset.state === "playing") enter("done", `Finished: ${clip.seconds.toFixed(1)} s of audio.`);
  settle();
  showPosition();
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
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) start();
});
element("text").addEventListener("input", ({ target }) => keep("localStorage", TEXT, target.value));
element("advanced").addEventListener("toggle", ({ target }) => {
  if (target.open) target.scrollIntoView({ block: "nearest" }); // it may open below the edge of the window
});
element("text").value = recall("localStorage", TEXT) ?? element("text").value;
wave.draw();
voices.load();
