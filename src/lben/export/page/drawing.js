/** From strokes of a pen to an image as those of MNIST are: in a square of 20 pixels, its centre of mass in the middle. */

/** @typedef {import("./linear.js").Doubles} Doubles */
/** @typedef {{ x: number, y: number }} Point */

export const SIDE = 28;
const BOX = 20;
const HALF_WIDTH = 1.0; // of a stroke, in pixels of the image

/**
 * The distance of a point from the segment between two others.
 * @param {number} x
 * @param {number} y
 * @param {Point} a
 * @param {Point} b
 * @returns {number}
 */
function fromSegment(x, y, a, b) {
  const along = [b.x - a.x, b.y - a.y];
  const square = along[0] ** 2 + along[1] ** 2;
  const t = square > 0 ? Math.min(1, Math.max(0, ((x - a.x) * along[0] + (y - a.y) * along[1]) / square)) : 0;
  return Math.hypot(x - a.x - t * along[0], y - a.y - t * along[1]);
}

/**
 * Strokes as an image, one row after the other, with soft edges.
 * @param {Point[][]} strokes in pixels of the image
 * @returns {Doubles}
 */
function painted(strokes) {
  const image = new Float64Array(SIDE * SIDE);
  for (const stroke of strokes) {
    stroke.forEach((end, k) => {
      const start = stroke[Math.max(0, k - 1)];
      const reach = HALF_WIDTH + 1;
      const rows = [Math.min(start.y, end.y) - reach, Math.max(start.y, end.y) + reach];
      const columns = [Math.min(start.x, end.x) - reach, Math.max(start.x, end.x) + reach];
      for (let row = Math.max(0, Math.floor(rows[0])); row < Math.min(SIDE, rows[1]); row++) {
        for (let column = Math.max(0, Math.floor(columns[0])); column < Math.min(SIDE, columns[1]); column++) {
          const ink = HALF_WIDTH + 0.5 - fromSegment(column + 0.5, row + 0.5, start, end);
          const place = row * SIDE + column;
          image[place] = Math.max(image[place], Math.min(1, Math.max(0, ink)));
        }
      }
    });
  }
  return image;
}

/**
 * Strokes moved so that a point of theirs comes to the middle of the image, and made larger or smaller around it.
 * @param {Point[][]} strokes
 * @param {Point} center
 * @param {number} factor
 * @returns {Point[][]}
 */
function placed(strokes, center, factor) {
  const middle = SIDE / 2;
  return strokes.map((stroke) =>
    stroke.map(({ x, y }) => ({ x: middle + factor * (x - center.x), y: middle + factor * (y - center.y) })),
  );
}

/**
 * The image that the networks get to see of what was drawn, with pixels in [0, 1] in steps of 1/255.
 * @param {Point[][]} strokes in any unit
 * @returns {Doubles}
 */
export function imageOf(strokes) {
  const points = strokes.flat();
  if (points.length === 0) return new Float64Array(SIDE * SIDE);
  const [low, high] = [Math.min, Math.max].map((choose) => ({
    x: choose(...points.map((point) => point.x)),
    y: choose(...points.map((point) => point.y)),
  }));
  const extent = Math.max(high.x - low.x, high.y - low.y);
  const factor = extent > 0 ? (BOX - 2 * HALF_WIDTH) / extent : 1;
  const boxed = placed(strokes, { x: (low.x + high.x) / 2, y: (low.y + high.y) / 2 }, factor);
  const image = painted(boxed);
  let mass = 0;
  const center = { x: 0, y: 0 };
  image.forEach((ink, place) => {
    mass += ink;
    center.x += ink * ((place % SIDE) + 0.5);
    center.y += ink * (Math.floor(place / SIDE) + 0.5);
  });
  const moved = placed(boxed, { x: center.x / mass, y: center.y / mass }, 1);
  return painted(moved).map((ink) => Math.round(255 * ink) / 255);
}
