// Runs in a table: sorted by any column, filtered by words and by comparisons, saved as CSV.

import { el, short, whole } from "./dom.js";
import { badge, keep, linkOf, progress, sparkline } from "./ui_parts.js";
import { ago, duration, figure, joined, known } from "./ui_words.js";

const MOST_METRICS = 2; // that have a column of their own; a CSV file has all

// key, heading, value to sort and filter by, words shown, what else is shown on wide screens only
const COLUMNS = [
  ["workers", "workers", (run) => run.workers, String],
  ["batch", "batch", (run) => run.batch_size, whole],
  ["seed", "seed", (run) => run.seed, String, "roomy"],
  ["epochs", "epochs", (run) => run.epochs, short],
  ["steps", "steps", (run) => run.steps, whole, "roomy"],
  ["train_loss", "training loss", (run) => run.train_loss, figure],
  ["loss", "validation loss", (run) => run.valid_loss, figure],
];
const LAST = [
  ["noise", "noise scale", (run) => run.noise_scale, short, "roomy"],
  ["time", "time", (run) => run.seconds, duration],
  ["left", "left", (run) => run.seconds_left, (seconds) => `~${duration(seconds)}`],
  ["digest", "digest", (run) => run.digest, (digest) => digest.slice(0, 8)],
];
const TEXTS = {
  name: (run) => run.name, recipe: (run) => run.recipe, status: (run) => run.status,
  strategy: (run) => run.strategy, digest: (run) => run.digest, note: (run) => run.note,
  host: (run) => run.host,
};
const NEWEST = "newest";
const COMPARED = /^([a-z_]+)(<=|>=|<|>|=|:)(.+)$/;

function columnsOf(runs) {
  const names = new Set(runs.flatMap((run) => Object.keys(run.metrics || {})));
  const metrics = [...names].slice(0, MOST_METRICS)
    .map((name) => [name, name.replaceAll("_", " "), (run) => run.metrics?.[name], figure]);
  return [...COLUMNS, ...metrics, ...LAST]
    .filter(([, , value]) => runs.some((run) => known(value(run))));
}

const numberOf = (run, name) => {
  const column = [...COLUMNS, ...LAST].find(([key]) => key === name);
  return column ? column[2](run) : run.metrics?.[name];
};

/** Whether a run is what a word of the filter asks for; null if the word asks for no column. */
export function compares(run, word) {
  const found = word.match(COMPARED);
  if (!found) return null;
  const [, name, sign, wanted] = found;
  if (name in TEXTS) {
    const text = String(TEXTS[name](run) ?? "").toLowerCase();
    return sign === "=" ? text === wanted : sign === ":" ? text.includes(wanted) : null;
  }
  const value = numberOf(run, name);
  const limit = Number(wanted);
  if (!known(value) || Number.isNaN(limit)) return false;
  return { "<": value < limit, "<=": value <= limit, ">": value > limit, ">=": value >= limit,
           "=": value === limit, ":": value === limit }[sign];
}

/** Runs in the order of a column; those of which it is not known come last. */
export function sorted(runs, [key, direction]) {
  if (key === NEWEST) return runs;
  const value = key === "name" ? TEXTS.name : (run) => numberOf(run, key);
  const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
  const isKnown = runs.filter((run) => known(value(run)));
  const unknown = runs.filter((run) => !known(value(run)));
  return [...isKnown.sort((a, b) => direction * order(value(a), value(b))), ...unknown];
}

/** A CSV file of runs, with every metric. A text that a spreadsheet would compute is quoted. */
export function csv(runs) {
  const metrics = [...new Set(runs.flatMap((run) => Object.keys(run.metrics || {})))].sort();
  const all = [
    ...Object.entries(TEXTS).slice(0, 4), ...COLUMNS.map(([key, , value]) => [key, value]),
    ...metrics.map((name) => [name, (run) => run.metrics?.[name]]),
    ["noise_scale", (run) => run.noise_scale], ["seconds", (run) => run.seconds],
    ["seconds_left", (run) => run.seconds_left], ["digest", (run) => run.digest],
    ["host", (run) => run.host], ["path", (run) => run.path], ["note", (run) => run.note],
  ];
  const cell = (value) => {
    if (!known(value)) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [all.map(([name]) => cell(name)),
                 ...runs.map((run) => all.map(([, value]) => cell(value(run))))];
  return `${lines.map((line) => line.join(",")).join("\r\n")}\r\n`;
}

function save(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  el("a", { href: address, download: "runs.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

export class RunTable {
  /** `state` keeps what is ticked and how it is sorted; `onTick` is told when a tick has changed. */
  constructor(state, onTick) {
    Object.assign(this, { state, onTick, runs: [] });
    this.head = el("thead", {});
    this.body = el("tbody", {});
    this.choice = el("select", { "aria-label": "Sort runs by", onchange: () => {
      this.state.sort = this.choice.value.split(" ").map((part, i) => (i ? Number(part) : part));
      this.draw(this.runs, this.most);
    } });
    const button = el("button", { type: "button", class: "csv",
                                  title: "Save these runs, in this order, as a CSV file",
                                  onclick: () => save(csv(sorted(this.runs, this.state.sort))) }, "CSV");
    this.element = el("div", { class: "run-table" },
      el("div", { class: "table-tools" }, this.choice, button),
      el("div", { class: "rows scroll" }, el("table", {}, this.head, this.body)));
  }

  draw(runs, most = Infinity) {
    Object.assign(this, { runs, most });
    this.element.hidden = !runs.length;
    const columns = columnsOf(runs);
    const [by, direction] = this.state.sort;
    this.drawHead(columns, by, direction);
    const shown = sorted(runs, this.state.sort).slice(0, most);
    const form = columns.map(([key]) => key).join();
    if (this.form !== form) this.body.kept = undefined; // every row has other cells
    this.form = form;
    keep(this.body, shown, (run) => this.row(run, columns));
  }

  drawHead(columns, by, direction) {
    const text = JSON.stringify([columns.map(([key]) => key), by, direction]);
    if (this.headDrawn === text) return;
    this.headDrawn = text;
    const hasFocus = this.head.contains(document.activeElement) ? by : null;
    const heading = ([key, words, , , kind = ""]) => {
      const isChosen = key === by;
      const sort = isChosen ? (direction > 0 ? "ascending" : "descending") : "none";
      const click = () => {
        this.state.sort = isChosen && direction > 0 ? [key, -1] : isChosen ? [NEWEST, 1] : [key, 1];
        this.draw(this.runs, this.most);
      };
      const arrow = isChosen ? (direction > 0 ? " \u2191" : " \u2193") : "";
      return el("th", { scope: "col", "aria-sort": sort, class: `${key === "name" ? "" : "number"} ${kind}` },
                el("button", { type: "button", class: "link", "data-sort": key, onclick: click },
                   words + arrow));
    };
    this.head.replaceChildren(el("tr", {}, el("td", {}), heading(["name", "run"]),
                                 el("td", { class: "roomy" }), columns.map(heading)));
    if (hasFocus) this.head.querySelector(`[data-sort="${hasFocus}"]`)?.focus();
    const choices = [[NEWEST, "newest first", 1], ["name", "name", 1],
                     ...columns.map(([key, words]) => [key, words, 1]),
                     ...columns.map(([key, words]) => [key, `${words}, highest first`, -1])];
    this.choice.replaceChildren(...choices.map(([key, words, way]) =>
      el("option", { value: `${key} ${way}`, selected: key === by && (way === direction || key === NEWEST) },
         `Sort: ${words}`)));
  }

  row(run, columns) {
    const { ticked } = this.state;
    const change = (event) => {
      if (event.target.checked) ticked.add(run.id);
      else ticked.delete(run.id);
      this.onTick();
    };
    const tick = el("input", { type: "checkbox", checked: ticked.has(run.id), onchange: change,
                               "aria-label": `Compare ${run.name}`, disabled: Boolean(run.error) });
    const strategy = run.strategy === "strong" ? "" : run.strategy;
    const where = run.is_live && run.host ? `on ${run.host}` : "";
    const who = el("td", { class: "who" },
      el("p", {}, el("a", { href: linkOf(run) }, run.shown || run.name), " ", badge(run)),
      el("p", { class: "quiet" }, run.error || joined(run.recipe, strategy, ago(run.time), where)),
      run.note ? el("p", { class: "note-line" }, run.note) : null,
      run.message ? el("p", { class: "warn" }, run.message) : null,
      progress(run));
    const cells = columns.map(([, name, value, words, kind = ""]) => {
      const found = run.error ? null : value(run);
      return el("td", { class: `number ${kind}`, "data-name": name }, known(found) ? words(found) : "");
    });
    return el("tr", { class: "row run", "data-id": run.id },
      el("td", { class: "tick-cell" }, el("label", { class: "tick" }, tick)), who,
      el("td", { class: "curve roomy" }, sparkline(run.spark || [])), cells);
  }
}
