// A chart of curves over steps or time: axes, bands, lines, a cursor that reads values off, and a
// stretch that can be dragged over to look closer. In SVG, so that it is sharp on any screen.

import { el, short, whole } from "./dom.js";
import { label, shape, ticks } from "./ui_svg.js";
import { duration, figure } from "./ui_words.js";

const EDGE = { left: 54, right: 12, top: 10, bottom: 26 };
const DRAG = 8; // pixels: less is a click
const MOST_DOTS = 60;
let numCharts = 0;

const nearest = (values, x, isThere = () => true) => values.reduce((best, value, i) =>
  (isThere(i) && (best < 0 || Math.abs(value - x) < Math.abs(values[best] - x)) ? i : best), -1);

export class Chart {
  /** `onZoom(from, to)` is told which steps were dragged over; without arguments: all again. */
  constructor(title, onZoom) {
    Object.assign(this, { title, onZoom, lines: [], cursor: null });
    this.clip = `clip${++numCharts}`;
    this.lasts = el("p", { class: "lasts" });
    this.readout = el("div", { class: "readout", hidden: true });
    this.svg = shape("svg", { class: "plot", role: "img", tabindex: "0" });
    this.box = el("div", { class: "plot-box" }, this.svg, this.readout);
    this.element = el("figure", { class: "chart" },
                      el("figcaption", {}, el("h3", {}, title), this.lasts), this.box);
    new ResizeObserver(() => this.draw()).observe(this.box);
    this.listen();
  }

  /** `lines`: {name, colour, width, dot, curve, isDots, isInterval}, the last on top. A curve has
   *  step, time and value, and maybe low and high. */
  set(lines, { isLog, isTime }) {
    Object.assign(this, { lines, isLog, isTime });
    this.draw();
  }

  xs(curve) { return this.isTime ? curve.time : curve.step; }

  usable(value) { return value !== null && value !== undefined && (!this.isLog || value > 0); }

  draw() {
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return;
    Object.assign(this, { width, height });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.measure();
    this.paint();
  }

  /** What the axes go from and to. */
  measure() {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { curve, isInterval } of this.lines) {
      this.xs(curve).forEach((x, i) => {
        [x0, x1] = [Math.min(x0, x), Math.max(x1, x)];
        const seen = [curve.value[i]];
        if (!isInterval) seen.push(curve.low?.[i], curve.high?.[i]); // an interval may reach far
        for (const value of seen) {
          if (this.usable(value)) [y0, y1] = [Math.min(y0, value), Math.max(y1, value)];
        }
      });
    }
    if (this.lines.some((line) => line.isInterval) && y1 > 0) y1 *= this.isLog ? 4 : 1.6;
    this.isEmpty = !(y1 >= y0);
    if (this.isEmpty) [x0, x1, y0, y1] = [0, 1, 0.1, 1];
    if (x0 === x1) x1 = x0 + 1;
    const room = y0 === y1 ? Math.abs(y0) / 2 || 1 : 0.04 * (y1 - y0);
    if (this.isLog) [y0, y1] = y0 === y1 ? [y0 / 2, y1 * 2] : [y0 / 1.1, y1 * 1.1];
    else [y0, y1] = [y0 - room, y1 + room];
    Object.assign(this, { x0, x1, y0, y1 });
  }

  get inner() {
    return [this.width - EDGE.left - EDGE.right, this.height - EDGE.top - EDGE.bottom];
  }

  left(x) { return EDGE.left + ((x - this.x0) / (this.x1 - this.x0)) * this.inner[0]; }

  top(y) {
    const way = this.isLog ? Math.log : (value) => value;
    const part = (way(y) - way(this.y0)) / (way(this.y1) - way(this.y0));
    return EDGE.top + (1 - Math.max(-0.5, Math.min(1.5, part))) * this.inner[1];
  }

  at(x, y) { return `${this.left(x).toFixed(1)} ${this.top(y).toFixed(1)}`; }

  paint() {
    const cut = shape("clipPath", { id: this.clip });
    const [width, height] = this.inner.map((size) => Math.max(0, size + 12));
    cut.append(shape("rect", { x: EDGE.left - 6, y: EDGE.top - 6, width, height }));
    const drawn = shape("g", { "clip-path": `url(#${this.clip})` });
    drawn.append(...this.lines.filter(({ curve }) => curve.high).map((line) => this.band(line)),
                 ...this.lines.flatMap((line) => this.line(line)));
    this.mark = shape("g");
    this.svg.replaceChildren(...this.axes(), cut, drawn, this.mark);
    if (this.isEmpty) {
      const words = this.isLog ? "no value above 0" : "no values yet";
      this.svg.append(label(words, this.width / 2, this.height / 2, "middle"));
    }
    this.svg.setAttribute("aria-label", this.summary());
    this.showLast();
    this.point(this.cursor);
  }

  axes() {
    const [right, floor] = [this.width - EDGE.right, this.height - EDGE.bottom];
    const across = (y, kind) => shape("line", { x1: EDGE.left, x2: right, y1: y, y2: y, class: kind });
    const parts = [across(floor, "axis")];
    for (const y of ticks(this.y0, this.y1, this.height / 44, this.isLog)) {
      const at = this.top(y);
      parts.push(across(at, "grid"), label(short(y), EDGE.left - 6, at + 4, "end"));
    }
    for (const x of ticks(this.x0, this.x1, this.width / 90, false)) {
      const at = this.left(x);
      const words = this.isTime ? duration(x) : whole(x);
      parts.push(shape("line", { x1: at, x2: at, y1: floor, y2: floor + 4, class: "axis" }),
                 label(words, Math.min(at, this.width - 22), this.height - 8, "middle"));
    }
    return parts;
  }

  line({ curve, colour, name, isDots, width = 1.8, dot = 3.2 }) {
    const xs = this.xs(curve);
    let isGap = true;
    const pieces = curve.value.map((value, i) => {
      if (!this.usable(value)) {
        isGap = true;
        return "";
      }
      const way = isGap ? "M" : "L";
      isGap = false;
      return way + this.at(xs[i], value);
    });
    const path = shape("path", { d: pieces.join(""), stroke: colour, "stroke-width": width,
                                 class: isDots ? "line dotted" : "line", "data-name": name,
                                 "data-points": curve.value.length });
    const last = curve.value.length - 1;
    const isSeen = (i) => this.usable(curve.value[i]) && (last < MOST_DOTS || i === last);
    const places = isDots || last === 0 ? xs.map((_, i) => i).filter(isSeen) : [];
    return [path, ...places.map((i) => this.dot(xs[i], curve.value[i], dot, colour))];
  }

  dot(x, y, r, fill) {
    return shape("circle", { cx: this.left(x), cy: this.top(y), r, fill, class: "dot" });
  }

  /** Between low and high, in pieces where there is no value; an unknown end is the edge. */
  band({ curve, colour }) {
    const xs = this.xs(curve);
    const pieces = [[]];
    curve.value.forEach((value, i) => {
      if (this.usable(value)) pieces.at(-1).push(i);
      else pieces.push([]);
    });
    const end = (values, edge) => (i) => this.at(xs[i], this.usable(values[i]) ? values[i] : edge);
    const outline = (piece) => [...piece.map(end(curve.high, this.y1)),
                                ...piece.toReversed().map(end(curve.low, this.y0))];
    const d = pieces.filter((piece) => piece.length)
      .map((piece) => `M${outline(piece).join("L")}Z`).join("");
    return shape("path", { d, fill: colour, class: "band" });
  }

  /** For those who do not see it. */
  summary() {
    const last = this.lines.map(({ name, curve }) => {
      const values = curve.value.filter((value) => value !== null);
      if (!values.length) return `${name}: none`;
      return `${name}: ${figure(values.at(-1))} last, ${figure(Math.min(...values))} lowest`;
    });
    return `${this.title}. ${last.join(". ")}`;
  }

  /** Which curve is which, and its last value. */
  showLast() {
    this.lasts.replaceChildren(...this.lines.map((line) => {
      const last = line.curve.value.findLast((value) => value !== null);
      return this.entry(line, last === undefined ? "" : figure(last));
    }));
  }

  entry({ name, colour, isDots }, words) {
    const kind = isDots ? "swatch" : "swatch stroke";
    return el("span", { class: "entry" }, el("span", { class: kind, style: { background: colour } }),
              this.lines.length > 1 ? `${name} ${words}` : words);
  }

  // ---- the cursor, and looking closer

  /** Show the values at a place on the x axis; null: at none. */
  point(x) {
    this.cursor = x;
    this.mark.replaceChildren();
    this.readout.hidden = x === null || this.isEmpty;
    if (this.readout.hidden) return;
    const found = this.lines.map((line) => {
      const { value } = line.curve;
      return { line, i: nearest(this.xs(line.curve), x, (k) => value[k] !== null) };
    }).filter(({ i }) => i >= 0);
    const place = ({ line, i }) => this.xs(line.curve)[i];
    const best = found.reduce((a, b) => (Math.abs(place(b) - x) < Math.abs(place(a) - x) ? b : a));
    const at = this.left(place(best));
    this.mark.append(shape("line", { x1: at, x2: at, y1: EDGE.top, y2: this.height - EDGE.bottom,
                                     class: "cursor" }));
    const step = best.line.curve.step[best.i];
    const words = this.isTime ? duration(place(best)) : `step ${whole(step)}`;
    this.readout.replaceChildren(el("strong", {}, words), ...found.map(({ line, i }) => {
      const { value, low, high } = line.curve;
      const isRange = high && (low[i] !== value[i] || high[i] !== value[i]);
      const range = isRange ? ` (${figure(low[i] ?? 0)} to ${figure(high[i]) || "no bound"})` : "";
      if (this.usable(value[i])) {
        this.mark.append(this.dot(place({ line, i }), value[i], 4, line.colour));
      }
      return this.entry(line, figure(value[i]) + range);
    }));
    this.readout.classList.toggle("at-left", at > this.width / 2);
  }

  toX(event) {
    const part = (event.clientX - this.svg.getBoundingClientRect().left - EDGE.left) / this.inner[0];
    return this.x0 + Math.max(0, Math.min(1, part)) * (this.x1 - this.x0);
  }

  /** The step at a place on the x axis. */
  toStep(x) {
    const { curve } = this.lines[0];
    return this.isTime ? curve.step[nearest(curve.time, x)] : Math.round(x);
  }

  listen() {
    const { svg } = this;
    let began = null;
    const isDrag = (event) => began && Math.abs(event.clientX - began.at) >= DRAG;
    const leave = () => { if (!began && this.mark) this.point(null); };
    svg.addEventListener("pointermove", (event) => {
      if (this.isEmpty || !this.mark) return;
      this.point(this.toX(event));
      if (!isDrag(event)) return;
      const [from, to] = [this.left(began.x), this.left(this.toX(event))];
      this.mark.append(shape("rect", { x: Math.min(from, to), width: Math.abs(to - from),
                                       y: EDGE.top, height: this.inner[1], class: "dragged" }));
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0 || this.isEmpty) return;
      began = { at: event.clientX, x: this.toX(event) };
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointerup", (event) => {
      const ends = isDrag(event) ? [this.toStep(began.x), this.toStep(this.toX(event))] : [];
      const [from, to] = ends.sort((a, b) => a - b);
      began = null;
      if (to > from) this.onZoom(from, to);
    });
    svg.addEventListener("pointercancel", () => { began = null; });
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("dblclick", () => this.onZoom());
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.onZoom();
    if (!way || this.isEmpty) return;
    event.preventDefault();
    const xs = this.xs(this.lines[0].curve);
    const now = this.cursor === null ? (way > 0 ? -1 : xs.length) : nearest(xs, this.cursor);
    const next = now + way * (event.shiftKey ? 10 : 1);
    this.point(xs[Math.max(0, Math.min(xs.length - 1, next))]);
  }
}
