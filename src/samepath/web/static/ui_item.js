// A study, a finding or a curation: its verdict, its report, its figures, the runs it is made of.

import { el, find, whole } from "./dom.js";
import { about, back, badge, card, command, keep, kindBadge } from "./ui_parts.js";
import { addressOf, report } from "./ui_report.js";
import { RunTable } from "./ui_table.js";
import { ago, joined } from "./ui_words.js";

const MOST_COMPARED = 12;
const IN_A_TAB = { target: "_blank", rel: "noopener" };

const size = (bytes) => (bytes < 1e6 ? `${whole(Math.ceil(bytes / 1e3))} kB`
  : `${(bytes / 1e6).toFixed(1)} MB`);

export class ItemPage {
  constructor(id, state, go) {
    Object.assign(this, { id, state, go });
    this.head = el("div", { class: "head-box" });
    this.report = el("div", { class: "reports" });
    this.pictures = el("div", { class: "pictures" });
    this.compare = el("button", { type: "button",
                                  onclick: () => go(`#/run/${this.ticked().join(",")}`) });
    this.rows = new RunTable(state, () => this.drawParts());
    this.cards = el("ul", { class: "cards" });
    this.parts = el("section", { hidden: true }, el("h2", {}, "Contains"),
                    el("p", { class: "buttons-row" }, this.compare), this.rows.element, this.cards);
    this.below = el("div", { class: "below" });
    this.element = el("div", { class: "page item-page" }, back(), this.head, this.report,
                      this.pictures, this.parts, this.below);
  }

  get address() { return `/api/item/${this.id}`; }

  show(item) {
    this.item = item;
    find("title").textContent = item.name;
    find("title").title = item.path;
    this.head.replaceChildren(...[
      el("p", { class: "page-title" }, el("strong", {}, item.name), " ", kindBadge(item), " ",
         badge(item)),
      el("p", { class: "quiet" }, joined(about(item), ago(item.time))),
      item.error ? el("p", { class: "warn" }, item.error) : null,
      item.verdict ? el("p", { class: "big-verdict" }, item.verdict) : null,
    ].filter(Boolean));
    const page = item.files.find((file) => file.kind === "page");
    if (page) report(this.report, item, page);
    this.drawParts();
    const text = JSON.stringify([item.files, item.command, item.explore]);
    if (this.belowDrawn === text) return;
    this.belowDrawn = text;
    this.drawPictures(page);
    this.drawBelow();
  }

  /** Its figures, where it has no page that shows them. */
  drawPictures(page) {
    const pictures = page ? [] : this.item.files.filter((file) => file.kind === "picture");
    this.pictures.replaceChildren(...pictures.map((file) => el("figure", {},
      el("img", { src: `${addressOf(this.item, file)}?${file.stamp}`, alt: file.name,
                  loading: "lazy" }),
      el("figcaption", { class: "quiet" }, file.name))));
  }

  drawBelow() {
    const { command: typed, explore, files } = this.item;
    const parts = [];
    if (explore) {
      parts.push(el("h2", {}, "Look at every example, and correct what was decided"), command(explore));
    }
    if (typed) parts.push(el("h2", {}, "Command"), command(typed));
    const links = files.filter((file) => file.kind !== "page").map((file) => {
      const how = file.kind === "picture" ? IN_A_TAB : { download: file.name };
      const name = file.is_large ? file.name
        : el("a", { href: addressOf(this.item, file), ...how }, file.name);
      const where = file.is_large ? `, too large to send: it is in ${this.item.path}` : "";
      return el("li", {}, name, " ", el("span", { class: "quiet" }, size(file.size) + where));
    });
    if (links.length) parts.push(el("h2", {}, "Files"), el("ul", { class: "files" }, links));
    this.below.replaceChildren(...parts);
  }

  ticked() {
    const { parts } = this.item;
    return parts.map((part) => part.id).filter((id) => this.state.ticked.has(id));
  }

  drawParts() {
    const { parts } = this.item;
    const runs = parts.filter((part) => part.kind === "run");
    this.parts.hidden = !parts.length;
    const number = this.ticked().length;
    this.compare.parentElement.hidden = runs.length < 2;
    this.compare.disabled = !number || number > MOST_COMPARED;
    this.compare.textContent = number > 1 ? `Compare ${number} runs` : "Tick runs to compare them";
    this.rows.draw(runs.map((run) => ({ ...run, shown: run.name.split("/").at(-1) })));
    keep(this.cards, parts.filter((part) => part.kind !== "run"), card);
  }
}
