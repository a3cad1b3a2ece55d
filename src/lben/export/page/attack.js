/** Projected gradient in the l2 norm of pixels, with several restarts: the worst image that is found. */

import { distance, largest, norm } from "./linear.js";

/** @typedef {import("./linear.js").Doubles} Doubles */
/** @typedef {import("./network.js").Network} Network */
/** @typedef {import("./network.js").Evaluation} Evaluation */

/**
 * What an attack found. margin: the logit of the image's own class less the largest other; below 0 the class is another.
 * length: how far the image was moved, never above the size asked for.
 * @typedef {{ image: Doubles, y: Doubles, predicted: number, margin: number, length: number }} Attacked
 */

const STEPS = 16;
const RANDOM_STARTS = 2;
const ROUGH = 1e-5; // what is kept is solved again to the last digit

/**
 * Numbers between 0 and 1, always the same (mulberry32).
 * @param {number} seed
 * @returns {() => number}
 */
export function random(seed) {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

/**
 * The nearest image to x + moved that is no further from x than `size`, with all pixels in [0, 1].
 * @param {Doubles} x
 * @param {Doubles} moved
 * @param {number} size
 * @returns {Doubles}
 */
function allowed(x, moved, size) {
  const factor = Math.min(1, (size / norm(moved)) * (1 - 1e-12)) || 0;
  return x.map((pixel, i) => Math.min(1, Math.max(0, pixel + factor * moved[i])));
}

/**
 * The logit of a class less the largest other.
 * @param {Doubles} y
 * @param {number} own
 * @returns {number}
 */
const margin = (y, own) => y[own] - y[largest(y, own)];

/**
 * Move an image so that its class changes, or comes close to it; a generator, so that a page stays alive meanwhile.
 *
 * It climbs towards each of the three classes that the proof leaves nearest, then from random starts towards whichever
 * class is next, and from `others`, images that were found before.
 * @param {Network} net
 * @param {Doubles} x
 * @param {Evaluation} at the network at x
 * @param {number} size
 * @param {Doubles[]} [others]
 * @returns {Generator<void, Attacked, void>}
 */
export function* attack(net, x, at, size, others = []) {
  const own = at.predicted;
  const next = random(1);
  const leads = net.leads(at, 0).map((lead, j) => lead / net.gamma[own][j]);
  const targets = [...leads.keys()].filter((j) => j !== own).sort((a, b) => leads[a] - leads[b]);
  /** @type {{ from: Doubles, target: number | null }[]} */
  const starts = targets.slice(0, 3).map((target) => ({ from: x, target }));
  for (let k = 0; k < RANDOM_STARTS; k++) {
    starts.push({ from: allowed(x, x.map(() => next() - 0.5), size), target: null });
  }
  for (const other of others) starts.push({ from: allowed(x, other.map((p, i) => p - x[i]), size), target: null });
  let worst = x;
  let least = margin(at.y, own);
  for (const { from, target } of starts) {
    let image = from;
    let found = net.solve(image, at, ROUGH);
    for (let step = 0; step <= STEPS; step++) {
      const y = net.outputs(found.z, image);
      if (margin(y, own) < least) [worst, least] = [image, margin(y, own)];
      if (step === STEPS || size === 0) break;
      const c = new Float64Array(y.length);
      c[target ?? largest(y, own)] = 1;
      c[own] = -1;
      const uphill = net.gradient(found, c, 1e-3);
      const length = size * (step === 0 ? 1 : 0.5 * (1 - step / (STEPS + 1)));
      const factor = length / norm(uphill) || 0;
      const before = image;
      image = allowed(x, x.map((pixel, i) => before[i] - pixel + factor * uphill[i]), size);
      found = net.solve(image, found, ROUGH);
      yield;
    }
  }
  const { y, predicted } = net.evaluate(worst, at);
  return { image: worst, y, predicted, margin: margin(y, own), length: distance(worst, x) };
}
