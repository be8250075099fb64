// The map: what each point looks like, and what is drawn above them: names, rings, the lasso.

import { find } from "./dom.js";
import { Grid } from "./grid.js";
import { isDark, painter } from "./palette.js";
import { listen, zoomBy } from "./pointer.js";
import { CHOSEN, PointMap, RING } from "./renderer.js";

const MAX_NAMES = 60;
const CELLS = 28;

/** Where each class is densest: there its name stands. */
function namePlaces(model, { x0, x1, y0, y1 }) {
  const counts = model.about.classes.map(() => new Uint32Array(CELLS * CELLS));
  const cell = (value, low, high) =>
    Math.min(CELLS - 1, Math.floor(((value - low) / (high - low || 1)) * CELLS));
  for (let i = 0; i < model.num; i++) {
    counts[model.label[i]][cell(model.y[i], y0, y1) * CELLS + cell(model.x[i], x0, x1)]++;
  }
  const around = (count, at) => {
    let sum = 0;
    for (const step of [-CELLS - 1, -CELLS, -CELLS + 1, -1, 0, 1, CELLS - 1, CELLS, CELLS + 1]) {
      sum += count[at + step] || 0;
    }
    return sum;
  };
  return counts.map((count, label) => {
    let best = 0;
    let most = -1;
    for (let at = 0; at < count.length; at++) {
      const sum = count[at] ? around(count, at) : 0;
      if (sum > most) [best, most] = [at, sum];
    }
    const x = x0 + ((best % CELLS) + 0.5) * ((x1 - x0) / CELLS);
    const y = y0 + (Math.floor(best / CELLS) + 0.5) * ((y1 - y0) / CELLS);
    return { label, x, y, size: most };
  }).filter(({ size }) => size > 0).sort((a, b) => b.size - a.size);
}

export class MapView {
  constructor(model, act) {
    this.model = model;
    this.near = [];
    this.outline = null;
    this.isLasso = false;
    this.grid = new Grid(model.x, model.y);
    this.names = namePlaces(model, this.grid.bounds);
    const box = find("map");
    this.map = new PointMap(box, find("points"), find("overlay"), () => this.drawOver());
    this.map.setPlaces(model.x, model.y);
    this.map.fit(this.grid.bounds);
    this.paint();
    listen(this.map, (...place) => this.pick(...place), {
      isLasso: () => this.isLasso,
      hover: (row, left, top) => {
        this.point(row);
        act.hover(row, left, top);
      },
      click: (row, event) => act.click(row, event),
      lasso: (outline, isDone, event) => this.lasso(outline, isDone, event, act),
    });
    model.on("data look filters selection theme", () => this.paint());
    model.on("pin", () => this.drawOver());
    for (const [id, factor] of [["zoom-in", 1.6], ["zoom-out", 1 / 1.6]]) {
      find(id).addEventListener("click", () => zoomBy(this.map, factor));
    }
    find("zoom-fit").addEventListener("click", () => this.map.fit(this.grid.bounds));
    find("use-pan").addEventListener("click", () => this.useLasso(false));
    find("use-lasso").addEventListener("click", () => this.useLasso(true));
  }

  useLasso(isLasso) {
    this.isLasso = isLasso;
    find("use-pan").setAttribute("aria-pressed", !isLasso);
    find("use-lasso").setAttribute("aria-pressed", isLasso);
    find("overlay").classList.toggle("lasso", isLasso);
  }

  pick(left, top, radius) {
    const [x, y] = this.map.toWorld(left, top);
    return this.grid.nearest(x, y, radius / this.map.view.scale, (i) => this.model.isVisible(i));
  }

  /** `event` is null when the lasso was given up. */
  lasso(outline, isDone, event, act) {
    this.outline = isDone ? null : outline;
    this.drawOver();
    if (!isDone || !event || outline.length < 3) return;
    act.select(this.grid.inside(outline, (i) => this.model.isVisible(i)), event.altKey);
    this.useLasso(false);
  }

  /** Ring the example that is pointed at, here or in a list. */
  point(row) {
    if (this.model.hovered === row) return;
    this.model.hovered = row;
    this.drawOver();
  }

  setNear(rows) {
    this.near = rows;
    this.drawOver();
  }

  centre(row) {
    const { map, model } = this;
    if (map.zoom < 2.5) map.view.scale = 2.5 * map.home;
    Object.assign(map.view, { x: model.x[row], y: model.y[row] });
    map.moved();
  }

  /** Move there only if it cannot be seen. */
  reveal(row) {
    const [left, top] = this.map.toScreen(this.model.x[row], this.model.y[row]);
    const { width, height } = this.map;
    if (left < 10 || top < 10 || left > width - 10 || top > height - 10) this.centre(row);
  }

  paint() {
    const { model } = this;
    const { num, lit, selected } = model;
    const colourOf = painter(model, model.colourBy);
    const colours = new Uint8Array(4 * num);
    const forms = new Uint8Array(num);
    const layers = [[], [], [], []]; // not lit, kept, dropped, selected
    const alpha = num > 20000 ? 190 : 215;
    for (let i = 0; i < num; i++) {
      if (!model.isVisible(i)) continue;
      const colour = colourOf(i);
      const isLit = lit === null || model.label[i] === lit;
      const isChosen = selected.has(i);
      colours[4 * i] = colour[0];
      colours[4 * i + 1] = colour[1];
      colours[4 * i + 2] = colour[2];
      colours[4 * i + 3] = isLit ? (model.kept[i] ? alpha : 255) : 26;
      forms[i] = (model.kept[i] ? 0 : RING) + (isChosen ? CHOSEN : 0);
      layers[isChosen ? 3 : !isLit ? 0 : model.kept[i] ? 1 : 2].push(i);
    }
    this.numVisible = layers.reduce((sum, layer) => sum + layer.length, 0);
    find("map-empty").hidden = this.numVisible > 0;
    const edge = isDark() ? [1, 1, 1] : [0, 0, 0];
    this.map.setLook(colours, forms, Uint32Array.from(layers.flat()), edge);
  }

  drawOver() {
    const { map, model } = this;
    if (!map) return; // still being made
    const canvas = map.overlay;
    const draw = canvas.getContext("2d");
    const styles = getComputedStyle(document.documentElement);
    const [ink, ground] = ["--ink", "--map"].map((name) => styles.getPropertyValue(name));
    draw.setTransform(map.ratio, 0, 0, map.ratio, 0, 0);
    draw.clearRect(0, 0, map.width, map.height);
    this.drawNames(draw, ink, ground);
    const ring = (row, radius, width) => {
      const [left, top] = map.toScreen(model.x[row], model.y[row]);
      for (const [colour, more] of [[ground, 2.5], [ink, 0]]) {
        draw.beginPath();
        draw.arc(left, top, radius, 0, 2 * Math.PI);
        draw.lineWidth = width + more;
        draw.strokeStyle = colour;
        draw.stroke();
      }
      return [left, top];
    };
    if (model.pinned >= 0) {
      const from = map.toScreen(model.x[model.pinned], model.y[model.pinned]);
      draw.lineWidth = 1;
      draw.strokeStyle = ink;
      for (const row of this.near) {
        draw.globalAlpha = 0.5;
        draw.beginPath();
        draw.moveTo(...from);
        draw.lineTo(...map.toScreen(model.x[row], model.y[row]));
        draw.stroke();
        draw.globalAlpha = 1;
        ring(row, 6, 1);
      }
      ring(model.pinned, 10, 2.5);
    }
    if (model.hovered >= 0) ring(model.hovered, 8, 1.5);
    if (this.outline) {
      draw.beginPath();
      for (const place of this.outline) draw.lineTo(...map.toScreen(...place));
      draw.closePath();
      draw.fillStyle = styles.getPropertyValue("--veil");
      draw.fill();
      draw.setLineDash([5, 4]);
      draw.lineWidth = 1.5;
      draw.strokeStyle = styles.getPropertyValue("--accent");
      draw.stroke();
      draw.setLineDash([]);
    }
  }

  drawNames(draw, ink, ground) {
    const { map, model } = this;
    if (!model.about.has_labels || model.about.classes.length > MAX_NAMES) return;
    const taken = [];
    draw.font = "600 13px system-ui, sans-serif";
    draw.textAlign = "center";
    draw.textBaseline = "middle";
    draw.lineJoin = "round";
    for (const { label, x, y } of this.names) {
      if (model.hiddenClasses.has(label) || (model.lit !== null && model.lit !== label)) continue;
      const name = model.className(label);
      const [left, top] = map.toScreen(x, y);
      const half = draw.measureText(name).width / 2 + 4;
      const overlaps = taken.some(([l, t, h]) => Math.abs(l - left) < h + half && Math.abs(t - top) < 18);
      if (overlaps) continue;
      taken.push([left, top, half]);
      draw.lineWidth = 4;
      draw.strokeStyle = ground;
      draw.strokeText(name, left, top);
      draw.fillStyle = ink;
      draw.fillText(name, left, top);
    }
  }
}
