// What the pages compute, without a browser: node --test tests/export/page.test.mjs
import assert from "node:assert/strict";
import { test } from "node:test";

import { activationOf, proximal } from "../../src/lben/export/page/activations.js";
import { attack, random } from "../../src/lben/export/page/attack.js";
import { ticks } from "../../src/lben/export/page/chart.js";
import { imageOf, SIDE } from "../../src/lben/export/page/drawing.js";
import * as linear from "../../src/lben/export/page/linear.js";
import { Network } from "../../src/lben/export/page/network.js";

const TABLE = ["ReLU", "LeakyReLU", "Tanh", "Sigmoid", "Arctan", "Softplus", "ELU", "HardTanh", "Identity"];
const draw = random(7);
const numbers = (count, size = 1) => Float64Array.from({ length: count }, () => size * (2 * draw() - 1));
const matrix = (rows, columns, size) => ({ rows, columns, values: numbers(rows * columns, size) });
const pack = (values, ...shape) => ({ shape, type: "float64", data: Buffer.from(values.buffer).toString("base64") });
const close = (found, expected, tolerance) =>
  assert.ok(Math.abs(found - expected) <= tolerance, `${found} is not ${expected}`);

test("norms of tiny and of huge entries", () => {
  close(linear.norm([3e-200, 4e-200]) / 1e-200, 5, 1e-12);
  close(linear.norm([3e200, 4e200]) / 1e200, 5, 1e-12);
  assert.equal(linear.norm([0, 0]), 0);
  assert.equal(linear.norm([Infinity, 1]), Infinity);
  assert.ok(Number.isNaN(linear.norm([NaN, 1])));
});

/** A network with small W, so that I - W is monotone in the Euclidean metric with m = 1/2. */
function network(d, n, p, activation, parameter = 0.5) {
  const ones = (count) => new Array(count).fill(1);
  return new Network({
    name: "a network", about: "", activation: { name: activation, parameter },
    W: pack(numbers(n * n, 0.5 / n), n, n), U: pack(numbers(n * d), n, d), bz: pack(numbers(n), n),
    Wo: pack(numbers(p * n), p, n), by: pack(numbers(p), p), D: pack(numbers(p * d, 0.1), p, d),
    lam: pack(Float64Array.from(ones(n)), n), mean: ones(d).map(() => 0.3), std: ones(d).map(() => 0.5),
    m: 0.5, alpha: 0.7, pairs: ones(p).map(() => ones(p).map(() => 5)), gamma: ones(p).map(() => ones(p).map(() => 20)), bound: 20,
  });
}

test("products agree with sums by hand", () => {
  const [A, x, y, offset] = [matrix(5, 7), numbers(7), numbers(5), numbers(5)];
  const found = linear.product(A, x, offset);
  const back = linear.transposedProduct(A, y);
  const sizes = linear.absoluteProduct(A, x.map(Math.abs), offset);
  for (let i = 0; i < 5; i++) {
    const terms = Array.from(x, (entry, j) => A.values[7 * i + j] * entry);
    close(found[i], terms.reduce((a, b) => a + b, offset[i]), 1e-14);
    close(sizes[i], terms.reduce((a, b) => a + Math.abs(b), Math.abs(offset[i])), 1e-14);
  }
  const twice = linear.product(linear.transpose(A), y, null);
  back.forEach((entry, j) => close(entry, twice[j], 1e-14));
});

test("an inverse is one, also where the first pivot is zero", () => {
  const A = matrix(6, 6);
  A.values[0] = 0;
  const B = linear.inverse(A);
  for (let i = 0; i < 6; i++) {
    const unit = Float64Array.from({ length: 6 }, (_, j) => (i === j ? 1 : 0));
    const again = linear.product(A, linear.product(B, unit, null), null);
    again.forEach((entry, j) => close(entry, unit[j], 1e-11));
  }
});

test("the largest entry, with one left out", () => {
  assert.equal(linear.largest([3, 1, 2]), 0);
  assert.equal(linear.largest([3, 1, 2], 0), 2);
  assert.equal(linear.largest([3, 4, 2], 2), 1);
});

for (const name of TABLE) {
  test(`${name}: its slope is that of its values, in [0, 1], and its prox solves the equation`, () => {
    const sigma = activationOf({ name, parameter: 0.3 });
    for (const v of numbers(200, 6)) {
      close((sigma.value(v + 1e-6) - sigma.value(v - 1e-6)) / 2e-6, sigma.slope(v), 1e-5);
      assert.ok(sigma.slope(v) >= 0 && sigma.slope(v) <= 1);
      for (const alpha of [0.05, 1, 3]) {
        const u = sigma.own ? v : alpha * v + (1 - alpha) * sigma.value(v);
        close(proximal(sigma, alpha)(u), sigma.value(v), 1e-12);
      }
    }
  });

  test(`${name}: the solver finds the equilibrium, and gradients are those of differences`, () => {
    const net = network(3, 6, 2, name);
    const [x, c] = [numbers(3), Float64Array.of(1, -0.5)];
    const at = net.evaluate(x);
    const v = linear.product(net.W, at.z, linear.product(net.U, net.scaled(x), net.bz));
    at.z.forEach((z, i) => close(z, net.sigma.value(v[i]), 1e-11));
    assert.ok(at.distance < 1e-10);
    const value = (point) => net.evaluate(point).y.reduce((sum, y, i) => sum + c[i] * y, 0);
    net.gradient(at, c, 1e-12).forEach((slope, i) => {
      const [more, less] = [1e-6, -1e-6].map((step) => value(x.map((entry, k) => (k === i ? entry + step : entry))));
      close((more - less) / 2e-6, slope, 1e-5);
    });
  });
}

test("the bound on the error holds for a solution that is stopped early", () => {
  const net = network(3, 6, 2, "ReLU");
  const x = numbers(3);
  const exact = net.solve(x);
  for (const tolerance of [1e-1, 1e-3, 1e-6]) {
    const rough = net.solve(x, null, tolerance);
    const wrong = linear.distance(rough.z, exact.z);
    assert.ok(wrong <= net.distance(rough, x) + 1e-12);
    assert.ok(net.distance(rough, x) < 100 * tolerance);
  }
});

test("attacks stay in the ball and in the range of pixels, and lower the lead", () => {
  const net = network(16, 8, 4, "ReLU");
  const x = numbers(16).map(Math.abs);
  const at = net.evaluate(x);
  for (const size of [0, 0.1, 1]) {
    const steps = attack(net, x, at, size);
    let step = steps.next();
    while (!step.done) step = steps.next();
    const { image, margin, length } = step.value;
    assert.ok(linear.distance(image, x) <= size && length <= size);
    assert.ok(image.every((pixel) => pixel >= 0 && pixel <= 1));
    const lead = at.y[at.predicted] - at.y[linear.largest(at.y, at.predicted)];
    assert.ok(size === 0 ? Math.abs(margin - lead) < 1e-12 : margin < lead);
  }
});

test("a drawing is centred and of one size, wherever and however large it was drawn", () => {
  const stroke = Array.from({ length: 20 }, (_, k) => ({ x: 5 + 3 * Math.cos(k / 4), y: 9 + k / 2 }));
  const image = imageOf([stroke]);
  const other = imageOf([stroke.map(({ x, y }) => ({ x: 100 + 4 * x, y: 4 * y - 30 }))]);
  image.forEach((ink, place) => close(ink, other[place], 1 / 255 + 1e-12));
  const mass = image.reduce((sum, ink) => sum + ink, 0);
  assert.ok(mass > 20);
  for (const place of [(k) => k % SIDE, (k) => Math.floor(k / SIDE)]) {
    const center = image.reduce((sum, ink, k) => sum + ink * (place(k) + 0.5), 0) / mass;
    close(center, SIDE / 2, 0.5);
  }
  assert.ok(imageOf([]).every((ink) => ink === 0));
  assert.ok(imageOf([[{ x: 3, y: 3 }]]).some((ink) => ink > 0.5));
});

test("ticks are round and within their range", () => {
  assert.deepEqual(ticks(0, 3, 6), [0, 0.5, 1, 1.5, 2, 2.5, 3]);
  assert.deepEqual(ticks(-1.3, 1.2), [-1, 0, 1]);
});
