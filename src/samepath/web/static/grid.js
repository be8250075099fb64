// Finds points: the nearest one to a place, and all inside an outline.

export class Grid {
  constructor(x, y) {
    this.x = x;
    this.y = y;
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < x.length; i++) {
      if (x[i] < x0) x0 = x[i];
      if (x[i] > x1) x1 = x[i];
      if (y[i] < y0) y0 = y[i];
      if (y[i] > y1) y1 = y[i];
    }
    this.bounds = { x0, x1, y0, y1 };
    this.side = Math.max(1, Math.min(512, Math.round(Math.sqrt(x.length / 2))));
    this.cellWidth = (x1 - x0) / this.side || 1;
    this.cellHeight = (y1 - y0) / this.side || 1;
    // rows sorted by cell: those of cell c are rows[start[c]] to rows[start[c + 1] - 1]
    this.start = new Uint32Array(this.side * this.side + 1);
    for (let i = 0; i < x.length; i++) this.start[this.cell(x[i], y[i]) + 1]++;
    for (let c = 0; c < this.side * this.side; c++) this.start[c + 1] += this.start[c];
    const next = this.start.slice();
    this.rows = new Uint32Array(x.length);
    for (let i = 0; i < x.length; i++) this.rows[next[this.cell(x[i], y[i])]++] = i;
  }

  column(x) {
    const at = Math.floor((x - this.bounds.x0) / this.cellWidth);
    return Math.max(0, Math.min(this.side - 1, at));
  }

  line(y) {
    const at = Math.floor((y - this.bounds.y0) / this.cellHeight);
    return Math.max(0, Math.min(this.side - 1, at));
  }

  cell(x, y) {
    return this.line(y) * this.side + this.column(x);
  }

  /** The nearest point within a radius that `allowed` says yes to, or -1. */
  nearest(x, y, radius, allowed) {
    let best = -1;
    let least = radius * radius;
    for (let row = this.line(y - radius); row <= this.line(y + radius); row++) {
      for (let col = this.column(x - radius); col <= this.column(x + radius); col++) {
        const cell = row * this.side + col;
        for (let k = this.start[cell]; k < this.start[cell + 1]; k++) {
          const i = this.rows[k];
          const square = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
          if (square < least && allowed(i)) [best, least] = [i, square];
        }
      }
    }
    return best;
  }

  /** Points inside an outline [[x, y], ...] that `allowed` says yes to. */
  inside(outline, allowed) {
    const xs = outline.map((p) => p[0]);
    const ys = outline.map((p) => p[1]);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    const [y0, y1] = [Math.min(...ys), Math.max(...ys)];
    const found = [];
    for (let i = 0; i < this.x.length; i++) {
      const x = this.x[i], y = this.y[i];
      if (x < x0 || x > x1 || y < y0 || y > y1 || !allowed(i)) continue;
      let odd = false;
      for (let a = 0, b = xs.length - 1; a < xs.length; b = a++) {
        if ((ys[a] > y) !== (ys[b] > y) &&
            x < ((xs[b] - xs[a]) * (y - ys[a])) / (ys[b] - ys[a]) + xs[a]) odd = !odd;
      }
      if (odd) found.push(i);
    }
    return found;
  }
}
