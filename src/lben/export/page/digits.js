/** The page of digits: what is drawn or chosen goes to every network, and so does the size of the attack. */

import { attack } from "./attack.js";
import { paint } from "./chart.js";
import { imageOf, SIDE } from "./drawing.js";
import { Network, unpack } from "./network.js";
import { Pad } from "./pad.js";
import { below, MOST, Panel } from "./panel.js";

/** @typedef {import("./linear.js").Doubles} Doubles */
/** @typedef {import("./network.js").Described} Described */
/** @typedef {import("./network.js").Packed} Packed */

/**
 * @param {string} id
 * @returns {HTMLElement}
 */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @type {{ networks: Described[], images: { pixels: Packed, labels: number[] } }} */
const data = JSON.parse(element("data").textContent ?? "");
const networks = data.networks.map((described) => new Network(described));
const bytes = unpack(data.images.pixels);
const images = data.images.labels.map((_, k) => bytes.slice(k * SIDE * SIDE, (k + 1) * SIDE * SIDE).map((b) => b / 255));
const slider = /** @type {HTMLInputElement} */ (element("size"));
const seen = /** @type {HTMLCanvasElement} */ (element("seen"));

const panels = networks.map((net, k) => {
  const copy = /** @type {HTMLTemplateElement} */ (element("panel")).content.cloneNode(true);
  const root = /** @type {HTMLElement} */ (/** @type {DocumentFragment} */ (copy).firstElementChild);
  root.style.setProperty("--own", `var(--network-${k % 4})`);
  element("networks").append(root);
  return new Panel(net, root);
});

const marks = panels.map((panel) => {
  const track = document.createElement("div");
  const bar = document.createElement("span");
  track.className = "marks";
  track.style.setProperty("--own", panel.root.style.getPropertyValue("--own"));
  track.append(bar);
  element("marks").append(track);
  return bar;
});

let speaking = 0;

/**
 * Give an image to every network; null: nothing is drawn, of which a class would mean nothing.
 * @param {Doubles | null} x
 * @param {number | null} label
 */
function show(x, label) {
  paint(seen, x ?? new Float64Array(SIDE * SIDE));
  panels.forEach((panel, k) => {
    if (x) panel.show(x, label);
    else panel.rest();
    marks[k].style.width = `${(100 * Math.min(panel.radius, MOST)) / MOST}%`;
  });
  clearTimeout(speaking);
  speaking = setTimeout(() => {
    const words = panels.map((panel) => `${panel.net.name}: ${panel.at?.predicted}, radius ${below(panel.radius)}`);
    element("said").textContent = x ? words.join("; ") : "Nothing is drawn.";
  }, 800);
}

let waiting = false;

/** What is drawn, once a frame at most: a pen moves more often than that. */
const pad = new Pad(/** @type {HTMLCanvasElement} */ (element("pad")), () => {
  mark(-1);
  if (!waiting) requestAnimationFrame(showDrawing);
  waiting = true;
});

function showDrawing() {
  waiting = false;
  if (!pad.backdrop) show(pad.strokes.length ? imageOf(pad.strokes) : null, null); // else an image was chosen meanwhile
}

const thumbs = images.map((image, k) => {
  const button = document.createElement("button");
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SIDE;
  canvas.className = "pixels";
  paint(canvas, image);
  button.type = "button";
  button.setAttribute("role", "radio");
  button.setAttribute("aria-label", `Test image ${k + 1}, a ${data.images.labels[k]}`);
  button.append(canvas);
  button.addEventListener("click", () => choose(k));
  button.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose((k + step + images.length) % images.length);
    thumbs[(k + step + images.length) % images.length].focus();
  });
  element("thumbs").append(button);
  return button;
});

/**
 * Mark one of the test images as chosen, or none; that one, or else the first, is reached by the tabulator.
 * @param {number} chosen
 */
function mark(chosen) {
  thumbs.forEach((button, k) => {
    button.setAttribute("aria-checked", String(k === chosen));
    button.tabIndex = k === Math.max(chosen, 0) ? 0 : -1;
  });
}

/** @param {number} k */
function choose(k) {
  mark(k);
  pad.show(images[k]);
  show(images[k], data.images.labels[k]);
}

function resize() {
  element("shown").textContent = `${Number(slider.value).toFixed(2)} pixels`;
  for (const panel of panels) panel.resize(Number(slider.value));
}

element("clear").addEventListener("click", () => pad.clear());
slider.addEventListener("input", resize);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => panels.forEach((panel) => panel.draw()));
new ResizeObserver(() => panels.forEach((panel) => panel.draw())).observe(element("networks"));
resize();
choose(0);

/** What the page computes, for whoever opens the browser's console. */
Object.assign(globalThis, { lben: { networks, images, panels, pad, attack, choose, imageOf } });
