/** A network in double precision: its equilibrium, its outputs with proved errors, and its gradients. */

import { activationOf, proximal } from "./activations.js";
import { absoluteProduct, inverse, largest, norm, product, transpose, transposedProduct } from "./linear.js";

/** @typedef {import("./linear.js").Doubles} Doubles */
/** @typedef {import("./linear.js").Matrix} Matrix */

/**
 * An array as Python packs it: little-endian numbers in base64.
 * @typedef {{ shape: number[], type: "float32" | "float64" | "uint8", data: string }} Packed
 */

/**
 * A network as Python describes it (`lben.export.pages`): z = sigma(W z + U x + bz), y = Wo z + D x + by, for x after
 * `mean` and `std`.
 * lam, m: the metric in which I - W is proved to be strongly monotone, with constant m. alpha: the solver's step.
 * pairs: by how much an error of one in the norm of lam moves the difference of two outputs.
 * gamma: proved bounds of the differences of two outputs, as the page's inputs move.
 * bound: the proved Lipschitz bound of all outputs: of classes from the page's inputs, of numbers from standardised ones.
 * @typedef {{
 *   name: string, about: string, activation: { name: string, parameter: number },
 *   W: Packed, U: Packed, bz: Packed, Wo: Packed, by: Packed, D: Packed | null, lam: Packed,
 *   mean: number[], std: number[], m: number, alpha: number,
 *   pairs: number[][], gamma: number[][], bound: number,
 * }} Described
 */

/**
 * What the solver found: v are pre-activations, z = sigma(v). trace: the residual after each iteration.
 * @typedef {{ z: Doubles, v: Doubles, trace: number[] }} Solution
 */

/**
 * The outputs for one input. distance: how far z is at most from the equilibrium, in the norm of lam.
 * rounding: what each output may have lost in its own sums.
 * @typedef {Solution & { y: Doubles, predicted: number, distance: number, rounding: Doubles }} Evaluation
 */

const EPS = 2 ** -52;
const TINY = 2 ** -1022;
const PRECISE = 1e-13;
const MOST_ITERATIONS = 5000;
const SLACK = 16; // units of rounding that a function of the browser's may lose

/**
 * The numbers of a packed array.
 * @param {Packed} packed
 * @returns {Doubles}
 */
export function unpack({ type, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  if (type === "uint8") return Float64Array.from(bytes);
  const view = new DataView(bytes.buffer);
  const size = type === "float32" ? 4 : 8;
  return Float64Array.from({ length: bytes.length / size }, (_, i) =>
    size === 4 ? view.getFloat32(4 * i, true) : view.getFloat64(8 * i, true),
  );
}

/**
 * @param {Packed} packed
 * @returns {Matrix}
 */
function matrix(packed) {
  return { rows: packed.shape[0], columns: packed.shape[1], values: unpack(packed) };
}

/**
 * Peaceman-Rachford splitting for z = sigma(W z + b): with w = 2 prox(u) - u, one iteration is u+ = C w + (C + I) alpha b.
 *
 * The pre-activations at the mean c of w and u+ come free of charge: W c + b = c + (c - w)/alpha.
 * @param {{ C: Matrix, alpha: number, value: (v: number, i: number) => number, prox: (u: number, i: number) => number }} of
 * @param {Doubles} b
 * @param {{ v: Doubles, z: Doubles } | null} start
 * @param {number} tolerance of |c - sigma(W c + b)| / |sigma(W c + b)|
 * @returns {Solution}
 */
function peacemanRachford({ C, alpha, value, prox }, b, start, tolerance) {
  const n = b.length;
  const scaled = b.map((entry) => alpha * entry);
  const offset = product(C, scaled, scaled);
  const u = start ? start.z.map((z, i) => alpha * start.v[i] + (1 - alpha) * z) : offset.slice();
  const [w, v, z, wrong] = Array.from({ length: 4 }, () => new Float64Array(n));
  /** @type {number[]} */
  const trace = [];
  for (let k = 0; k < MOST_ITERATIONS; k++) {
    for (let i = 0; i < n; i++) w[i] = 2 * prox(u[i], i) - u[i];
    product(C, w, offset, u);
    for (let i = 0; i < n; i++) {
      const c = (w[i] + u[i]) / 2;
      v[i] = c + (c - w[i]) / alpha;
      z[i] = value(v[i], i);
      wrong[i] = c - z[i];
    }
    trace.push(norm(wrong) / (norm(z) || 1));
    if (!(trace[k] > tolerance)) break;
  }
  return { z, v, trace };
}

/** One network of the page. */
export class Network {
  /** @param {Described} described */
  constructor(described) {
    this.name = described.name;
    this.about = described.about;
    this.W = matrix(described.W);
    this.U = matrix(described.U);
    this.Wo = matrix(described.Wo);
    this.D = described.D && matrix(described.D);
    this.bz = unpack(described.bz);
    this.by = unpack(described.by);
    this.mean = Float64Array.from(described.mean);
    this.std = Float64Array.from(described.std);
    this.root = unpack(described.lam).map(Math.sqrt);
    this.m = described.m;
    this.pairs = described.pairs;
    this.gamma = described.gamma;
    this.bound = described.bound;
    this.sigma = activationOf(described.activation);
    this.alpha = described.alpha;
    this.prox = proximal(this.sigma, this.alpha);
    const n = this.W.rows;
    const system = this.W.values.map((w, k) => (k % (n + 1) === 0 ? 1 + this.alpha * (1 - w) : -this.alpha * w));
    const R = inverse({ rows: n, columns: n, values: system });
    this.C = { rows: n, columns: n, values: R.values.map((r, k) => (k % (n + 1) === 0 ? 2 * r - 1 : 2 * r)) };
    this.transposedC = transpose(this.C);
  }

  /**
   * The equilibrium for an input.
   * @param {Doubles} x
   * @param {Solution | null} [start] of a similar input
   * @param {number} [tolerance]
   * @returns {Solution}
   */
  solve(x, start = null, tolerance = PRECISE) {
    const { C, alpha, sigma, prox } = this;
    const b = product(this.U, this.scaled(x), this.bz);
    return peacemanRachford({ C, alpha, value: sigma.value, prox }, b, start, tolerance);
  }

  /**
   * x as the network takes it.
   * @param {Doubles} x
   * @returns {Doubles}
   */
  scaled(x) {
    return x.map((entry, i) => (entry - this.mean[i]) / this.std[i]);
  }

  /**
   * y = Wo z + D x + by.
   * @param {Doubles} z
   * @param {Doubles} x
   * @returns {Doubles}
   */
  outputs(z, x) {
    const y = product(this.Wo, z, this.by);
    if (!this.D) return y;
    const past = product(this.D, this.scaled(x), null);
    return y.map((entry, i) => entry + past[i]);
  }

  /**
   * The outputs for an input, with bounds on their errors.
   * @param {Doubles} x
   * @param {Solution | null} [start]
   * @returns {Evaluation}
   */
  evaluate(x, start = null) {
    const found = this.solve(x, start);
    const y = this.outputs(found.z, x);
    return { ...found, y, predicted: largest(y), distance: this.distance(found, x), rounding: this.rounding(found, x) };
  }

  /**
   * A bound on the terms that a scaled x is the sum of.
   * @param {Doubles} x
   * @returns {Doubles}
   */
  sizes(x) {
    return x.map((entry, i) => (Math.abs(entry) + Math.abs(this.mean[i])) / this.std[i] + TINY / EPS);
  }

  /**
   * A proved bound on |z - z*| in the norm of lam, z* the equilibrium in real numbers.
   *
   * sigma(v) is the exact equilibrium of the bias v - W sigma(v), and the map from bias to equilibrium is 1/m-Lipschitz;
   * what rounding may have changed in the sums is added (the same bound as `lben.certify.equilibria`).
   * @param {Solution} found
   * @param {Doubles} x
   * @returns {number}
   */
  distance({ z, v }, x) {
    const inner = this.sigma.inner ?? 0;
    const off = v.map((entry, i) => SLACK * EPS * (2 * Math.abs(z[i]) + Math.abs(entry) + inner) + TINY);
    const longest = z.length + x.length + 16;
    const fed = product(this.U, this.scaled(x), this.bz);
    const recurrent = product(this.W, z, null);
    const fedTerms = absoluteProduct(this.U, this.sizes(x), this.bz);
    const recurrentTerms = absoluteProduct(this.W, z.map(Math.abs), null);
    const moved = absoluteProduct(this.W, off, null).map((entry, i) => {
      const terms = Math.abs(v[i]) + recurrentTerms[i] + fedTerms[i];
      return entry + Math.abs(v[i] - recurrent[i] - fed[i]) + longest * (EPS * terms + TINY);
    });
    const inMetric = [off, moved].map((part) => norm(part.map((entry, i) => entry * this.root[i])));
    return (inMetric[0] + inMetric[1] / this.m) * (1 + 1e-9);
  }

  /**
   * What each output may have lost in its own sums.
   * @param {Solution} found
   * @param {Doubles} x
   * @returns {Doubles}
   */
  rounding({ z }, x) {
    const longest = z.length + 8 + (this.D ? x.length + 8 : 0);
    const terms = absoluteProduct(this.Wo, z.map(Math.abs), this.by);
    const past = this.D && absoluteProduct(this.D, this.sizes(x), null);
    return terms.map((entry, i) => longest * (EPS * (entry + (past ? past[i] : 0)) + TINY));
  }

  /**
   * How far the predicted class is above each other at least, when the input has moved by `size`: what is proved.
   * @param {Evaluation} at
   * @param {number} size
   * @returns {number[]} infinite for the class itself
   */
  leads(at, size) {
    const i = at.predicted;
    return Array.from(at.y, (y, j) => {
      if (j === i) return Infinity;
      const error = 2 * (at.rounding[i] + at.rounding[j] + this.pairs[i][j] * at.distance);
      return at.y[i] - y - error - this.gamma[i][j] * size;
    });
  }

  /**
   * A distance within which the class cannot change: min over j of (y_i - y_j - error) / gamma_ij, a little less.
   * @param {Evaluation} at
   * @returns {number}
   */
  radius(at) {
    const bounds = this.gamma[at.predicted];
    const radii = this.leads(at, 0).map((lead, j) => (j === at.predicted ? Infinity : lead / bounds[j]));
    const least = Math.min(...radii) * (1 - 1e-6);
    return least > 0 ? least : 0;
  }

  /**
   * The gradient in x of sum_i c_i y_i, by the adjoint equation: q = J (W' q + Wo' c), J the slopes at v.
   * @param {Solution} at
   * @param {Doubles} c
   * @param {number} [tolerance]
   * @returns {Doubles}
   */
  gradient({ v }, c, tolerance = 1e-6) {
    const alpha = this.alpha;
    const slopes = v.map(this.sigma.slope);
    /** @type {(entry: number, i: number) => number} */
    const value = (entry, i) => slopes[i] * entry;
    /** @type {(entry: number, i: number) => number} */
    const prox = (entry, i) => (slopes[i] * entry) / (alpha + (1 - alpha) * slopes[i]);
    const g = transposedProduct(this.Wo, c);
    const q = peacemanRachford({ C: this.transposedC, alpha, value, prox }, g, null, tolerance).z;
    const direct = transposedProduct(this.U, q);
    const past = this.D && transposedProduct(this.D, c);
    return direct.map((entry, i) => (entry + (past ? past[i] : 0)) / this.std[i]);
  }
}
