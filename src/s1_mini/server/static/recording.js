// Recordings of voices: converts a file or the microphone's input to a wav file that every server can read.

import { encodeWav } from "./clip.js";

const RATE = 44100;
const MAX_FILE_BYTES = 50_000_000;
const [MIN_S, MAX_S] = [5, 30]; // best durations for cloning; the microphone stops at the maximum
const SPARE_S = 1; // tolerance, because the recorder stops a little after the maximum
export const BEST = `${MIN_S} to ${MAX_S} s are best`;

/** Whether a recording has the recommended length; the server also accepts others. */
export function isBest(seconds) {
  return seconds >= MIN_S && seconds <= MAX_S + SPARE_S;
}

/** Convert any audio that the browser can decode to 16-bit mono wav; leave other files unchanged, with `seconds` null. */
export async function toWav(blob) {
  if (blob.size > MAX_FILE_BYTES) throw new Error("The file is larger than 50 MB. Choose a shorter recording.");
  const bytes = await blob.arrayBuffer();
  let sound;
  try {
    sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(bytes);
  } catch {
    return { file: blob, seconds: null };
  }
  const channels = Array.from({ length: sound.numberOfChannels }, (_, i) => sound.getChannelData(i));
  const samples = new Int16Array(sound.length);
  for (let i = 0; i < samples.length; i++) {
    let sum = 0;
    for (const channel of channels) sum += channel[i];
    samples[i] = Math.round(Math.min(1, Math.max(-1, sum / channels.length)) * 32767);
  }
  return { file: encodeWav(samples, sound.sampleRate), seconds: sound.duration };
}

/** One recording with the microphone. `onlevel` gets seconds and loudness (0 to 1) while it runs. */
export class Recorder {
  static get isPossible() {
    return Boolean(navigator.mediaDevices?.getUserMedia && window.MediaRecorder);
  }

  /** Request the microphone and start; resolves to the recorder once it runs. */
  static async start(onlevel) {
    const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false };
    const recorder = new Recorder();
    recorder.stream = await navigator.mediaDevices.getUserMedia({ audio });
    recorder.media = new MediaRecorder(recorder.stream);
    recorder.parts = [];
    recorder.done = new Promise((resolve) => {
      recorder.media.ondataavailable = ({ data }) => recorder.parts.push(data);
      recorder.media.onstop = () => resolve(new Blob(recorder.parts, { type: recorder.media.mimeType }));
    });
    recorder.media.start();
    recorder.watch(onlevel);
    return recorder;
  }

  /** Stop; `done` then resolves to the recording. */
  stop() {
    clearInterval(this.timer);
    this.context?.close();
    this.context = null;
    if (this.media.state !== "inactive") this.media.stop();
    this.stream.getTracks().forEach((track) => track.stop());
  }

  watch(onlevel) {
    const began = performance.now();
    this.context = new AudioContext();
    const ear = new AnalyserNode(this.context, { fftSize: 2048 });
    this.context.createMediaStreamSource(this.stream).connect(ear);
    const samples = new Float32Array(ear.fftSize);
    this.timer = setInterval(() => {
      const seconds = (performance.now() - began) / 1000;
      ear.getFloatTimeDomainData(samples);
      onlevel(seconds, Math.min(1, samples.reduce((loud, sample) => Math.max(loud, Math.abs(sample)), 0)));
      if (seconds >= MAX_S) this.stop();
    }, 100);
  }
}
