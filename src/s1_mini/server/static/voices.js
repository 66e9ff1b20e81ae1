// The list of voices: select a voice, listen to it, delete an added voice.

import { deleteVoice, listVoices, speak } from "./api.js";
import { Clip } from "./clip.js";
import { Player, audioContext } from "./player.js";
import { element, setIcon } from "./dom.js";
import { keep, recall } from "./kept.js";

const RETRY_S = 3;
const VOICE = "s1_mini.voice"; // the voice that was selected last in this browser

/** Fires `loaded`, `error` with an error, `listen` when a sample of a voice begins, and `insert` with a voice's name. */
export class Voices extends EventTarget {
  player = new Player();
  clips = new Map(); // complete samples of voices, by name
  rows = new Map();
  auditioned = null;

  constructor() {
    super();
    for (const event of ["finish", "pause"]) this.player.addEventListener(event, () => this.show(null));
    element("delete-yes").addEventListener("click", () => this.deleteChosen());
    element("voice-list").addEventListener("change", ({ target }) => {
      keep("localStorage", VOICE, target.value);
      this.showChosen();
    });
  }

  get chosen() {
    return element("voice-list").querySelector(":checked")?.value;
  }

  choose(name) {
    keep("localStorage", VOICE, name);
    return this.load(name);
  }

  /** Request the list, repeatedly while the engine is starting; keep the selection or set it. */
  async load(choose = this.chosen ?? recall("localStorage", VOICE)) {
    clearTimeout(this.retry);
    try {
      const { voices, keeps_added: keepsAdded } = await listVoices();
      element("add-kept").hidden = keepsAdded;
      this.fill(voices, choose);
      this.fire("loaded");
    } catch (error) {
      const again = error.status === 503 || error.status === 0;
      this.note(again ? error.message : "");
      if (again) this.retry = setTimeout(() => this.load(choose), 1000 * Math.min(error.retryAfter ?? RETRY_S, 10));
      else this.fire("error", error);
    }
  }

  fill(voices, choose) {
    const picked = voices.find(({ name }) => name === choose) ?? voices.find((voice) => voice.is_default) ?? voices[0];
    const rank = (voice) => (isAdded(voice) ? 1 : voice.is_default ? -1 : 0); // default first, added ones last
    const ordered = [...voices].sort((one, other) => rank(one) - rank(other));
    this.rows = new Map(ordered.map((voice) => [voice.name, this.row(voice, voice === picked)]));
    element("voice-list").replaceChildren(...this.rows.values());
    element("voices").setAttribute("aria-busy", "false");
    this.showChosen();
    this.note(voices.length ? "" : "This checkpoint has no named voices. To choose a voice, add one.");
  }

  row(voice, checked) {
    const row = element("voice-row").content.firstElementChild.cloneNode(true);
    Object.assign(row.querySelector("input"), { value: voice.name, checked });
    row.querySelector(".name").textContent = voice.name;
    row.querySelector(".about").textContent = row.querySelector(".about").title = about(voice);
    const listen = row.querySelector(".listen");
    listen.setAttribute("aria-label", `Listen to ${voice.name}`);
    listen.addEventListener("click", () => this.listen(voice.name));
    const insert = row.querySelector(".insert");
    insert.ariaLabel = insert.title = `Insert [${voice.name}] into the text`;
    insert.addEventListener("click", () => this.fire("insert", voice.name));
    const bin = row.querySelector(".delete");
    bin.hidden = !isAdded(voice);
    bin.setAttribute("aria-label", `Delete ${voice.name}`);
    bin.addEventListener("click", () => this.askToDelete(voice.name));
    return row;
  }

  /** Play a short sentence in this voice, or stop the sentence if it is playing. */
  async listen(name) {
    const stops = this.auditioned === name;
    this.stop();
    if (stops) return;
    const kept = this.clips.get(name);
    audioContext(kept?.rate ?? 44100);
    this.fire("listen");
    this.show(name);
    if (kept) this.begin(kept);
    else await this.fetch(name);
  }

  stop() {
    this.abort?.abort();
    this.player.pause();
    this.show(null);
  }

  async fetch(name) {
    const abort = (this.abort = new AbortController());
    const words = name.replace(/[-_]+/g, " ");
    try {
      const { rate, pieces } = await speak({ text: `Hello, this is ${words}. This is how I sound.`, voice: name, seed: 1 }, abort.signal);
      const clip = new Clip(rate);
      this.begin(clip);
      for await (const { bytes } of pieces) {
        clip.append(bytes);
        this.player.feed();
      }
      clip.end();
      this.player.feed();
      this.clips.set(name, clip);
    } catch (error) {
      if (abort.signal.aborted) return;
      this.stop();
      this.fire("error", error);
    }
  }

  begin(clip) {
    const name = this.auditioned;
    this.player.open(clip);
    this.show(name);
    this.player.play();
  }

  show(name) {
    this.auditioned = name;
    for (const [other, row] of this.rows) {
      const listen = row.querySelector(".listen");
      listen.setAttribute("aria-pressed", String(other === name));
      setIcon(listen, other === name ? "stop" : "play");
    }
  }

  askToDelete(name) {
    this.stop();
    this.doomed = name;
    element("delete-title").textContent = `Delete the voice “${name}”?`;
    element("delete-error").textContent = "";
    element("delete-dialog").showModal();
  }

  async deleteChosen() {
    try {
      await deleteVoice(this.doomed);
    } catch (error) {
      if (error.code !== "voice_not_found") {
        element("delete-error").textContent = error.message;
        return;
      }
    }
    this.clips.delete(this.doomed);
    element("delete-dialog").close();
    await this.load();
    this.note(`${this.doomed} was deleted.`);
    element("add-open").focus();
  }

  /** Name the selected voice next to Speak, because the list may be out of sight. */
  showChosen() {
    element("chosen").textContent = this.chosen ? `Voice: ${this.chosen}` : "";
  }

  note(words) {
    element("voices-note").textContent = words;
  }

  fire(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

function isAdded({ source }) {
  return source === "added";
}

function about(voice) {
  const parts = [voice.description, voice.is_default && "default", isAdded(voice) && (voice.seconds ? `added, ${voice.seconds.toFixed(1)} s` : "added")];
  return parts.filter(Boolean).join(" · ");
}
