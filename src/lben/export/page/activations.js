/** The activations of the paper's table: sigma, its slope, and the proximal operator of its convex function. */

/**
 * value: sigma(v). slope: its derivative. own: whether sigma is its own proximal operator for every step.
 * inner: the size of terms that may cancel within sigma, besides v and sigma(v).
 * @typedef {{ value: (v: number) => number, slope: (v: number) => number, own?: boolean, inner?: number }} Activation
 */

/** @param {number} v */
const sigmoid = (v) => (v >= 0 ? 1 / (1 + Math.exp(-v)) : Math.exp(v) / (1 + Math.exp(v)));

/**
 * An activation by the name that Python gives it.
 * @param {{ name: string, parameter: number }} named the parameter is the slope of LeakyReLU, or a of ELU
 * @returns {Activation}
 */
export function activationOf({ name, parameter }) {
  /** @type {Record<string, Activation>} */
  const table = {
    ReLU: { value: (v) => Math.max(v, 0), slope: (v) => (v > 0 ? 1 : 0), own: true },
    HardTanh: { value: (v) => Math.min(Math.max(v, -1), 1), slope: (v) => (Math.abs(v) < 1 ? 1 : 0), own: true },
    Identity: { value: (v) => v, slope: () => 1, own: true },
    LeakyReLU: { value: (v) => (v > 0 ? v : parameter * v), slope: (v) => (v > 0 ? 1 : parameter) },
    Tanh: { value: Math.tanh, slope: (v) => 1 - Math.tanh(v) ** 2 },
    Sigmoid: { value: sigmoid, slope: (v) => sigmoid(v) * (1 - sigmoid(v)) },
    Arctan: { value: Math.atan, slope: (v) => 1 / (1 + v * v) },
    Softplus: { value: (v) => Math.max(v, 0) + Math.log1p(Math.exp(-Math.abs(v))), slope: sigmoid },
    ELU: {
      value: (v) => (v > 0 ? v : parameter * Math.expm1(v)),
      slope: (v) => (v > 0 ? 1 : parameter * Math.exp(v)),
    },
  };
  return table[name];
}

/**
 * prox(u) for a step alpha: sigma(v) for the v with alpha v + (1 - alpha) sigma(v) = u.
 *
 * The left side increases in v with slopes between alpha and 1, so that v lies between two numbers that are known.
 * @param {Activation} sigma
 * @param {number} alpha
 * @returns {(u: number) => number}
 */
export function proximal(sigma, alpha) {
  if (sigma.own) return sigma.value;
  const origin = (1 - alpha) * sigma.value(0);
  return (u) => {
    const ends = [(u - origin) / alpha, u - origin];
    let low = Math.min(...ends);
    let high = Math.max(...ends);
    let v = u - origin;
    for (let k = 0; k < 60; k++) {
      const wrong = alpha * v + (1 - alpha) * sigma.value(v) - u;
      if (wrong > 0) high = v;
      else low = v;
      const next = v - wrong / (alpha + (1 - alpha) * sigma.slope(v));
      const inside = next >= low && next <= high ? next : (low + high) / 2;
      if (Math.abs(inside - v) <= 1e-15 * Math.abs(v)) break;
      v = inside;
    }
    return sigma.value(v);
  };
}
