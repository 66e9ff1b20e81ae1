// Audio as it arrives: converts s16le mono bytes to samples and peaks, independently of network and playback.

const FIRST_SECONDS = 16;
const PEAK_HZ = 100;

export class Clip {
  constructor(rate) {
    this.rate = rate;
    this.length = 0; // samples
    this.ended = false;
    this.peaks = []; // peak of each hundredth of a second, 0 to 1
    this.loudest = 0;
    this.store = new Int16Array(rate * FIRST_SECONDS);
    this.half = null; // first byte of a sample whose second byte has not arrived
  }

  get seconds() {
    return this.length / this.rate;
  }

  /** Append bytes, which may end in the middle of a sample. */
  append(bytes) {
    if (!bytes.length) return;
    let start = 0;
    const first = this.length;
    this.grow((bytes.length + 1) >> 1);
    if (this.half !== null) {
      this.store[this.length++] = this.half | (bytes[0] << 8);
      this.half = null;
      start = 1;
    }
    const count = (bytes.length - start) >> 1;
    const view = new DataView(bytes.buffer, bytes.byteOffset + start, count * 2);
    for (let i = 0; i < count; i++) this.store[this.length + i] = view.getInt16(2 * i, true);
    this.length += count;
    if (start + 2 * count < bytes.length) this.half = bytes[bytes.length - 1];
    this.measure(first);
  }

  /** The samples between two positions, as floats from -1 to 1. */
  floats(from, to) {
    const floats = new Float32Array(to - from);
    for (let i = from; i < to; i++) floats[i - from] = this.store[i] / 32768;
    return floats;
  }

  wav() {
    return encodeWav(this.store.subarray(0, this.length), this.rate);
  }

  /** Mark the clip as complete, and free unused memory. */
  end() {
    this.ended = true;
    this.store = this.store.slice(0, this.length);
  }

  grow(more) {
    if (this.length + more <= this.store.length) return;
    const store = new Int16Array(Math.max(2 * this.store.length, this.length + more));
    store.set(this.store.subarray(0, this.length));
    this.store = store;
  }

  measure(first) {
    const width = Math.round(this.rate / PEAK_HZ);
    for (let i = first; i < this.length; i++) {
      const bin = Math.floor(i / width);
      const height = Math.abs(this.store[i]) / 32768;
      if (!(this.peaks[bin] >= height)) this.peaks[bin] = height;
      if (height > this.loudest) this.loudest = height;
    }
  }
}

/** A wav file of 16-bit mono samples. */
export function encodeWav(samples, rate) {
  const file = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (at, word) => [...word].forEach((letter, i) => file.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  file.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt ");
  file.setUint32(16, 16, true); // bytes of this block
  file.setUint16(20, 1, true); // plain PCM
  file.setUint16(22, 1, true); // channels
  file.setUint32(24, rate, true);
  file.setUint32(28, 2 * rate, true); // bytes per second
  file.setUint16(32, 2, true); // bytes per sample of all channels
  file.setUint16(34, 16, true); // bits
  write(36, "data");
  file.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => file.setInt16(44 + 2 * i, sample, true));
  return new Blob([file], { type: "audio/wav" });
}
