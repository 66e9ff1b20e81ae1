// The dialog that adds a voice: its name, a recording from a file or the microphone, and the transcript.

import { addVoice } from "./api.js";
import { element, setIcon } from "./dom.js";
import { BEST, Recorder, isBest, toWav } from "./recording.js";

const TO_READ = "Every morning the harbour wakes slowly. Boats leave one by one, gulls follow them, and by noon the whole town smells of salt and fresh bread.";

/** Fires `added` with the name of the new voice, and `unauthorized`. */
export class Adding extends EventTarget {
  dialog = element("add-dialog");
  takesFiles = false; // ask for voice files (.npz, .npy), because the model cannot clone recordings
  recording = null; // the recording to send
  refusal = ""; // why the last recording was refused
  taking = null; // promise that settles once the last recording was read
  recorder = null;

  constructor() {
    super();
    element("add-open").addEventListener("click", () => this.open());
    element("add-cancel").addEventListener("click", () => this.dialog.close());
    this.dialog.addEventListener("close", () => this.clear());
    element("add-file").addEventListener("change", ({ target }) => {
      this.taking = this.take(target.files[0]);
    });
    element("add-form").addEventListener("input", () => this.show(""));
    element("record").addEventListener("click", () => this.record());
    element("add-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  /** Ask for voice files, because the model cannot clone from a recording. */
  takeFiles() {
    this.takesFiles = true;
    element("add-about").textContent = "This model cannot clone a voice from a recording. Choose a voice file made for this kind of model. Only add voices of people who have given their consent.";
    element("add-file-label").textContent = "Voice file (.npz or .npy)";
    element("add-file").accept = ".npz,.npy";
    for (const id of ["record-row", "add-text-field"]) element(id).hidden = true;
  }

  open() {
    if (this.takesFiles) return this.dialog.showModal();
    element("record").hidden = !Recorder.isPossible;
    element("record-note").textContent = Recorder.isPossible ? "" : "Recording here needs https or localhost.";
    this.dialog.showModal();
  }

  async take(blob) {
    this.recording = null;
    this.refusal = "";
    this.show("");
    this.showSound(null);
    if (!blob) return;
    if (this.takesFiles) {
      this.recording = blob;
      return;
    }
    try {
      const { file, seconds } = await toWav(blob);
      this.recording = file;
      this.showSound(file, seconds);
    } catch (error) {
      this.refusal = error.message;
      this.show(this.refusal);
    }
  }

  showSound(file, seconds = null) {
    const player = element("add-audio");
    URL.revokeObjectURL(player.src);
    player.hidden = seconds === null; // no audio, as far as this browser can tell
    if (player.hidden) player.removeAttribute("src");
    else player.src = URL.createObjectURL(file);
    const length = `${seconds?.toFixed(1)} s${isBest(seconds) ? "" : `; ${BEST}`}.`;
    const known = seconds === null ? "This browser cannot read the file; the server will try." : length;
    element("record-note").textContent = file ? known : "";
  }

  async record() {
    if (this.recorder) {
      this.recorder.stop();
      return;
    }
    this.show("");
    const text = element("add-text");
    if (!text.value.trim()) {
      text.value = TO_READ;
      text.style.height = `${text.scrollHeight + 2}px`; // show the whole text; not every browser supports field-sizing
      element("add-text-hint").hidden = false;
    }
    try {
      this.recorder = await Recorder.start((seconds, level) => this.level(seconds, level));
    } catch {
      this.show("The microphone cannot be used. Allow access in the browser, or choose a file.");
      return;
    }
    this.showRecording(true);
    const blob = await this.recorder.done;
    this.recorder = null;
    this.showRecording(false);
    if (!this.dialog.open) return;
    element("add-file").value = "";
    await (this.taking = this.take(blob));
  }

  showRecording(runs) {
    setIcon(element("record"), runs ? "stop" : "record");
    element("record").querySelector("span").textContent = runs ? "Stop recording" : "Use the microphone";
    element("level").hidden = element("record-clock").hidden = !runs;
    element("record-clock").textContent = "0 s";
    element("record-note").textContent = runs ? `Recording; ${BEST}…` : "";
    element("add-send").disabled = runs;
  }

  level(seconds, level) {
    element("level").value = level;
    element("record-clock").textContent = `${Math.floor(seconds)} s`;
  }

  async send() {
    const [name, text] = [element("add-name"), element("add-text")];
    const button = element("add-send");
    button.disabled = true;
    try {
      await this.taking;
      if (!this.dialog.open) return;
      if (!name.value.trim()) return this.show("Give the voice a name.", name);
      if (!this.recording) return this.show(this.refusal || (this.takesFiles ? "Choose a voice file." : "Choose a recording, or use the microphone."), element("add-file"));
      button.textContent = "Adding…";
      const called = name.value.trim().toLowerCase().replace(/\s+/g, "-");
      const voice = await addVoice(called, this.recording, text.value.trim(), element("add-replace").checked);
      this.dialog.close();
      this.dispatchEvent(new CustomEvent("added", { detail: voice.name }));
    } catch (error) {
      const fields = { name, text, audio: element("add-file") };
      if (error.status === 401) this.dialog.close();
      if (error.status === 401) this.dispatchEvent(new CustomEvent("unauthorized", { detail: error }));
      else if (error.status === 413) this.show("The file is too large for this server.", fields.audio);
      else this.show(error.message, fields[error.field]);
    } finally {
      button.disabled = false;
      button.textContent = "Add voice";
    }
  }

  show(message, field) {
    for (const id of ["add-name", "add-file", "add-text"]) element(id).removeAttribute("aria-invalid");
    field?.setAttribute("aria-invalid", "true");
    field?.focus();
    element("add-error").textContent = message;
  }

  clear() {
    this.recorder?.stop();
    this.recording = null;
    this.refusal = "";
    element("add-form").reset();
    element("add-text").style.height = "";
    element("add-text-hint").hidden = true;
    this.showSound(null);
    this.show("");
  }
}
