// What is known of the examples, what a person chose to see of them, and who wants to know.

const COLUMNS = ["x", "y", "loss", "doubt", "sure", "confidence", "trainingMargin", "label",
                 "guess", "suggested", "target", "cluster", "kept", "reason", "seen"];
const NUM_FLOATS = 7;

/** Place of each value among all, from 0 (lowest) to 1, -1 where there is none; and all, sorted. */
function ranks(values) {
  const rank = new Float32Array(values.length).fill(-1);
  const rows = Uint32Array.from(values.keys()).filter((i) => Number.isFinite(values[i]));
  rows.sort((a, b) => values[a] - values[b]);
  rows.forEach((row, place) => { rank[row] = place / Math.max(1, rows.length - 1); });
  return [rank, Float32Array.from(rows, (i) => values[i])];
}

export class Model {
  constructor(about, points) {
    this.listeners = {};
    this.colourBy = "class";
    this.hiddenClasses = new Set();
    this.hiddenGroups = new Set();
    this.test = null; // what must hold of an example that is shown
    this.selected = new Set();
    this.pinned = -1;
    this.hovered = -1;
    this.lit = null; // a class that is pointed at in the list
    this.load(about, points);
  }

  load(about, points) {
    this.about = about;
    this.num = about.num_examples;
    COLUMNS.forEach((name, k) => {
      const Kind = k < NUM_FLOATS ? Float32Array : Int32Array;
      this[name] = new Kind(points, 4 * this.num * k, this.num);
    });
    this.notes = new Map(Object.entries(about.notes).map(([row, note]) => [Number(row), note]));
    this.state = about;
    this.before = null;
    this.counted = null;
    [this.lossRank, this.losses] = ranks(this.loss);
    [this.doubtRank, this.doubts] = ranks(this.doubt);
    this.worst = about.has_doubts ? this.doubtRank : this.lossRank;
  }

  on(names, listener) {
    for (const name of names.split(" ")) (this.listeners[name] ||= []).push(listener);
  }

  tell(name) {
    for (const listener of this.listeners[name] || []) listener();
  }

  // ---- words

  className(label) { return this.about.classes[label]?.name ?? String(label); }

  /** Kept or dropped, and why, as one number: what the list of reasons is made of. */
  group(i) { return this.reason[i] * 2 + this.kept[i]; }

  groupName(group) {
    const reason = this.about.reasons[group >> 1];
    return reason || (group & 1 ? "kept" : "dropped, no reason given");
  }

  // ---- what is seen

  isVisible(i) {
    return !this.hiddenClasses.has(this.label[i]) && !this.hiddenGroups.has(this.group(i)) &&
      (!this.test || this.test(i));
  }

  counts() {
    if (this.counted) return this.counted;
    const classes = this.about.classes.map(() => ({ all: 0, kept: 0 }));
    const groups = new Map();
    let kept = 0;
    for (let i = 0; i < this.num; i++) {
      classes[this.label[i]].all++;
      classes[this.label[i]].kept += this.kept[i];
      kept += this.kept[i];
      const group = this.group(i);
      groups.set(group, (groups.get(group) || 0) + 1);
    }
    this.counted = { kept, all: this.num, classes, groups };
    return this.counted;
  }

  /** Which eps and min_samples a class has now. */
  setting(label) {
    const { eps, min_samples: minSamples } = this.about.classes[label];
    return this.state.settings[label] || [eps, minSamples];
  }

  // ---- what changes

  /** Follow a change that the server made. */
  apply(change) {
    this.endPreview(false);
    this.put(change);
    change.rows.forEach((row, k) => {
      if (change.notes[k]) this.notes.set(row, change.notes[k]);
      else this.notes.delete(row);
    });
    this.state = change;
    this.tell("data");
    this.tell("state");
  }

  /** Show a change that is not made yet. */
  preview(change) {
    this.endPreview(false);
    const { rows } = change;
    this.before = { rows, kept: rows.map((i) => this.kept[i]),
                    reasons: rows.map((i) => this.reason[i]),
                    clusters: rows.map((i) => this.cluster[i]),
                    targets: rows.map((i) => this.target[i]) };
    this.put(change);
    this.tell("data");
  }

  endPreview(tell = true) {
    if (!this.before) return;
    this.put(this.before);
    this.before = null;
    if (tell) this.tell("data");
  }

  put({ rows, kept, reasons, clusters, targets }) {
    this.counted = null;
    rows.forEach((row, k) => {
      this.kept[row] = kept[k];
      this.reason[row] = reasons[k];
      this.cluster[row] = clusters[k];
      this.target[row] = targets[k];
    });
  }

  select(rows) {
    this.selected = new Set(rows);
    this.tell("selection");
  }

  pin(row) {
    this.pinned = row;
    this.tell("pin");
  }

  /** What keys and buttons act on: the selection, or else the example that is pinned. */
  chosen() {
    if (this.selected.size) return [...this.selected];
    return this.pinned >= 0 ? [this.pinned] : [];
  }
}
