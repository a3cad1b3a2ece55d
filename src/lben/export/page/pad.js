/** The drawing pad: strokes by mouse, finger or keys. */

import { colour } from "./chart.js";
import { SIDE } from "./drawing.js";

/** @typedef {import("./linear.js").Doubles} Doubles */
/** @typedef {import("./drawing.js").Point} Point */

/** @type {Record<string, Point>} */
const ARROWS = {
  ArrowLeft: { x: -1, y: 0 },
  ArrowRight: { x: 1, y: 0 },
  ArrowUp: { x: 0, y: -1 },
  ArrowDown: { x: 0, y: 1 },
};

export class Pad {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {() => void} changed called after every change of what is drawn
   */
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    /** @type {Point[][]} */
    this.strokes = [];
    /** @type {Doubles | null} */
    this.backdrop = null;
    this.pen = { x: SIDE / 2, y: SIDE / 2 };
    this.down = false;
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.begin(this.where(event));
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.down && canvas.hasPointerCapture(event.pointerId)) this.extend(this.where(event));
    });
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, () => this.lift());
    canvas.addEventListener("keydown", (event) => this.key(event));
    for (const kind of ["focus", "blur"]) canvas.addEventListener(kind, () => this.draw());
  }

  /**
   * @param {PointerEvent} event
   * @returns {Point}
   */
  where(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = SIDE / box.width;
    return { x: (event.clientX - box.left) * scale, y: (event.clientY - box.top) * scale };
  }

  /** @param {Point} point */
  begin(point) {
    this.backdrop = null;
    this.down = true;
    this.pen = point;
    this.strokes.push([point]);
    this.finish();
  }

  /** @param {Point} point */
  extend(point) {
    this.pen = point;
    this.strokes[this.strokes.length - 1].push(point);
    this.finish();
  }

  lift() {
    this.down = false;
    this.draw();
  }

  clear() {
    this.show(null);
    this.changed();
  }

  /**
   * Show an image in place of what was drawn; None: an empty pad.
   * @param {Doubles | null} image
   */
  show(image) {
    this.strokes = [];
    this.down = false;
    this.backdrop = image;
    this.draw();
  }

  finish() {
    this.draw();
    this.changed();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.key === " ") {
      if (this.down) this.lift();
      else this.begin({ ...this.pen });
    } else if (event.key in ARROWS) {
      const { x, y } = ARROWS[event.key];
      const point = { x: this.pen.x + x, y: this.pen.y + y };
      if (this.down) this.extend(point);
      else this.pen = point;
      this.draw();
    } else return;
    event.preventDefault();
  }

  draw() {
    const { canvas } = this;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const scale = canvas.width / SIDE;
    context.fillStyle = "#000";
    context.fillRect(0, 0, canvas.width, canvas.height);
    this.backdrop?.forEach((ink, place) => {
      const shade = Math.round(255 * ink);
      context.fillStyle = `rgb(${shade} ${shade} ${shade})`;
      context.fillRect((place % SIDE) * scale, Math.floor(place / SIDE) * scale, scale, scale);
    });
    context.strokeStyle = "#fff";
    context.lineWidth = 2.2 * scale;
    context.lineCap = context.lineJoin = "round";
    for (const stroke of this.strokes) {
      context.beginPath();
      for (const { x, y } of [stroke[0], ...stroke]) context.lineTo(x * scale, y * scale);
      context.stroke();
    }
    if (this.strokes.length === 0 && !this.backdrop) {
      context.fillStyle = "#9aa5af";
      context.font = `${1.6 * scale}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.fillText("draw a digit here", canvas.width / 2, canvas.height / 2);
    }
    if (document.activeElement === canvas && canvas.matches(":focus-visible")) {
      context.strokeStyle = colour(canvas, this.down ? "--network-1" : "--network-0");
      context.lineWidth = 3;
      context.beginPath();
      context.arc(this.pen.x * scale, this.pen.y * scale, scale, 0, 2 * Math.PI);
      context.stroke();
    }
  }
}
