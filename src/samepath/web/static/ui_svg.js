// Shapes, round numbers for axes, and a curve of a centimetre.

const NS = "http://www.w3.org/2000/svg";

export function shape(tag, attributes = {}) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

export function label(words, x, y, anchor) {
  const made = shape("text", { x, y, "text-anchor": anchor, class: "tick" });
  made.textContent = words;
  return made;
}

/** Round numbers between two ends, about so many. */
export function ticks(low, high, most, isLog) {
  const found = [];
  if (isLog) {
    const [from, to] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
    const parts = to - from <= 2 ? [1, 2, 5] : [1];
    const every = Math.max(1, Math.ceil((to - from) / most));
    for (let power = from; power <= to; power += every) {
      found.push(...parts.map((part) => part * 10 ** power));
    }
    const inside = found.filter((value) => value >= low * 0.999 && value <= high * 1.001);
    if (inside.length > 1) return inside;
    found.length = 0;
  }
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((part) => part * power >= rough) * power;
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) {
    found.push(Number((k * step).toPrecision(10)));
  }
  return found;
}

/** A curve without axes, to be seen at a glance. */
export function sparkline(values) {
  const svg = shape("svg", { class: "spark", viewBox: "0 0 100 28", preserveAspectRatio: "none",
                             "aria-hidden": "true" });
  if (values.length < 2) return svg;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const points = values.map((value, i) => {
    const [x, y] = [(100 * i) / (values.length - 1), (value - low) / (high - low || 1)];
    return `${x.toFixed(1)},${(26 - 24 * y).toFixed(1)}`;
  });
  svg.append(shape("polyline", { points: points.join(" ") }));
  return svg;
}
