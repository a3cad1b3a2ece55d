/** Long computations in short pieces between the frames of a page, so that it stays alive. */

const BUDGET = 10; // milliseconds a frame

/** One computation at a time: a new one takes the place of the old. */
export class Work {
  constructor() {
    /** @type {Generator<void, unknown, void> | null} */
    this.current = null;
    this.asked = false;
  }

  get idle() {
    return this.current === null;
  }

  /** @param {Generator<void, unknown, void>} steps */
  start(steps) {
    this.current = steps;
    if (!this.asked) requestAnimationFrame(() => this.go());
    this.asked = true;
  }

  stop() {
    this.current = null;
  }

  go() {
    const until = performance.now() + BUDGET;
    while (this.current && performance.now() < until) {
      const now = this.current;
      if (now.next().done && this.current === now) this.current = null;
    }
    this.asked = this.current !== null;
    if (this.asked) requestAnimationFrame(() => this.go());
  }
}

/**
 * Call a function with how much of a time is over, from 0 to 1, frame by frame; at once with 1 where motion is unwanted.
 * @param {number} milliseconds
 * @param {(share: number) => boolean} draw false: stop
 */
export function animate(milliseconds, draw) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
    draw(1);
    return;
  }
  const begin = performance.now();
  const frame = () => {
    const share = Math.min(1, (performance.now() - begin) / milliseconds);
    if (draw(share) && share < 1) requestAnimationFrame(frame);
  };
  frame();
}
