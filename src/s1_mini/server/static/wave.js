// Draws a clip as bars: the played part in full colour, the rest lighter. The colours are in the style sheet.

const BAR = 3;
const STEP = 5;
const QUIETEST = 0.1; // a clip whose peak is below this is not scaled up to full height

export class Wave {
  constructor(canvas) {
    this.canvas = canvas;
    this.clip = null;
    this.expected = 0; // expected duration in seconds; fills the width while the clip is shorter
    this.position = 0;
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  draw() {
    const { canvas, clip } = this;
    const scale = devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (canvas.width !== width * scale) canvas.width = width * scale;
    if (canvas.height !== height * scale) canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas);
    const bars = Math.floor(width / STEP);
    const loudest = Math.max(clip?.loudest ?? 0, QUIETEST);
    const seconds = Math.max(clip?.seconds ?? 0, this.expected) || 1;
    for (let bar = 0; bar < bars; bar++) {
      const loud = clip ? this.loudest((bar / bars) * seconds, ((bar + 1) / bars) * seconds) : 0;
      const tall = Math.max(BAR, (loud / loudest) ** 0.8 * height);
      pen.fillStyle = loud ? style.color : style.borderTopColor;
      pen.globalAlpha = loud && ((bar + 0.5) / bars) * seconds > this.position ? 0.4 : 1;
      pen.beginPath();
      pen.roundRect(bar * STEP, (height - tall) / 2, BAR, tall, BAR / 2);
      pen.fill();
    }
  }

  /** The peak between two times in seconds; slightly above 0 for silence, 0 for audio that has not arrived. */
  loudest(from, to) {
    const { peaks, seconds } = this.clip;
    if (from >= seconds) return 0;
    let loud = 1e-6;
    for (let i = Math.floor(from * 100); i < Math.min(peaks.length, Math.ceil(to * 100)); i++) loud = Math.max(loud, peaks[i]);
    return loud;
  }
}
