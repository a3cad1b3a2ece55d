/** Small charts on canvases, sharp on every screen and in the colours of the page, light or dark. */

/** @typedef {{ x: number, y: number }} Point */

/**
 * A colour of the page's style.
 * @param {Element} element
 * @param {string} name of a custom property, such as "--text"
 * @returns {string}
 */
export function colour(element, name) {
  return getComputedStyle(element).getPropertyValue(name).trim();
}

/**
 * A canvas cleared and scaled so that one unit is one pixel of the page.
 * @param {HTMLCanvasElement} canvas
 * @returns {{ context: CanvasRenderingContext2D, width: number, height: number }}
 */
export function cleared(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(ratio, ratio);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

/**
 * An image of pixels in [0, 1], white on black; with `signed`, of changes, orange above 0 and blue below.
 * @param {HTMLCanvasElement} canvas of as many pixels
 * @param {ArrayLike<number>} values
 * @param {boolean} [signed]
 */
export function paint(canvas, values, signed = false) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  for (let i = 0; i < values.length; i++) {
    const value = Math.min(1, Math.max(-1, values[i]));
    const strength = Math.round(255 * Math.abs(value));
    const shades = signed ? (value > 0 ? [1, 0.6, 0.2] : [0.25, 0.6, 1]) : [1, 1, 1];
    image.data.set([...shades.map((shade) => shade * strength), 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

/** A pair of axes in a canvas, on which lines and dots are drawn. */
export class Plot {
  /**
   * @param {HTMLCanvasElement} canvas
   * @param {{ x: [number, number], y: [number, number], xTicks: number[], yTicks: number[],
   *   xLabel: string, yWords?: (y: number) => string }} axes
   */
  constructor(canvas, { x, y, xTicks, yTicks, xLabel, yWords = String }) {
    const { context, width, height } = cleared(canvas);
    this.context = context;
    this.canvas = canvas;
    this.area = { left: 44, top: 8, right: width - 10, bottom: height - 32 };
    this.range = { x, y };
    context.fillStyle = colour(canvas, "--quiet");
    context.strokeStyle = colour(canvas, "--faint");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of yTicks) {
      const at = this.place({ x: x[0], y: tick }).y;
      this.stroke([{ x: x[0], y: tick }, { x: x[1], y: tick }]);
      context.fillText(yWords(tick), this.area.left - 6, at);
    }
    context.textBaseline = "top";
    context.textAlign = "center";
    for (const tick of xTicks) context.fillText(String(tick), this.place({ x: tick, y: y[0] }).x, this.area.bottom + 4);
    context.textAlign = "right";
    context.fillText(xLabel, this.area.right, this.area.bottom + 18);
  }

  /**
   * Where a point is on the canvas.
   * @param {Point} point
   * @returns {Point}
   */
  place(point) {
    const { left, top, right, bottom } = this.area;
    const { x, y } = this.range;
    return {
      x: left + ((point.x - x[0]) / (x[1] - x[0])) * (right - left),
      y: bottom - ((point.y - y[0]) / (y[1] - y[0])) * (bottom - top),
    };
  }

  /** @param {Point[]} points */
  stroke(points) {
    const { context } = this;
    context.beginPath();
    for (const point of points.map((one) => this.place(one))) context.lineTo(point.x, point.y);
    context.stroke();
  }

  /**
   * A line through points, cut off at the edges of the plot.
   * @param {Point[]} points
   * @param {string} name the custom property of its colour
   * @param {{ dash?: number[], width?: number }} [options]
   */
  line(points, name, { dash = [], width = 1.8 } = {}) {
    const { context, area } = this;
    context.save();
    context.beginPath();
    context.rect(area.left, area.top - 2, area.right - area.left, area.bottom - area.top + 4);
    context.clip();
    context.strokeStyle = colour(this.canvas, name);
    context.lineWidth = width;
    context.setLineDash(dash);
    this.stroke(points);
    context.restore();
  }

  /**
   * The area between two lines, faintly.
   * @param {Point[]} upper
   * @param {Point[]} lower
   * @param {string} name
   */
  fill(upper, lower, name) {
    const { context, area } = this;
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.right - area.left, area.bottom - area.top);
    context.clip();
    context.beginPath();
    for (const point of [...upper, ...[...lower].reverse()].map((one) => this.place(one))) {
      context.lineTo(point.x, point.y);
    }
    context.globalAlpha = 0.16;
    context.fillStyle = colour(this.canvas, name);
    context.fill();
    context.restore();
  }

  /**
   * @param {Point} point
   * @param {string} name
   * @param {number} [radius]
   */
  cross(point, name, radius = 4) {
    const { x, y } = this.place(point);
    this.context.strokeStyle = colour(this.canvas, name);
    this.context.lineWidth = 2;
    this.context.beginPath();
    for (const sign of [1, -1]) {
      this.context.moveTo(x - radius, y - sign * radius);
      this.context.lineTo(x + radius, y + sign * radius);
    }
    this.context.stroke();
  }

  /**
   * @param {Point} point
   * @param {string} name
   * @param {number} [radius]
   */
  dot(point, name, radius = 3) {
    const { x, y } = this.place(point);
    this.context.fillStyle = colour(this.canvas, name);
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.context.fill();
  }
}

/**
 * Round numbers that part a range in a few.
 * @param {number} low
 * @param {number} high
 * @param {number} [count] about so many
 * @returns {number[]}
 */
export function ticks(low, high, count = 4) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high * (1 + 1e-12); k++) found.push(Number((k * step).toPrecision(6)));
  return found;
}

/**
 * Logits as bars, the class in full colour.
 * @param {HTMLCanvasElement} canvas
 * @param {ArrayLike<number>} y
 * @param {number} chosen
 */
export function drawLogits(canvas, y, chosen) {
  const { context, width, height } = cleared(canvas);
  const values = Array.from(y);
  const low = Math.min(0, ...values);
  const high = Math.max(0, ...values);
  const [top, bottom] = [18, height - 36];
  /** @param {number} value */
  const level = (value) => bottom - ((value - low) / (high - low || 1)) * (bottom - top);
  const pitch = width / values.length;
  values.forEach((value, k) => {
    const edges = [level(value), level(0)];
    context.fillStyle = colour(canvas, k === chosen ? "--own" : "--quiet");
    context.globalAlpha = k === chosen ? 1 : 0.45;
    context.fillRect((k + 0.18) * pitch, Math.min(...edges), 0.64 * pitch, Math.max(1, Math.abs(edges[0] - edges[1])));
    context.globalAlpha = 1;
    context.fillStyle = colour(canvas, k === chosen ? "--text" : "--quiet");
    context.textAlign = "center";
    context.textBaseline = "bottom";
    context.font = `${k === chosen ? "600 " : ""}13px system-ui, sans-serif`;
    context.fillText(String(k), (k + 0.5) * pitch, height);
    context.font = "10.5px system-ui, sans-serif";
    context.fillText(value.toFixed(1), (k + 0.5) * pitch, value >= 0 ? edges[0] - 2 : edges[0] + 14);
  });
}
