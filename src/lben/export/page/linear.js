/** Matrices as rows in one array of doubles, and the few operations that a network needs. */

/** @typedef {Float64Array<ArrayBuffer>} Doubles */

/**
 * A matrix, row by row.
 * @typedef {{ rows: number, columns: number, values: Doubles }} Matrix
 */

/**
 * The product of a row of a matrix and x, in four sums, which a processor adds up side by side.
 * @param {Doubles} values
 * @param {number} start where the row begins
 * @param {Doubles} x
 * @returns {number}
 */
function dot(values, start, x) {
  const columns = x.length;
  let a = 0;
  let b = 0;
  let c = 0;
  let d = 0;
  let j = 0;
  for (let k = start; j + 3 < columns; j += 4, k += 4) {
    a += values[k] * x[j];
    b += values[k + 1] * x[j + 1];
    c += values[k + 2] * x[j + 2];
    d += values[k + 3] * x[j + 3];
  }
  for (; j < columns; j++) a += values[start + j] * x[j];
  return a + b + (c + d);
}

/**
 * A x + offset.
 * @param {Matrix} A
 * @param {Doubles} x
 * @param {Doubles | null} offset
 * @param {Doubles} [into] where to write it
 * @returns {Doubles}
 */
export function product(A, x, offset, into = new Float64Array(A.rows)) {
  for (let i = 0; i < A.rows; i++) {
    const sum = dot(A.values, i * A.columns, x);
    into[i] = offset ? sum + offset[i] : sum;
  }
  return into;
}

/**
 * |A| x + |offset|: what the rounding of A x + offset is relative to, for an x of sizes.
 * @param {Matrix} A
 * @param {Doubles} x
 * @param {Doubles | null} offset
 * @returns {Doubles}
 */
export function absoluteProduct(A, x, offset) {
  const y = new Float64Array(A.rows);
  for (let i = 0, k = 0; i < A.rows; i++) {
    let sum = offset ? Math.abs(offset[i]) : 0;
    for (let j = 0; j < A.columns; j++, k++) sum += Math.abs(A.values[k]) * x[j];
    y[i] = sum;
  }
  return y;
}

/**
 * A' x.
 * @param {Matrix} A
 * @param {Doubles} x
 * @returns {Doubles}
 */
export function transposedProduct(A, x) {
  const { rows, columns, values } = A;
  const y = new Float64Array(columns);
  for (let i = 0; i < rows; i++) {
    const factor = x[i];
    if (factor === 0) continue;
    for (let j = 0, k = i * columns; j < columns; j++, k++) y[j] += factor * values[k];
  }
  return y;
}

/**
 * A'.
 * @param {Matrix} A
 * @returns {Matrix}
 */
export function transpose(A) {
  const values = new Float64Array(A.values.length);
  for (let i = 0; i < A.rows; i++) {
    for (let j = 0; j < A.columns; j++) values[j * A.rows + i] = A.values[i * A.columns + j];
  }
  return { rows: A.columns, columns: A.rows, values };
}

/**
 * The inverse of a square matrix, by elimination with the largest pivots of columns.
 * @param {Matrix} A
 * @returns {Matrix}
 */
export function inverse(A) {
  const n = A.rows;
  const left = Array.from({ length: n }, (_, i) => A.values.slice(i * n, (i + 1) * n));
  const right = Array.from({ length: n }, (_, i) => Float64Array.from({ length: n }, (_, j) => (i === j ? 1 : 0)));
  for (let k = 0; k < n; k++) {
    let pivot = k;
    for (let i = k + 1; i < n; i++) if (Math.abs(left[i][k]) > Math.abs(left[pivot][k])) pivot = i;
    [left[k], left[pivot]] = [left[pivot], left[k]];
    [right[k], right[pivot]] = [right[pivot], right[k]];
    for (let i = 0; i < n; i++) {
      if (i === k) continue;
      const factor = left[i][k] / left[k][k];
      if (factor === 0) continue;
      for (let j = k; j < n; j++) left[i][j] -= factor * left[k][j];
      for (let j = 0; j < n; j++) right[i][j] -= factor * right[k][j];
    }
  }
  const values = new Float64Array(n * n);
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) values[i * n + j] = right[i][j] / left[i][i];
  return { rows: n, columns: n, values };
}

/**
 * |x|, in units of its largest entry: squares of tiny ones would vanish, and what is bounded by them with them.
 * @param {ArrayLike<number>} x
 * @returns {number}
 */
export function norm(x) {
  let most = 0;
  for (let i = 0; i < x.length; i++) most = Math.max(most, Math.abs(x[i]));
  if (!(most > 0 && most < Infinity)) return most;
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += (x[i] / most) ** 2;
  return most * Math.sqrt(sum);
}

/**
 * |x - y|.
 * @param {Doubles} x
 * @param {Doubles} y
 * @returns {number}
 */
export function distance(x, y) {
  return norm(x.map((entry, i) => entry - y[i]));
}

/**
 * The place of the largest entry, `except` left out.
 * @param {ArrayLike<number>} y
 * @param {number} [except]
 * @returns {number}
 */
export function largest(y, except = -1) {
  let best = except === 0 ? 1 : 0;
  for (let i = best + 1; i < y.length; i++) if (i !== except && y[i] > y[best]) best = i;
  return best;
}
