/** The panel of one network: its answer, its proof, its solver at work, and the attack on it. */

import { attack } from "./attack.js";
import { drawLogits, paint, Plot, ticks } from "./chart.js";
import { Work, animate } from "./work.js";

/** @typedef {import("./linear.js").Doubles} Doubles */
/** @typedef {import("./network.js").Network} Network */
/** @typedef {import("./network.js").Evaluation} Evaluation */
/** @typedef {import("./attack.js").Attacked} Attacked */

export const MOST = 3; // the largest attack, in pixels
const GRID = Array.from({ length: 12 }, (_, k) => ((k + 1) * MOST) / 12);
const REPLAY = 900; // milliseconds

/**
 * A radius as it is shown: rounded down.
 * @param {number} radius
 * @returns {string}
 */
export const below = (radius) => (Math.floor(radius * 1000) / 1000).toFixed(3);

/**
 * A residual, in the powers of ten that are written on paper.
 * @param {number} power
 * @returns {string}
 */
const tenTo = (power) => (power === 0 ? "1" : `10${[...String(power)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`);

export class Panel {
  /**
   * @param {Network} net
   * @param {HTMLElement} root
   */
  constructor(net, root) {
    this.net = net;
    this.root = root;
    this.part("h2").textContent = net.name;
    this.part(".about").textContent = net.about;
    this.work = new Work();
    this.size = 0;
    this.radius = 0;
    /** @type {Doubles | null} */
    this.x = null;
    /** @type {Evaluation | null} */
    this.at = null;
    /** @type {Map<number, Attacked>} */
    this.found = new Map();
  }

  /**
   * @param {string} selector
   * @returns {HTMLElement}
   */
  part(selector) {
    return /** @type {HTMLElement} */ (this.root.querySelector(selector));
  }

  /**
   * @param {string} selector
   * @returns {HTMLCanvasElement}
   */
  canvas(selector) {
    return /** @type {HTMLCanvasElement} */ (this.root.querySelector(selector));
  }

  /**
   * Answer for an image, and begin to attack it.
   * @param {Doubles} x
   * @param {number | null} label where it is known
   */
  show(x, label) {
    const at = this.net.evaluate(x);
    this.root.classList.remove("empty");
    this.x = x;
    this.at = at;
    this.radius = this.net.radius(at);
    this.found = new Map();
    this.part(".class").textContent = String(at.predicted);
    this.part(".radius strong").textContent = below(this.radius);
    this.part(".label").textContent = label === null || label === at.predicted ? "" : `Wrong: its label is ${label}.`;
    const last = at.trace[at.trace.length - 1];
    this.part(".iterations").textContent =
      `Residual after each of ${at.trace.length} iterations, replayed slowly. What the last, ${last.toExponential(0)}, ` +
      "leaves open is bounded, and subtracted from the radius.";
    this.draw();
    animate(REPLAY, (share) => {
      if (this.at === at) this.drawResidual(share);
      return this.at === at;
    });
    this.work.start(this.attacks());
  }

  /** Answer nothing, for there is no image. */
  rest() {
    this.work.stop();
    this.root.classList.add("empty");
    this.x = this.at = null;
    this.radius = 0;
    this.found = new Map();
  }

  /** @param {number} size */
  resize(size) {
    this.size = size;
    this.drawAttack();
    if (this.work.idle && this.x) this.work.start(this.attacks());
  }

  /**
   * The attack of the size that is asked for, whenever that is new, and else those of a grid of sizes for the chart.
   * @returns {Generator<void, void, void>}
   */
  *attacks() {
    const { net, x, at, found } = this;
    if (!x || !at) return;
    for (;;) {
      const size = found.has(this.size) ? GRID.find((one) => !found.has(one)) : this.size;
      if (size === undefined) return;
      const smaller = [...found.keys()].filter((one) => one < size).sort((a, b) => b - a);
      const larger = [...found.keys()].filter((one) => one > size).sort((a, b) => a - b);
      const near = [...smaller.slice(0, 1), ...larger.slice(0, 1)].flatMap((one) => found.get(one)?.image ?? []);
      found.set(size, yield* attack(net, x, at, size, near));
      this.drawAttack();
    }
  }

  draw() {
    if (!this.at) return;
    const logits = this.canvas(".logits");
    drawLogits(logits, this.at.y, this.at.predicted);
    const words = Array.from(this.at.y, (y, k) => `${k}: ${y.toFixed(2)}`).join(", ");
    logits.setAttribute("aria-label", `Logits of the ten classes. ${words}`);
    this.drawResidual(1);
    this.drawAttack();
  }

  /** @param {number} share how much of the iterations is shown */
  drawResidual(share) {
    const { trace } = /** @type {Evaluation} */ (this.at);
    const most = Math.max(50, Math.ceil(trace.length / 25) * 25);
    const canvas = this.canvas(".residual");
    const plot = new Plot(canvas, {
      x: [0, most],
      y: [-14.5, 1],
      xTicks: ticks(0, most),
      yTicks: [0, -4, -8, -12],
      xLabel: "iteration",
      yWords: tenTo,
    });
    const points = trace.map((residual, k) => ({ x: k + 1, y: Math.max(-14.5, Math.log10(residual)) }));
    const shown = points.slice(0, Math.max(1, Math.round(share * points.length)));
    plot.line(shown, "--own");
    plot.dot(shown[shown.length - 1], "--own");
    canvas.setAttribute("aria-label", `The residual falls to ${trace[trace.length - 1].toExponential(0)} in ${trace.length} iterations.`);
  }

  drawAttack() {
    const { at, x } = this;
    if (!at || !x) return;
    const now = this.found.get(this.size);
    const verdict = this.part(".verdict");
    const inside = this.size <= this.radius;
    verdict.className = "verdict";
    if (!now) {
      verdict.textContent = "Attacking …";
    } else if (now.predicted !== at.predicted) {
      verdict.textContent = `Now a ${now.predicted}: a change of ${(Math.ceil(now.length * 100) / 100).toFixed(2)} pixels is enough.`;
      verdict.classList.add("broken");
    } else if (inside) {
      verdict.textContent = `Still a ${at.predicted}. Inside the certified radius no attack can succeed.`;
      verdict.classList.add("safe");
    } else {
      verdict.textContent = `Still a ${at.predicted} for this attack, but beyond the radius nothing is proved.`;
    }
    if (now) {
      const moved = now.image.map((pixel, i) => pixel - x[i]);
      const scale = Math.max(...moved.map(Math.abs)) || 1;
      paint(this.canvas(".attacked"), now.image);
      paint(this.canvas(".change"), moved.map((entry) => entry / scale), true);
    }
    this.drawLead(at);
  }

  /** @param {Evaluation} at */
  drawLead(at) {
    const { net, found } = this;
    const proved = Array.from({ length: 61 }, (_, k) => {
      const x = (k * MOST) / 60;
      return { x, y: Math.min(...net.leads(at, x)) };
    });
    const attacked = [...found].map(([x, { margin }]) => ({ x, y: margin })).sort((a, b) => a.x - b.x);
    const most = Math.max(proved[0].y, 0.1);
    const least = Math.min(-0.5 * most, ...attacked.map((point) => point.y));
    const y = /** @type {[number, number]} */ ([least * 1.05, most * 1.1]);
    const canvas = this.canvas(".lead");
    const plot = new Plot(canvas, { x: [0, MOST], y, xTicks: ticks(0, MOST, 6), yTicks: ticks(...y), xLabel: "pixels" });
    plot.line([{ x: 0, y: 0 }, { x: MOST, y: 0 }], "--quiet", { width: 1.2 });
    plot.line([{ x: this.radius, y: y[0] }, { x: this.radius, y: y[1] }], "--own", { width: 2.4 });
    plot.line([{ x: this.size, y: y[0] }, { x: this.size, y: y[1] }], "--quiet", { width: 1, dash: [2, 3] });
    plot.line(proved, "--own", { dash: [6, 4], width: 1.4 });
    plot.line([{ x: 0, y: at.y[at.predicted] - [...at.y].sort((a, b) => b - a)[1] }, ...attacked], "--own", { width: 1 });
    for (const point of attacked) {
      if (point.y < 0) plot.cross(point, "--bad", point.x === this.size ? 6 : 4);
      else plot.dot(point, "--own", point.x === this.size ? 5 : 3);
    }
    canvas.setAttribute("aria-label", `The lead of class ${at.predicted} against the size of the attack; the certified radius is ${below(this.radius)} pixels.`);
  }
}
