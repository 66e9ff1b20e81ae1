// The history: earlier audio of this page, newest first, only in memory.

import { element, setIcon } from "./dom.js";
import { showWord } from "./words.js";

const MAX_ITEMS = 20;
const MAX_SAMPLES = 32 * 2 ** 20; // of all items, 64 MiB; 23 minutes at 24 kHz

/** Fires `play` and `save` with an item: {body, clip, words, cut}; `cut` says why the end of the audio is missing, or is "". */
export class History extends EventTarget {
  rows = new Map(); // by item, newest first

  constructor() {
    super();
    element("history-clear").addEventListener("click", () => {
      for (const speech of this.rows.keys()) this.remove(speech);
      element("text").focus();
    });
  }

  add(speech) {
    this.rows = new Map([[speech, this.row(speech)], ...this.rows]);
    element("history-list").prepend(this.rows.get(speech));
    element("history").hidden = false;
    let numItems = 0;
    let numSamples = 0;
    for (const item of this.rows.keys()) {
      numSamples += item.clip.length;
      if (++numItems > 1 && (numItems > MAX_ITEMS || numSamples > MAX_SAMPLES)) this.remove(item);
    }
  }

  remove(speech) {
    this.rows.get(speech).remove();
    this.rows.delete(speech);
    element("history").hidden = !this.rows.size;
  }

  row(speech) {
    const { body, clip, cut } = speech;
    const row = element("history-row").content.firstElementChild.cloneNode(true);
    const beginning = body.text.trim().slice(0, 40);
    row.querySelector(".said").textContent = body.text;
    row.querySelector(".about").textContent = [body.voice, `${clip.seconds.toFixed(1)} s`, cut, body.speed !== 1 && `${body.speed}×`, `seed ${body.seed}`].filter(Boolean).join(" · ");
    for (const [name, verb] of [["play", "Play"], ["save", "Download"]]) {
      const button = row.querySelector(`.${name}`);
      button.setAttribute("aria-label", `${verb}: ${beginning}`);
      button.addEventListener("click", () => this.dispatchEvent(new CustomEvent(name, { detail: speech })));
    }
    return row;
  }

  /** Mark the current item, whether it is playing, and the word that is spoken. */
  show(current, isPlaying, word) {
    for (const [speech, row] of this.rows) {
      const isCurrent = speech === current;
      row.setAttribute("aria-current", String(isCurrent));
      setIcon(row.querySelector(".play"), isCurrent && isPlaying ? "pause" : "play");
      row.querySelector(".play").setAttribute("aria-pressed", String(isCurrent && isPlaying));
      const said = row.querySelector(".said");
      if (isCurrent || said.children.length) showWord(said, speech.body.text, isCurrent ? word : undefined);
    }
  }
}
