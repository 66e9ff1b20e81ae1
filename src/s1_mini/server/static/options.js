// The fields that describe a request, and the sample texts. The browser keeps their values.

import { element, write } from "./dom.js";
import { keep, recall } from "./kept.js";

const SPEEDS = [0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 4]; // by position of the slider
const KEPT = ["text", "speed", "markup", "format"];

/** The request that the fields describe, always with a seed, so that the same audio can be generated again. */
export function readRequest(voice) {
  const number = (id) => (element(id).value === "" ? undefined : Number(element(id).value));
  return {
    text: element("text").value,
    text_type: element("markup").value,
    voice,
    speed: SPEEDS[element("speed").value],
    seed: number("seed") ?? crypto.getRandomValues(new Uint32Array(1))[0],
    temperature: number("temperature"),
    top_p: number("top-p"),
    language: element("language").value || undefined,
    instructions: element("instructions").value || undefined,
  };
}

/** Restore the fields and handle their events; the sample with two voices needs the list of voices. */
export function startOptions(voices) {
  for (const id of KEPT) {
    const field = element(id);
    const initial = field.value;
    field.value = recall("localStorage", `s1_mini.${id}`) ?? initial;
    if (!field.value) field.value = initial; // an option that no longer exists
    field.addEventListener("input", () => keep("localStorage", `s1_mini.${id}`, field.value));
  }
  element("speed").addEventListener("input", showSpeed);
  element("markup").addEventListener("input", showMarkup);
  element("samples").addEventListener("click", ({ target }) => {
    if (target.matches("button")) showSample(target, target.dataset.text ?? dialogue(voices));
  });
  voices.addEventListener("loaded", () => {
    element("dialogue").hidden = voices.rows.size < 2;
  });
  voices.addEventListener("insert", ({ detail: name }) => write(element("text"), `[${name}] `));
  showSpeed();
  showMarkup();
}

/** Show only the options that the model supports, with its defaults. The argument is `model` in `/health`. */
export function showSupported({ sampling, defaults, languages, instructions }) {
  const show = (id, isSupported) => {
    element(id).closest(".field").hidden = !isSupported;
    if (!isSupported) element(id).value = "";
  };
  for (const [id, name] of [["temperature", "temperature"], ["top-p", "top_p"]]) {
    show(id, sampling.includes(name));
    element(id).placeholder = defaults[name] ?? "";
  }
  const field = element("language");
  const { value } = field;
  field.length = 1;
  for (const name of languages) field.add(new Option(name[0].toUpperCase() + name.slice(1), name));
  field.value = languages.includes(value) ? value : "";
  show("language", languages.length > 0);
  show("instructions", instructions);
}

function showSpeed() {
  const speed = SPEEDS[element("speed").value];
  element("speed-value").textContent = `${speed}×`;
  element("speed").setAttribute("aria-valuetext", `${speed} times`);
}

function showMarkup() {
  const { value, selectedOptions } = element("markup");
  element("markup-hint").textContent = selectedOptions[0].dataset.hint;
  element("keys-hint").hidden = value !== "text";
  element("voices").dataset.markup = value; // shows the buttons that insert the name of a voice
}

/** Replace the text and the markup by those of a sample. */
function showSample(button, text) {
  element("markup").value = button.dataset.markup ?? "text";
  element("markup").dispatchEvent(new Event("input", { bubbles: true }));
  element("text").select();
  write(element("text"), text);
  button.focus();
}

function dialogue({ rows, chosen: one }) {
  const other = [...rows.keys()].find((name) => name !== one);
  return `[${one}] Did you hear that? [${other}] Hear what? [pause 0.5s] [${one}] There it is again!`;
}
