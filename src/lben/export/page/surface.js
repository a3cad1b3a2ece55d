/** The page of surfaces: networks of two inputs and one output, and the proved cones of their slopes. */

import { Plot, ticks } from "./chart.js";
import { norm } from "./linear.js";
import { Network } from "./network.js";
import { coneFaces, drawScene, surfaceFaces, View } from "./scene.js";
import { Work } from "./work.js";

/** @typedef {import("./linear.js").Doubles} Doubles */
/** @typedef {import("./network.js").Described} Described */
/** @typedef {import("./network.js").Solution} Solution */
/** @typedef {import("./chart.js").Point} Point */

const GRID = 33;
const CUTS = 61;

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * @param {string} id
 * @returns {HTMLInputElement}
 */
const slider = (id) => /** @type {HTMLInputElement} */ (document.getElementById(id));

/** @type {{ networks: Described[], axes: { inputs: string[], output: string, mean: number, std: number, unit: string } }} */
const data = JSON.parse(element("data").textContent ?? "");
const networks = data.networks.map((described) => new Network(described));
const { axes } = data;
const { mean, std } = networks[0];
const view = new View();

/** Where the cone stands, from -1 to 1 across what is shown, and how far that reaches, in standard deviations. */
const state = { at: [0, 0], extent: 3 };

/**
 * A number of the page, short.
 * @param {number} value
 * @returns {string}
 */
const short = (value) => String(Number(value.toPrecision(4)));

/**
 * A bound, rounded up to four digits.
 * @param {number} bound
 * @returns {string}
 */
function above(bound) {
  if (bound === 0) return "0";
  const unit = 10 ** (Math.floor(Math.log10(bound)) - 3);
  return short(Math.ceil((bound / unit) * (1 + 1e-12)) * unit);
}

/**
 * The inputs at a place across what is shown.
 * @param {number} a
 * @param {number} b
 * @returns {Doubles}
 */
const inputs = (a, b) => Float64Array.of(mean[0] + a * state.extent * std[0], mean[1] + b * state.extent * std[1]);

class Surface {
  /**
   * @param {Network} net
   * @param {HTMLElement} root
   */
  constructor(net, root) {
    this.net = net;
    this.root = root;
    this.work = new Work();
    /** @type {number[][]} */
    this.values = [];
    /** @type {Point[][]} */
    this.cuts = [[], []];
    this.part("h2").textContent = net.name;
    this.part(".about").textContent = net.about;
    this.part(".value-name").textContent = `${axes.output} here`;
    this.part(".unit").textContent = `Slopes: ${axes.output} ${axes.unit}.`;
    root.querySelectorAll(".slice-name").forEach((name, k) => {
      name.textContent = `Along ${axes.inputs[k]}`;
    });
  }

  /**
   * @param {string} selector
   * @returns {HTMLElement}
   */
  part(selector) {
    return /** @type {HTMLElement} */ (this.root.querySelector(selector));
  }

  get canvas() {
    return /** @type {HTMLCanvasElement} */ (this.root.querySelector(".scene"));
  }

  /**
   * The output at a place, in its own unit, and the solution that the next place may start from.
   * @param {number} a
   * @param {number} b
   * @param {Solution | null} start
   * @returns {{ value: number, found: Solution }}
   */
  value(a, b, start) {
    const x = inputs(a, b);
    const found = this.net.solve(x, start, 1e-9);
    return { value: axes.mean + axes.std * this.net.outputs(found.z, x)[0], found };
  }

  /**
   * How far the output may move when the place does, at most: proved.
   * @param {number} da
   * @param {number} db
   * @returns {number}
   */
  rise(da, db) {
    const moved = [da * std[0], db * std[1]].map((step, k) => (step * state.extent) / this.net.std[k]);
    return this.net.bound * axes.std * norm(moved);
  }

  /**
   * All heights, then the cuts.
   * @param {() => void} finished
   * @returns {Generator<void, void, void>}
   */
  *survey(finished) {
    const values = [];
    /** @type {Solution | null} */
    let start = null;
    for (let j = 0; j < GRID; j++) {
      const row = [];
      for (let k = 0; k < GRID; k++) {
        const i = j % 2 ? GRID - 1 - k : k; // to and fro, so that every point starts from a neighbour
        const { value, found } = this.value((2 * i) / (GRID - 1) - 1, (2 * j) / (GRID - 1) - 1, start);
        row[i] = value;
        start = found;
        yield;
      }
      values.push(row);
    }
    this.values = values;
    finished();
    yield* this.cut();
  }

  /** @returns {Generator<void, void, void>} */
  *cut() {
    const at = [...state.at];
    /** @type {Point[][]} */
    const cuts = [[], []];
    for (const k of [0, 1]) {
      /** @type {Solution | null} */
      let start = null;
      for (let i = 0; i < CUTS; i++) {
        const place = [...at];
        place[k] = (2 * i) / (CUTS - 1) - 1;
        const { value, found } = this.value(place[0], place[1], start);
        cuts[k].push({ x: inputs(place[0], place[1])[k], y: value });
        start = found;
        yield;
      }
    }
    this.cuts = cuts;
    this.drawCuts();
  }

  draw() {
    if (this.values.length === 0) return;
    const [low, high] = span();
    /** @param {number} value */
    const height = (value) => (2 * (value - low)) / (high - low) - 1;
    const [a, b] = state.at;
    const here = this.net.evaluate(inputs(a, b));
    const value = axes.mean + axes.std * here.y[0];
    const apex = { a, b, h: height(value) };
    const cone = coneFaces(apex, (da, db) => (2 * this.rise(da, db)) / (high - low));
    const faces = [...surfaceFaces(this.values.map((row) => row.map(height))), ...cone];
    const shown = axes.inputs.map((name, k) => ({
      name,
      low: short(inputs(-1, -1)[k]),
      high: short(inputs(1, 1)[k]),
    }));
    drawScene(this.canvas, view, faces, apex, shown);
    const gradient = this.net.gradient(here, Float64Array.of(1), 1e-9).map((entry, k) => entry * this.net.std[k]);
    this.part(".value").textContent = short(value);
    this.part(".slope").textContent = short(norm(gradient) * axes.std);
    this.part(".bound").textContent = `at most ${above(this.net.bound * axes.std)}, proved`;
    this.canvas.setAttribute(
      "aria-label",
      `${axes.output} is ${short(value)} where the cone stands. Arrow keys move it, with shift they turn the surface.`,
    );
    this.drawCuts();
  }

  drawCuts() {
    const [a, b] = state.at;
    const [low, high] = span();
    const value = this.value(a, b, null).value;
    const room = 0.06 * (high - low);
    this.root.querySelectorAll(".slice").forEach((canvas, k) => {
      const ends = /** @type {[number, number]} */ ([inputs(-1, -1)[k], inputs(1, 1)[k]]);
      const y = /** @type {[number, number]} */ ([low - room, high + room]);
      const plot = new Plot(/** @type {HTMLCanvasElement} */ (canvas), {
        x: ends,
        y,
        xTicks: ticks(...ends),
        yTicks: ticks(...y),
        xLabel: axes.inputs[k],
      });
      /** @param {number} sign */
      const edge = (sign) =>
        [-1, state.at[k], 1].map((place) => {
          const far = place - state.at[k];
          return { x: inputs(place, place)[k], y: value + sign * this.rise(k === 0 ? far : 0, k === 1 ? far : 0) };
        });
      plot.fill(edge(1), edge(-1), "--cone");
      for (const sign of [1, -1]) plot.line(edge(sign), "--cone", { width: 1.2 });
      plot.line(this.cuts[k], "--own", { width: 2.2 });
      plot.dot({ x: inputs(a, b)[k], y: value }, "--cone", 4.5);
      canvas.setAttribute("aria-label", `${axes.output} along ${axes.inputs[k]}, between the two edges of the cone.`);
    });
  }
}

/**
 * The least and the largest value of all surfaces, a little apart where they are flat.
 * @returns {[number, number]}
 */
function span() {
  const all = surfaces.flatMap((surface) => surface.values.flat());
  const [low, high] = [Math.min(...all), Math.max(...all)];
  return high - low > 1e-9 * (1 + Math.abs(high)) ? [low, high] : [low - 1, high + 1];
}

const surfaces = networks.map((net, k) => {
  const copy = /** @type {HTMLTemplateElement} */ (element("panel")).content.cloneNode(true);
  const root = /** @type {HTMLElement} */ (/** @type {DocumentFragment} */ (copy).firstElementChild);
  root.style.setProperty("--own", `var(--network-${k % 4})`);
  element("networks").append(root);
  return new Surface(net, root);
});

const redraw = () => surfaces.forEach((surface) => surface.draw());

/** Look again at all of it, after the extent has changed. */
function survey() {
  for (const surface of surfaces) surface.work.start(surface.survey(redraw));
}

/** @param {number[]} at */
function move(at) {
  state.at = at.map((entry) => Math.min(1, Math.max(-1, entry)));
  slider("first").value = String(state.at[0]);
  slider("second").value = String(state.at[1]);
  say();
  redraw();
  for (const surface of surfaces) if (surface.work.idle) surface.work.start(surface.cut());
}

function say() {
  inputs(state.at[0], state.at[1]).forEach((x, k) => {
    element(["first-shown", "second-shown"][k]).textContent = short(x);
  });
  element("extent-shown").textContent = `± ${short(state.extent * std[0])}${std[0] === std[1] ? "" : ` and ± ${short(state.extent * std[1])}`}`;
}

/**
 * The place of the surface that is nearest to a point of its picture.
 * @param {Surface} surface
 * @param {PointerEvent} event
 * @returns {number[]}
 */
function nearest(surface, event) {
  const { clientWidth, clientHeight } = surface.canvas;
  const [low, high] = span();
  let best = { distance: Infinity, at: state.at };
  surface.values.forEach((row, j) =>
    row.forEach((value, i) => {
      const [a, b] = [(2 * i) / (GRID - 1) - 1, (2 * j) / (GRID - 1) - 1];
      const { x, y } = view.project({ a, b, h: (2 * (value - low)) / (high - low) - 1 }, clientWidth, clientHeight);
      const distance = Math.hypot(x - event.offsetX, y - event.offsetY);
      if (distance < best.distance) best = { distance, at: [a, b] };
    }),
  );
  return best.distance < 40 ? best.at : state.at;
}

for (const surface of surfaces) {
  const { canvas } = surface;
  /** @type {{ x: number, y: number, moved: number } | null} */
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held = { x: event.clientX, y: event.clientY, moved: 0 };
  });
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
      held = { x: event.clientX, y: event.clientY, moved: held.moved + Math.abs(dx) + Math.abs(dy) };
      turn(dx / 150, dy / 200);
    } else if (event.pointerType === "mouse") move(nearest(surface, event));
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && held.moved < 6) move(nearest(surface, event));
    held = null;
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!step) return;
    event.preventDefault();
    if (event.shiftKey) turn(0.1 * step[0], -0.05 * step[1]);
    else move(state.at.map((entry, k) => entry + 0.05 * step[k]));
  });
}

/**
 * @param {number} aside
 * @param {number} down
 */
function turn(aside, down) {
  view.turn += aside;
  view.lift = Math.min(1.5, Math.max(0.05, view.lift + down));
  redraw();
}

element("first-name").textContent = axes.inputs[0];
element("second-name").textContent = axes.inputs[1];
for (const id of ["first", "second"]) {
  slider(id).addEventListener("input", () => move([Number(slider("first").value), Number(slider("second").value)]));
}
slider("extent").addEventListener("input", () => {
  state.extent = Number(slider("extent").value);
  say();
  survey();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new ResizeObserver(redraw).observe(element("networks"));
state.at = [Number(slider("first").value), Number(slider("second").value)];
say();
survey();

/** What the page computes, for whoever opens the browser's console. */
Object.assign(globalThis, { lben: { networks, surfaces, state, move, inputs, span } });
