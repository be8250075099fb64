// One example as a thumbnail in a list: its picture, and a caption with its label and what is
// suggested in its place.

import { el, short } from "./dom.js";
import { classColour } from "./palette.js";

export const altOf = (model, row) =>
  `Example ${row}` + (model.about.has_labels ? `, ${model.className(model.label[row])}` : "");

/** "cat", "cat → dog" where another label is suggested or was given. */
export function labelWords(model, row) {
  if (!model.about.has_labels) return "";
  const own = model.className(model.label[row]);
  const other = model.target[row] >= 0 ? model.target[row] : model.suggested[row];
  return other < 0 || other === model.label[row] ? own : `${own} → ${model.className(other)}`;
}

/** The picture of an example as a button that shows it. */
export function thumbButton(model, source, act, row, title, show = act.show) {
  const inside = model.about.picture ? source.picture(row, title)
    : el("span", { class: "number" }, `#${row}`);
  const edge = model.about.has_labels ? { borderColor: classColour(model.label[row]) } : {};
  return el("button", { class: "thumb", type: "button", title, "data-row": row, style: edge,
                        onclick: () => show(row),
                        onpointerenter: () => act.point(row),
                        onpointerleave: () => act.point(-1) }, inside);
}

export function thumbItem(model, source, act, row, show = act.show) {
  const reason = model.about.reasons[model.reason[row]];
  const loss = Number.isFinite(model.loss[row]) ? `, loss ${short(model.loss[row])}` : "";
  const what = model.kept[row] ? reason || "kept" : reason || "dropped";
  const words = labelWords(model, row);
  const title = `${altOf(model, row)}${words.includes("→") ? ` (${words})` : ""}: ${what}${loss}`;
  const keep = source.isCopy || model.kept[row] ? null : el("button", { class: "back",
    type: "button", title: `Keep example ${row}`, "aria-label": `Keep example ${row}`,
    onclick: () => act.mark([row], true) }, "keep");
  return el("li", {}, thumbButton(model, source, act, row, title, show),
    el("span", { class: words.includes("→") ? "caption other" : "caption", title: words }, words),
    el("span", { class: "caption" }, what), keep);
}
