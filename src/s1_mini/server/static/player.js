// Plays a clip while it still grows. Blocks are laid end to end on the audio clock. Playing begins once so much has
// gathered as the engine, at the speed it has shown so far, needs for its next piece; where sound comes too late all the
// same, playing waits again, each time for twice as much.

const START_S = 0.03; // from laying the first block to hearing it
const FIRST_LEAD_S = 0.15;
const PIECE_S = 0.6; // the most that comes at once: 12 frames of the voice that ships, on which a slow engine works that much longer
const MAX_LEAD_S = 1.6;
const MIN_BLOCK_S = 0.02;
const TICK_MS = 40;

let shared = null;

/** The page's one audio context at this rate. Call it within a click first, or browsers keep it silent. */
export function audioContext(rate) {
  if (!shared || shared.sampleRate !== rate) {
    shared?.close();
    shared = new AudioContext({ sampleRate: rate });
  }
  if (shared.state !== "running") shared.resume();
  return shared;
}

/** Fires `play`, `sound` (once a clip, with the time it was first heard), `tick`, `pause` and `finish`. */
export class Player extends EventTarget {
  clip = null;
  playing = false;
  gaps = 0;
  blocks = []; // {source, when, from, to}: seconds of the audio clock, samples
  cursor = 0; // next sample to lay
  start = 0; // where playing was begun or sought, in samples
  lead = FIRST_LEAD_S;

  /** Take another clip, at its beginning and silent. */
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

  /** Go to a place, in seconds. */
  seek(seconds) {
    const playing = this.playing;
    if (playing) this.silence();
    this.start = Math.min(Math.max(0, Math.round(seconds * this.clip.rate)), this.clip.length);
    if (playing) this.play();
    else this.fire("tick");
  }

  /** Where it plays, in seconds of the clip. */
  get position() {
    if (!this.clip) return 0;
    if (!this.playing || !this.blocks.length) return this.start / this.clip.rate;
    const now = this.context.currentTime;
    let block = this.blocks[0];
    for (const next of this.blocks) if (next.when <= now) block = next;
    const length = (block.to - block.from) / this.clip.rate;
    return block.from / this.clip.rate + Math.min(Math.max(0, now - block.when), length);
  }

  /** Lay what the clip has gained; call it whenever the clip grew or ended. */
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

  /** Seconds that pass until a second of sound comes, as far as this clip has shown it. */
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
