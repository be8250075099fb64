// A chart of curves over steps or time: bands, lines, a cursor that reads values off, and a stretch
// that can be dragged over to look closer. uPlot (vendor/) draws; this module says what is drawn,
// where the axes end, and the words.

import { el, short, whole } from "./dom.js";
import { duration, figure } from "./ui_words.js";

const { uPlot } = window; // a plain script, which the page loads before its modules
const DRAG = 8; // pixels: less is a click
const MOST_DOTS = 60;
const VEIL = "38"; // of a band's colour: 22% opaque
const WHOLE_STEPS = Array.from({ length: 12 }, (_, k) => [1, 2, 5].map((part) => part * 10 ** k)).flat();

/** A number with one digit that is not 0, such as 0.03: where uPlot begins to count on a log axis. */
const rounded = (value, way) => {
  const power = 10 ** Math.floor(Math.log10(value));
  return Number((way(value / power) * power).toPrecision(2));
};

const nearest = (values, x) => values.reduce((best, value, i) =>
  (best < 0 || Math.abs(value - x) < Math.abs(values[best] - x) ? i : best), -1);

export class Chart {
  /** `onZoom(from, to)` is told which steps were dragged over; without arguments: all again. */
  constructor(title, onZoom) {
    Object.assign(this, { title, onZoom, lines: [], uplot: null, cursor: null });
    this.lasts = el("p", { class: "lasts" });
    this.readout = el("div", { class: "readout", hidden: true });
    this.none = el("p", { class: "no-values", hidden: true });
    this.plot = el("div", { class: "plot", role: "img", tabindex: "0", onblur: () => this.point(null),
                            onkeydown: (event) => this.key(event) });
    this.box = el("div", { class: "plot-box" }, this.plot, this.none, this.readout);
    this.element = el("figure", { class: "chart" },
                      el("figcaption", {}, el("h3", {}, title), this.lasts), this.box);
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  /** `lines`: {name, colour, width, dot, curve, isDots, isInterval}, the last on top. A curve has
   *  step, time and value, and maybe low and high. */
  set(lines, { isLog, isTime }) {
    Object.assign(this, { lines, isLog, isTime });
    this.measure();
    this.none.hidden = !this.isEmpty;
    this.none.textContent = isLog ? "no value above 0" : "no values yet";
    this.plot.setAttribute("aria-label", this.summary());
    this.plot.dataset.points = lines.map(({ curve }) => curve.value.length).join(" ");
    this.showLast();
    this.draw();
  }

  xs(curve) { return this.isTime ? curve.time : curve.step; }

  usable(value) { return value !== null && value !== undefined && (!this.isLog || value > 0); }

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
    const room = y0 === y1 ? Math.abs(y0) / 2 || 1 : 0.04 * (y1 - y0);
    this.xEnds = [x0, x0 === x1 ? x0 + 1 : x1];
    const space = y0 === y1 ? 2 : 1.1;
    this.yEnds = this.isLog ? [rounded(y0 / space, Math.floor), rounded(y1 * space, Math.ceil)]
      : [y0 - room, y1 + room];
  }

  // ---- drawing

  draw() {
    if (!this.box.isConnected) { // its page is gone: uPlot listens to the window
      this.uplot?.destroy();
      Object.assign(this, { uplot: null, look: "" });
    }
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height || !this.lines.length) return;
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(["quiet", "line", "strong-line", "panel"].map((name) =>
      [name, style.getPropertyValue(`--${name}`).trim()]));
    const how = this.lines.map(({ curve, ...line }) => [line, Boolean(curve.high)]);
    const look = JSON.stringify([how, colours, this.isLog, this.isTime]);
    if (look === this.look) {
      const isSame = this.uplot.width === width && this.uplot.height === height;
      if (!isSame) this.uplot.setSize({ width, height });
      this.uplot.setData(this.data());
    } else {
      this.uplot?.destroy();
      this.look = look;
      this.uplot = new uPlot({ width, height, ...this.options(colours) }, this.data(), this.plot);
    }
  }

  get banded() { return this.lines.filter(({ curve }) => curve.high); }

  /** Columns for uPlot: places, then high and low of each band, then the values of each line. An
   *  unknown end of a band is the edge. */
  data() {
    const bands = this.banded.map(({ curve }) => {
      const { value, low, high } = curve;
      const end = (ends, edge) => value.map((each, i) =>
        (!this.usable(each) ? null : this.usable(ends[i]) ? ends[i] : edge));
      return [this.xs(curve), end(high, this.yEnds[1]), end(low, this.yEnds[0])];
    });
    const lines = this.lines.map(({ curve }) =>
      [this.xs(curve), curve.value.map((value) => (this.usable(value) ? value : null))]);
    return uPlot.join([...bands, ...lines]);
  }

  options(colours) {
    const { banded, isTime } = this;
    const axis = { stroke: colours.quiet, font: "11px system-ui, sans-serif", gap: 7 };
    const edge = { stroke: "transparent", width: 0, points: { show: false, filter: () => null } };
    const isLine = (k) => k > 2 * banded.length;
    return {
      legend: { show: false },
      padding: [10, 24, 0, 0],
      scales: { x: { time: false, range: () => this.xEnds },
                y: { distr: this.isLog ? 3 : 1, range: () => this.yEnds } },
      axes: [
        { ...axis, size: 28, space: 90, grid: { show: false }, ...(isTime ? {} : { incrs: WHOLE_STEPS }),
          values: (_, places) => places.map(isTime ? duration : whole),
          ticks: { stroke: colours["strong-line"], width: 1, size: 4 },
          border: { show: true, stroke: colours["strong-line"], width: 1 } },
        { ...axis, size: 54, space: 36, ticks: { show: false },
          grid: { stroke: colours.line, width: 1, // a line for each label
                  filter: (u, ...places) => u.axes[1].filter(u, ...places) },
          values: (_, places) => places.map((y) => (y === null ? "" : short(y))) },
      ],
      series: [{}, ...banded.flatMap(() => [edge, edge]),
               ...this.lines.map((line) => this.series(line, colours.panel))],
      bands: banded.map(({ colour }, k) => ({ series: [2 * k + 1, 2 * k + 2], fill: colour + VEIL })),
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false, dist: DRAG },
        hover: { skip: [null, undefined] },
        points: { size: (_, k) => (isLine(k) ? 9 : 0), width: 1.2, stroke: () => colours.panel,
                  fill: (_, k) => this.lines[k - 1 - 2 * banded.length]?.colour },
        move: (u, left, top) =>
          [left < 0 ? left : u.valToPos(u.data[0][u.posToIdx(left)], "x"), top],
        bind: { dblclick: () => () => this.onZoom() },
      },
      hooks: { ready: [(u) => this.follow(u.over)], setCursor: [(u) => this.read(u)],
               setSelect: [(u) => this.lookCloser(u)] },
    };
  }

  series({ colour, isDots, width = 1.8, dot = 3.2 }, ground) {
    const known = (values) => values.map((_, i) => i).filter((i) => this.usable(values[i]));
    const places = (u, k) => {
      const found = known(u.data[k]);
      if (!isDots && found.length > 1) return null;
      return found.length > MOST_DOTS ? found.slice(-1) : found;
    };
    return {
      stroke: colour, width, dash: isDots ? [5, 3] : [], pxAlign: 0,
      points: { show: false, filter: places, size: 2 * dot + 1.2, width: 1.2, stroke: ground, fill: colour },
    };
  }

  // ---- words

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

  /** Show the values where uPlot's cursor is. */
  read(u) {
    const { left, idxs } = u.cursor;
    const first = u.data.length - this.lines.length;
    const found = this.lines.map((line, k) => ({ line, x: u.data[0][idxs[first + k]] }))
      .filter(({ x }) => x !== undefined);
    this.readout.hidden = left < 0 || !found.length;
    this.cursor = null;
    if (this.readout.hidden) return;
    const at = u.posToVal(left, "x");
    const { x } = found[nearest(found.map((each) => each.x), at)];
    this.cursor = x;
    const words = this.isTime ? duration(x) : `step ${whole(x)}`;
    this.readout.replaceChildren(el("strong", {}, words), ...found.map(({ line, x: place }) => {
      const { value, low, high } = line.curve;
      const i = this.xs(line.curve).lastIndexOf(place);
      const isRange = high && (low[i] !== value[i] || high[i] !== value[i]);
      const range = isRange ? ` (${figure(low[i] ?? 0)} to ${figure(high[i]) || "no bound"})` : "";
      return this.entry(line, figure(value[i]) + range);
    }));
    this.readout.classList.toggle("at-left", left > u.over.clientWidth / 2);
  }

  /** Put the cursor at a place on the x axis; null: away. */
  point(x) {
    const left = x === null ? -10 : this.uplot?.valToPos(x, "x");
    this.uplot?.setCursor({ left, top: left < 0 ? -10 : 0 });
  }

  /** Follow a finger too: uPlot only listens to a mouse. */
  follow(over) {
    over.addEventListener("pointermove", (event) => {
      const left = event.clientX - over.getBoundingClientRect().left;
      if (event.pointerType !== "mouse") this.uplot.setCursor({ left, top: 0 });
    });
  }

  /** Tell which steps were dragged over. */
  lookCloser(u) {
    const { left, width } = u.select;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const [from, to] = [left, left + width].map((at) => this.toStep(u.posToVal(at, "x")));
    if (to > from) this.onZoom(from, to);
  }

  /** The step at a place on the x axis. */
  toStep(x) {
    const { curve } = this.lines[0];
    return this.isTime ? curve.step[nearest(curve.time, x)] : Math.round(x);
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
