/** A surface over a square, and a cone on it, drawn from far to near without any library. */

import { cleared, colour } from "./chart.js";

/** @typedef {{ x: number, y: number }} Point */

/**
 * A point of the box: a and b from -1 to 1 across, h from -1 to 1 upwards.
 * @typedef {{ a: number, b: number, h: number }} Place
 */

/** @typedef {{ corners: Place[], name: string, light: number, strength: number }} Face */

/** How one looks at the box: turned by an angle, from above by another. */
export class View {
  constructor() {
    this.turn = -0.6;
    this.lift = 0.5;
  }

  /**
   * Where a place is on a canvas of this size, and how near.
   * @param {Place} place
   * @param {number} width
   * @param {number} height
   * @returns {Point & { near: number }}
   */
  project({ a, b, h }, width, height) {
    const scale = Math.min(width / 3.1, height / 2.9);
    const across = a * Math.cos(this.turn) - b * Math.sin(this.turn);
    const away = a * Math.sin(this.turn) + b * Math.cos(this.turn);
    const tall = 0.75 * h;
    return {
      x: width / 2 + scale * across,
      y: 0.45 * height - scale * (away * Math.sin(this.lift) + tall * Math.cos(this.lift)),
      near: tall * Math.sin(this.lift) - away * Math.cos(this.lift),
    };
  }
}

/**
 * The faces of a surface.
 * @param {number[][]} heights at the points of a square grid, rows along b
 * @returns {Face[]}
 */
export function surfaceFaces(heights) {
  const last = heights.length - 1;
  /** @type {Face[]} */
  const faces = [];
  /** @type {(i: number, j: number) => Place} */
  const place = (i, j) => ({ a: (2 * i) / last - 1, b: (2 * j) / last - 1, h: heights[j][i] });
  for (let j = 0; j < last; j++) {
    for (let i = 0; i < last; i++) {
      const corners = [place(i, j), place(i + 1, j), place(i + 1, j + 1), place(i, j + 1)];
      const rise = [corners[1].h - corners[0].h, corners[3].h - corners[0].h].map((step) => (step * last) / 2);
      const light = (1 - 0.5 * rise[0] + 0.35 * rise[1]) / Math.hypot(1, rise[0], rise[1]);
      faces.push({ corners, name: "--own", light: 0.2 + 0.45 * Math.max(0, Math.min(1.2, light)), strength: 1 });
    }
  }
  return faces;
}

/**
 * The faces of both cones at a place, as far as they stay in the box.
 * @param {Place} apex
 * @param {(da: number, db: number) => number} rise how high the cone is above its apex, so far from it
 * @returns {Face[]}
 */
export function coneFaces(apex, rise) {
  const [sectors, rings] = [36, 5];
  /** @type {Face[]} */
  const faces = [];
  for (const sign of [1, -1]) {
    const room = 1 - sign * apex.h;
    /** @type {(sector: number, ring: number) => Place} */
    const place = (sector, ring) => {
      const angle = (2 * Math.PI * sector) / sectors;
      const [da, db] = [Math.cos(angle), Math.sin(angle)];
      const far = (ring / rings) * Math.min(0.9, room / (rise(da, db) || 1e-9));
      return { a: apex.a + far * da, b: apex.b + far * db, h: apex.h + sign * rise(far * da, far * db) };
    };
    for (let sector = 0; sector < sectors; sector++) {
      for (let ring = 0; ring < rings; ring++) {
        const corners = [place(sector, ring), place(sector + 1, ring), place(sector + 1, ring + 1), place(sector, ring + 1)];
        faces.push({ corners, name: "--cone", light: 0.5, strength: 0.3 });
      }
    }
  }
  return faces;
}

/**
 * A colour of the page, made darker or lighter: 0 is black, 0.5 as it is, 1 white.
 * @param {string} hex
 * @param {number} light
 * @returns {string}
 */
function shaded(hex, light) {
  const parts = [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  const mixed = parts.map((part) => (light < 0.5 ? part * 2 * light : part + (255 - part) * (2 * light - 1)));
  return `rgb(${mixed.map(Math.round).join(" ")})`;
}

/**
 * Draw faces from far to near, on a square with its names, and a dot at the apex.
 * @param {HTMLCanvasElement} canvas
 * @param {View} view
 * @param {Face[]} faces
 * @param {Place} apex
 * @param {{ name: string, low: string, high: string }[]} axes of both inputs
 */
export function drawScene(canvas, view, faces, apex, axes) {
  const { context, width, height } = cleared(canvas);
  /** @param {Place} place */
  const project = (place) => view.project(place, width, height);
  drawFloor(canvas, context, project, axes);
  const placed = faces.map((face) => {
    const corners = face.corners.map(project);
    return { ...face, points: corners, near: corners.reduce((sum, corner) => sum + corner.near, 0) };
  });
  placed.sort((one, other) => one.near - other.near);
  const colours = new Map(["--own", "--cone"].map((name) => [name, colour(canvas, name)]));
  for (const { points, name, light, strength } of placed) {
    context.beginPath();
    for (const point of points) context.lineTo(point.x, point.y);
    context.closePath();
    context.globalAlpha = strength;
    context.fillStyle = context.strokeStyle = shaded(colours.get(name) ?? "#888888", light);
    context.lineWidth = 0.6;
    context.fill();
    if (strength === 1) context.stroke();
  }
  context.globalAlpha = 1;
  const { x, y } = project(apex);
  context.fillStyle = colour(canvas, "--cone");
  context.strokeStyle = colour(canvas, "--card");
  context.lineWidth = 2;
  context.beginPath();
  context.arc(x, y, 5.5, 0, 2 * Math.PI);
  context.fill();
  context.stroke();
}

/**
 * The square under the surface, with the names of the inputs along the two edges that are nearest.
 * @param {HTMLCanvasElement} canvas
 * @param {CanvasRenderingContext2D} context
 * @param {(place: Place) => Point & { near: number }} project
 * @param {{ name: string, low: string, high: string }[]} axes
 */
function drawFloor(canvas, context, project, axes) {
  /** @type {(a: number, b: number) => Place} */
  const floor = (a, b) => ({ a, b, h: -1.05 });
  context.strokeStyle = colour(canvas, "--line");
  context.fillStyle = colour(canvas, "--quiet");
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.beginPath();
  for (const [a, b] of [[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]]) {
    const { x, y } = project(floor(a, b));
    context.lineTo(x, y);
  }
  context.stroke();
  const nearB = project(floor(0, -1)).near > project(floor(0, 1)).near ? -1 : 1;
  const nearA = project(floor(-1, 0)).near > project(floor(1, 0)).near ? -1 : 1;
  /** @type {(text: string, a: number, b: number) => void} */
  const write = (text, a, b) => {
    const { x, y } = project(floor(a, b));
    context.fillText(text, x, y);
  };
  write(axes[0].low, -0.85, 1.14 * nearB);
  write(axes[0].name, 0, 1.22 * nearB);
  write(axes[0].high, 0.85, 1.14 * nearB);
  write(axes[1].low, 1.18 * nearA, -0.85);
  write(axes[1].name, 1.28 * nearA, 0);
  write(axes[1].high, 1.18 * nearA, 0.85);
}
