// Plays a clip while it grows. Blocks of samples are scheduled one after the other on the audio clock. Playback starts
// once the buffer covers the time that the engine, at its speed so far, needs for the next piece. After an underrun,
// playback waits again, each time for a buffer of twice the size.

const START_S = 0.03; // seconds from scheduling the first block to its start
const FIRST_LEAD_S = 0.15;
const PIECE_S = 0.6; // longest piece: 12 frames of the built-in voice
const MAX_LEAD_S = 1.6;
const MIN_BLOCK_S = 0.02;
const TICK_MS = 40;

let shared = null;

/** The page's only audio context at this rate. The first call must be within a click, or browsers keep it silent. */
export function audioContext(rate) {
  if (!shared || shared.sampleRate !== rate) {
    shared?.close();
    shared = new AudioContext({ sampleRate: rate });
  }
  if (shared.state !== "running") shared.resume();
  return shared;
}

/** Fires `play`, `sound` (once for each clip, with the time of the first sound), `tick`, `pause` and `finish`. */
export class Player extends EventTarget {
  clip = null;
  playing = false;
  gaps = 0;
  blocks = []; // {source, when, from, to}: `when` in seconds of the audio clock, `from` and `to` in samples
  cursor = 0; // next sample to schedule
  start = 0; // position of the last start or seek, in samples
  lead = FIRST_LEAD_S;

  /** Switch to another clip, paused at its beginning. */
  open(clip) {
    this.pause();
    Object.assign(this, { clip, gaps: 0, start: 0, lead: FIRST_LEAD_S, heard: false, came: null });
  }

  play() {
    if (this.playing || !this.clip) return;
    if (this.clip.ended && this.start >= this.clip.length) this.start = 0;
    this.context = audioContext(this.clip.rate);
    this.cursor = this.start;
    this.playing = true;
    this.timer = setInterval(() => this.tick(), TICK_MS);
    this.fire("play");
    this.feed();
  }

  pause() {
    if (!this.playing) return;
    this.start = Math.round(this.position * this.clip.rate);
    this.silence();
    this.fire("pause");
  }

  /** Seek to a position in seconds. */
  seek(seconds) {
    const playing = this.playing;
    if (playing) this.silence();
    this.start = Math.min(Math.max(0, Math.round(seconds * this.clip.rate)), this.clip.length);
    if (playing) this.play();
    else this.fire("tick");
  }

  /** Playback position in seconds of the clip. */
  get position() {
    if (!this.clip) return 0;
    if (!this.playing || !this.blocks.length) return this.start / this.clip.rate;
    const now = this.context.currentTime;
    let block = this.blocks[0];
    for (const next of this.blocks) if (next.when <= now) block = next;
    const length = (block.to - block.from) / this.clip.rate;
    return block.from / this.clip.rate + Math.min(Math.max(0, now - block.when), length);
  }

  /** Schedule new samples; called whenever the clip has grown or ended. */
  feed() {
    if (!this.playing) return;
    const { clip, context } = this;
    const waiting = (clip.length - this.cursor) / clip.rate;
    const runs = this.end > context.currentTime + 0.005;
    if (this.blocks.length && !runs && waiting > 0 && !this.late) {
      this.late = true;
      this.gaps += 1;
      this.lead = Math.min(2 * this.lead, MAX_LEAD_S);
    }
    if (!this.heard) this.lead = Math.min(Math.max(FIRST_LEAD_S, PIECE_S * this.factor()), MAX_LEAD_S);
    const enough = runs ? MIN_BLOCK_S : this.lead;
    if (waiting > 0 && (clip.ended || waiting >= enough)) this.lay(runs ? this.end : context.currentTime + START_S);
    this.tick();
  }

  /** The real-time factor of this clip so far; 0 until it is known. */
  factor() {
    const { length, rate } = this.clip;
    const now = performance.now() / 1000;
    if (!this.came && length) this.came = { now, length };
    return this.came && length > this.came.length ? ((now - this.came.now) * rate) / (length - this.came.length) : 0;
  }

  get end() {
    const last = this.blocks.at(-1);
    return last ? last.when + (last.to - last.from) / this.clip.rate : -1;
  }

  lay(when) {
    const { clip, context, cursor: from } = this;
    const buffer = context.createBuffer(1, clip.length - from, clip.rate);
    buffer.copyToChannel(clip.floats(from, clip.length), 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    source.connect(context.destination);
    source.start(when);
    this.blocks = this.blocks.filter((block) => block.when > context.currentTime - 1).concat({ source, when, from, to: clip.length });
    this.cursor = clip.length;
    this.late = false;
  }

  tick() {
    if (!this.playing) return;
    const now = this.context.currentTime;
    if (!this.heard && this.blocks.length && now >= this.blocks[0].when) {
      this.heard = true;
      this.fire("sound", performance.now() - 1000 * (now - this.blocks[0].when));
    }
    this.fire("tick");
    if (this.clip.ended && this.cursor >= this.clip.length && now >= this.end) {
      this.silence();
      this.start = this.clip.length;
      this.fire("finish");
    }
  }

  silence() {
    clearInterval(this.timer);
    this.blocks.forEach(({ source }) => source.stop());
    Object.assign(this, { playing: false, late: false, blocks: [] });
  }

  fire(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
