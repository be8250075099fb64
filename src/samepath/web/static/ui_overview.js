// The overview: everything there is, newest first, with a filter; runs can be ticked to compare.

import { el, find, whole } from "./dom.js";
import { card, command, keep, segments } from "./ui_parts.js";
import { RunTable, compares } from "./ui_table.js";

const GROUPS = [
  ["runs", "Runs", ["run"]],
  ["studies", "Studies", ["study", "comparison", "folds"]],
  ["findings", "Findings", ["advice", "profile", "curvature", "simulation"]],
  ["curations", "Curations", ["curation"]],
];
const STEP = 100; // rows of a group that are shown before the user asks for more
const MOST_COMPARED = 12;
const TRY = ["samepath train digits", "samepath advise digits", "samepath study digits"];

export class Overview {
  constructor(state, go) {
    Object.assign(this, { state, go, groups: {} });
    const filter = el("input", {
      type: "search", id: "filter", value: state.filter, autocomplete: "off", spellcheck: false,
      placeholder: "Filter: words, workers=2, loss<0.01", "aria-label": "Filter",
      title: "Words of names, recipes, statuses, notes, digests; columns: workers=2 loss<0.01 status:run",
      oninput: () => this.change({ filter: filter.value }),
    });
    this.kinds = el("div", {});
    this.parts = el("label", { class: "check" },
      el("input", { type: "checkbox", checked: state.parts,
                    onchange: (event) => this.change({ parts: event.target.checked }) }),
      "runs of studies too");
    this.notes = el("div", { class: "notes" });
    this.body = el("div", { class: "groups" }, GROUPS.map(([id, name]) => this.group(id, name)));
    this.empty = el("div", { class: "empty", hidden: true });
    this.compare = el("div", { class: "compare-bar", hidden: true, role: "region",
                               "aria-label": "Ticked runs" });
    this.element = el("div", { class: "page overview" },
      el("div", { class: "toolbar" }, filter, this.kinds, this.parts),
      this.notes, this.body, this.empty, this.compare);
  }

  group(id, name) {
    const table = id === "runs" ? new RunTable(this.state, () => this.drawCompare()) : null;
    const list = table?.element || el("ul", { class: "cards" });
    const more = el("button", { type: "button", class: "more", onclick: () => {
      this.groups[id].most += STEP;
      this.draw();
    } });
    const section = el("section", { id: `group-${id}` }, el("h2", {}, name), list, more);
    this.groups[id] = { list, table, more, section, most: STEP };
    return section;
  }

  change(how) {
    Object.assign(this.state, how);
    this.draw();
  }

  show(overview) {
    this.overview = overview;
    const { folder, place } = overview;
    find("title").textContent = folder === "." ? place.split("/").at(-1) : folder;
    find("title").title = place;
    this.draw();
  }

  isShown(item) {
    const { filter, parts } = this.state;
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    const { name, recipe, kind, status, title, verdict, digest, strategy, note, host } = item;
    const text = [name, recipe, kind, status, title, verdict, digest, strategy, note, host]
      .join(" ").toLowerCase();
    const isPart = kind === "run" && item.parent;
    return words.every((word) => compares(item, word) ?? text.includes(word)) &&
      (!isPart || parts || words.length > 0 || item.is_live);
  }

  draw() {
    const { items, notes } = this.overview;
    const shown = items.filter((item) => this.isShown(item));
    const found = GROUPS.map(([id, name, kinds]) =>
      [id, name, shown.filter((item) => kinds.includes(item.kind))]);
    this.drawKinds(found);
    this.parts.hidden = !items.some((item) => item.kind === "run" && item.parent);
    this.notes.replaceChildren(...notes.map((note) => el("p", { class: "warn" }, note)));
    for (const [id, , inGroup] of found) this.drawGroup(id, inGroup);
    this.drawEmpty(items.length > 0);
    this.drawCompare();
  }

  drawKinds(found) {
    const text = JSON.stringify([this.state.kind, found.map(([, , inGroup]) => inGroup.length)]);
    if (this.kindsDrawn === text) return;
    this.kindsDrawn = text;
    const isHeld = this.kinds.contains(document.activeElement);
    const choices = found.map(([id, name, inGroup]) => [id, `${name} ${whole(inGroup.length)}`]);
    this.kinds.replaceChildren(segments("Kinds", [["all", "All"], ...choices], this.state.kind,
                                        (kind) => this.change({ kind })));
    if (isHeld) this.kinds.querySelector("input:checked").focus();
  }

  drawGroup(id, found) {
    const { kind } = this.state;
    const { list, table, more, section, most } = this.groups[id];
    section.hidden = !found.length || (kind !== "all" && kind !== id);
    more.hidden = found.length <= most;
    const next = Math.min(STEP, found.length - most);
    more.textContent = `Show ${whole(next)} more of ${whole(found.length)}`;
    if (table) table.draw(found, most);
    else keep(list, found.slice(0, most), card);
  }

  drawEmpty(isAny) {
    this.empty.hidden = Object.values(this.groups).some(({ section }) => !section.hidden);
    const text = isAny ? "filtered" : this.overview.place;
    if (this.empty.hidden || this.emptyDrawn === text) return;
    this.emptyDrawn = text;
    this.empty.replaceChildren(...(isAny
      ? [el("p", { class: "lead" }, "Nothing matches the filter."),
         el("p", {}, "Change the filter to see more.")]
      : [el("p", { class: "lead" }, "Nothing here yet."),
         el("p", {}, `Train something in ${this.overview.place}, and it appears here by itself:`),
         ...TRY.map(command)]));
  }

  drawCompare() {
    const { ticked } = this.state;
    const there = new Set(this.overview.items.map((item) => item.id));
    for (const id of ticked) if (!there.has(id)) ticked.delete(id);
    const isMany = ticked.size > MOST_COMPARED;
    this.compare.hidden = !ticked.size;
    const clear = () => {
      ticked.clear();
      for (const box of this.body.querySelectorAll(".tick input")) box.checked = false;
      this.drawCompare();
    };
    const text = `${[...ticked]}`;
    if (this.compareDrawn === text) return;
    this.compareDrawn = text;
    this.compare.replaceChildren(
      el("span", {}, `${ticked.size} run${ticked.size > 1 ? "s" : ""} ticked`),
      el("button", { type: "button", class: "primary", disabled: isMany,
                     onclick: () => this.go(`#/run/${[...ticked].join(",")}`) },
         ticked.size > 1 ? "Compare" : "Open"),
      el("button", { type: "button", class: "link", onclick: clear },
         isMany ? `at most ${MOST_COMPARED}: clear` : "clear"));
  }
}
