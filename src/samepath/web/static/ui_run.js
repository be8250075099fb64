// A run, or several over one another: live curves, and whether they are on the same path.

import { el, find, whole } from "./dom.js";
import { classColour } from "./palette.js";
import { Chart } from "./ui_chart.js";
import { back, badge, card, facts, keep, numbers, progress, segments } from "./ui_parts.js";
import { Note } from "./ui_note.js";
import { report } from "./ui_report.js";
import { otherRuns, settings } from "./ui_settings.js";
import { duration, figure, known, titleOf } from "./ui_words.js";

const ORDER = [0, 3, 2, 6, 1, 4, 8, 5, 9, 10, 7, 11]; // neighbours in a legend differ most
const FIRST = ["loss", "valid_accuracy", "noise_scale", "learning_rate", "gradient_norm"];
const FOLDED = ["noise_variance", "noise_signal"];
const isFolded = (name) => FOLDED.includes(name) || name.startsWith("epoch_train_");
const OF_RECIPES = ["advice", "profile", "simulation"];

const colour = (k) => classColour(ORDER[k % ORDER.length]);

export class RunPage {
  constructor(ids, state, go) {
    Object.assign(this, { ids, state, go, range: null, charts: new Map() });
    this.head = el("div", { class: "head-box" });
    this.said = el("div", { class: "said", role: "status" });
    this.legend = el("ul", { class: "legend", "aria-label": "Runs" });
    this.whole = el("button", { type: "button", hidden: true, onclick: () => this.zoom() },
                    "All steps");
    const choose = (name) => (value) => {
      state[name] = value;
      this.drawCharts();
    };
    const controls = el("div", { class: "controls" },
      segments("Across", [["step", "By step"], ["time", "By time"]], state.across, choose("across")),
      segments("Up", [["linear", "Linear"], ["log", "Log"]], state.up, choose("up")),
      this.whole);
    this.none = el("p", { class: "empty" }, "Reading the metrics ...");
    this.grid = el("div", { class: "charts" });
    this.folded = el("div", { class: "charts" });
    this.more = el("details", { class: "fold", hidden: true }, el("summary", {}, "More curves"),
                   this.folded);
    this.others = el("details", { class: "fold", open: state.isOthersOpen,
                                  ontoggle: () => { state.isOthersOpen = this.others.open; } },
                     el("summary", {}, "Compare with other runs"));
    this.cards = el("ul", { class: "cards" });
    this.findings = el("section", { class: "findings", hidden: true },
                       el("h2", {}, "Findings about this run"), this.cards);
    this.below = el("div", { class: "below" });
    this.note = new Note();
    this.report = el("div", { class: "reports" });
    this.element = el("div", { class: "page run-page" }, back(), this.head, this.note.element,
                      this.said, controls,
                      this.legend, this.none, this.grid, this.more, this.others, this.findings,
                      this.below, this.report);
  }

  get address() {
    const range = this.range ? `?from=${this.range[0]}&to=${this.range[1]}` : "";
    return `/api/runs/${this.ids.join(",")}${range}`;
  }

  zoom(from, to) {
    this.range = from === undefined ? null : [from, to];
    this.whole.hidden = !this.range;
    this.go.refresh();
  }

  change(ids) { this.go(ids.length ? `#/run/${ids.join(",")}` : "#/"); }

  show({ runs, said }) {
    this.runs = runs;
    const [run] = runs;
    find("title").textContent = runs.length > 1 ? `${runs.length} runs` : run.name;
    find("title").title = run.path;
    this.drawHead(run);
    this.note.show(runs.length === 1 && !run.error ? run : null);
    const kind = (same) => (same ? "same" : same === false ? "other-path" : "quiet");
    this.said.replaceChildren(...said.map(({ same, words }) => el("p", { class: kind(same) }, words)));
    this.drawLegend();
    this.drawCharts();
    this.drawBelow();
    const page = run.files.find((file) => file.kind === "page");
    if (page && runs.length === 1) report(this.report, run, page);
  }

  drawHead(run) {
    const isAlone = this.runs.length === 1;
    const parts = isAlone
      ? [el("p", { class: "page-title" }, el("strong", {}, run.name), " ", badge(run)),
         ...[run.error, run.message].filter(Boolean).map((words) => el("p", { class: "warn" }, words)),
         progress(run), run.error ? null : facts(this.figures(run), "numbers-list large")]
      : [el("p", { class: "page-title" }, el("strong", {}, `${this.runs.length} runs compared`))];
    for (const { name, num_unreadable: number } of this.runs) {
      const words = `${name}: ${whole(number)} lines of metrics.jsonl cannot be read`;
      if (number) parts.push(el("p", { class: "warn" }, words));
    }
    this.head.replaceChildren(...parts.filter(Boolean));
  }

  figures(run) {
    const pairs = numbers(run).filter(([name]) => name !== "digest");
    const noise = pairs.find(([name]) => name === "noise scale");
    const [low, high] = [figure(run.noise_low) || "0", figure(run.noise_high) || "no bound"];
    if (noise) noise[1] += ` (${low} to ${high})`;
    const speed = run.examples_per_second;
    const more = [["time per step", duration(run.step_seconds)],
                  ["examples per second", known(speed) ? whole(Math.round(speed)) : ""],
                  ["run time", duration(run.seconds)], ["host", run.host || ""],
                  ["time left", known(run.seconds_left) ? `~${duration(run.seconds_left)}` : ""]];
    return [...pairs, ...more.filter(([, words]) => words)];
  }

  drawLegend() {
    this.legend.hidden = this.runs.length < 2;
    const said = this.runs.map((run) => [run.id, run.status, run.workers]);
    const text = JSON.stringify([said, colour(0)]);
    if (this.legendDrawn === text) return;
    this.legendDrawn = text;
    this.legend.replaceChildren(...this.runs.map((run, k) => el("li", { class: "entry" },
      el("span", { class: "swatch", style: { background: colour(k) } }),
      el("a", { href: `#/run/${run.id}` }, run.name),
      known(run.workers) ? ` ${run.workers} worker${run.workers > 1 ? "s" : ""}` : "", badge(run),
      el("button", { type: "button", class: "link", "aria-label": `Remove ${run.name}`,
                     onclick: () => this.change(this.ids.filter((id) => id !== run.id)) },
         "\u00d7"))));
  }

  // ---- curves

  /** The charts there are to draw, in order. */
  names() {
    const names = new Set(this.runs.flatMap((run) => Object.keys(run.curves)));
    const isLoss = [names.delete("train_loss"), names.delete("valid_loss")].some(Boolean);
    if (isLoss) names.add("loss");
    const isVaried = (run) => new Set(run.curves.batch_size?.value).size > 1;
    if (!this.runs.some(isVaried)) names.delete("batch_size");
    const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name)
      : name.startsWith("valid_") || name.startsWith("train_") ? 1.5 : FIRST.length);
    return [...names].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
  }

  drawCharts() {
    if (!this.runs) return;
    const names = this.names();
    for (const name of this.charts.keys()) if (!names.includes(name)) this.charts.delete(name);
    for (const name of names) {
      if (this.charts.has(name)) continue;
      const chart = new Chart(titleOf(name), (from, to) => this.zoom(from, to));
      chart.element.dataset.name = name;
      chart.element.classList.toggle("wide", name === "loss");
      this.charts.set(name, chart);
    }
    this.place(this.grid, names.filter((name) => !isFolded(name)));
    this.place(this.folded, names.filter(isFolded));
    this.more.hidden = !this.folded.children.length;
    this.none.hidden = names.length > 0;
    this.none.textContent = this.range ? "No step was logged in this range."
      : "No metrics yet: they appear with the first step.";
    const isTime = this.state.across === "time";
    for (const [name, chart] of this.charts) {
      const isLog = this.state.up === "log" && !name.includes("accuracy"); // which nears 1, not 0
      chart.set(this.lines(name), { isLog, isTime });
    }
  }

  /** Put charts into a box, unless they are there already. */
  place(box, names) {
    const wanted = names.map((name) => this.charts.get(name).element);
    const isThere = (element, i) => element === box.children[i];
    if (wanted.length === box.children.length && wanted.every(isThere)) return;
    box.replaceChildren(...wanted);
  }

  lines(name) {
    const isAlone = this.runs.length === 1;
    return this.runs.flatMap((run, k) => {
      // runs on the same path lie on one another: wide below, narrow on top, so that each is seen
      const below = (this.runs.length - 1 - k) * Math.min(1, 4 / this.runs.length);
      const line = (column, words, how = {}) => (run.curves[column] ? [{
        name: words, colour: colour(k), width: how.isDots ? 1.2 : 1.6 + 1.8 * below,
        dot: 3.2 + 1.7 * below, curve: run.curves[column], ...how,
      }] : []);
      const called = this.shortName(run);
      if (name !== "loss") {
        const how = { isDots: name.startsWith("valid_"), isInterval: name === "noise_scale" };
        return line(name, isAlone ? titleOf(name) : called, how);
      }
      const valid = { isDots: true, colour: colour(isAlone ? 1 : k) };
      return [...line("train_loss", isAlone ? "training" : `${called}, training`),
              ...line("valid_loss", isAlone ? "validation" : `${called}, validation`, valid)];
    });
  }

  /** The last part of a run's place, if that tells it from the others. */
  shortName(run) {
    const last = (each) => each.name.split("/").at(-1);
    const isAmbiguous = this.runs.filter((each) => last(each) === last(run)).length > 1;
    return isAmbiguous ? run.name : last(run);
  }

  // ---- below the curves

  drawBelow() {
    const { runs } = this;
    const text = JSON.stringify(runs.map((run) => [run.config, run.command, run.resume, run.digest]));
    if (this.belowDrawn === text) return;
    this.belowDrawn = text;
    this.below.replaceChildren(...settings(runs.filter((run) => !run.error)));
  }

  /** Other runs to tick, and what was found out about this one or its recipe. */
  showOthers(items) {
    const runs = items.filter((item) => item.kind === "run" && !item.error);
    const recipe = runs.find((run) => run.id === this.ids[0])?.recipe;
    const isAbout = (item) => item.parent === this.ids[0] ||
      (OF_RECIPES.includes(item.kind) && item.recipe === recipe);
    const found = items.filter((item) => item.kind !== "run" && isAbout(item));
    this.findings.hidden = !found.length || this.ids.length > 1;
    keep(this.cards, found, card);
    const text = JSON.stringify(runs.map((run) => [run.id, run.digest]));
    this.others.hidden = runs.length < 2;
    if (this.othersDrawn === text) return;
    this.othersDrawn = text;
    runs.sort((a, b) => (b.recipe === recipe) - (a.recipe === recipe));
    this.others.replaceChildren(this.others.firstChild,
                                ...otherRuns(runs, this.ids, (ids) => this.change(ids)));
  }

  theme() {
    if (!this.runs) return;
    this.drawLegend();
    this.drawCharts();
  }
}
