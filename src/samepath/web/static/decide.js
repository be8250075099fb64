// What is known of one example, in words, and the buttons that keep, drop or relabel.

import { el, percent, short } from "./dom.js";
import { labelWords } from "./thumb.js";

const MOST_FACTS = 8;

/** A rank from 0 to 1 in words; never rounded up to all. */
function among(rank) {
  if (rank === 1) return "the highest";
  if (rank === 0) return "the lowest";
  const share = Math.max(rank, 1 - rank);
  const shown = Math.floor(share * 1000) / 10;
  return `${rank >= 0.5 ? "higher" : "lower"} than ${shown >= 99 ? shown : Math.floor(shown)}%`;
}

/** Doubt is the share of examples that are doubted less, here and in every table: below 100%, also
 * of the most doubtful, whose rank is 1. */
export function doubtWords(doubt, rank) {
  if (rank === 1) return "the most doubtful of all";
  const shown = Math.floor(doubt * 10) / 10;
  return `more doubtful than ${shown >= 99 ? shown : Math.floor(shown)}%`;
}

/** What is known of an example, as a list. */
export function factsOf(model, row) {
  const { about } = model;
  const lines = [];
  if (about.has_labels) {
    lines.push(["Class", model.className(model.label[row])]);
    if (model.target[row] >= 0) lines.push(["Trained as", model.className(model.target[row]), "other"]);
    else if (labelWords(model, row).includes("→")) {
      lines.push(["Suggested", model.className(model.suggested[row]), "other"]);
    }
  }
  if (about.has_guesses) {
    const isOther = about.has_labels && model.guess[row] !== model.label[row];
    const says = `${model.className(model.guess[row])}, ${percent(model.sure[row], 1)} sure`;
    lines.push(["Model says", says, isOther ? "other" : ""]);
  }
  if (Number.isFinite(model.confidence[row])) {
    const judge = about.label_noise?.predictions ? ", unseen" : about.label_noise ? ", by the quick judge" : "";
    lines.push(["Confidence", `${percent(model.confidence[row], 1)} in its label${judge}`]);
  }
  if (Number.isFinite(model.loss[row])) {
    lines.push(["Loss", `${short(model.loss[row])}, ${among(model.lossRank[row])}`]);
  }
  if (Number.isFinite(model.doubt[row])) lines.push(["Doubt", doubtWords(model.doubt[row], model.doubtRank[row])]);
  if (Number.isFinite(model.trainingMargin[row])) {
    lines.push(["Training margin", short(model.trainingMargin[row])]);
  }
  lines.push(["Cluster", model.cluster[row] < 0 ? "none: noise" : String(model.cluster[row])]);
  for (const [name, values] of Object.entries(about.facts).slice(0, MOST_FACTS)) {
    if (values[row] !== null) lines.push([name, String(values[row])]);
  }
  if (model.notes.has(row)) lines.push(["Note", model.notes.get(row)]);
  return el("dl", { class: "facts" }, lines.map(([name, value, kind]) =>
    [el("dt", {}, name), el("dd", { class: kind || "" }, value)]).flat());
}

export function verdict(model, row) {
  const reason = model.about.reasons[model.reason[row]];
  const isKept = model.kept[row];
  const isRelabelled = model.target[row] >= 0;
  const state = isRelabelled ? "relabelled" : isKept ? "kept" : "dropped";
  const words = reason.endsWith("by hand") ? reason : state + (reason ? `: ${reason}` : "");
  return el("span", { class: `verdict ${state}` }, words);
}

/** A list of the classes that relabels as soon as one is chosen. */
export function classChoice(model, id, words, choose) {
  const choice = el("select", { id, "aria-label": words, title: words },
    el("option", { value: "" }, "Relabel as …"),
    model.about.classes.map(({ name }, label) => el("option", { value: label }, name)));
  choice.addEventListener("change", () => {
    const label = choice.value;
    choice.value = "";
    choice.blur();
    if (label !== "") choose(label === "-1" ? null : Number(label));
  });
  return choice;
}

/** Keep, drop and relabel; `done` follows a decision. */
export function decideButtons(model, act, rows, done = () => {}) {
  const [row] = rows();
  const decide = (decision) => async () => {
    await decision();
    await done();
  };
  const hasSuggestion = labelWords(model, row).includes("→") && model.target[row] < 0;
  const buttons = [
    el("button", { type: "button", class: "keep", title: "Keep, with its own label (k)",
                   disabled: !!model.kept[row] && model.target[row] < 0,
                   onclick: decide(() => act.mark(rows(), true)) }, "Keep"),
    el("button", { type: "button", class: "drop", disabled: !model.kept[row], title: "Drop (d)",
                   onclick: decide(() => act.mark(rows(), false)) }, "Drop"),
  ];
  if (model.about.has_labels) {
    buttons.push(el("button", { type: "button", class: "relabel", disabled: !hasSuggestion,
      title: "Relabel as suggested (r)", onclick: decide(() => act.relabel(rows(), null)) },
      hasSuggestion ? `Relabel: ${model.className(model.suggested[row])}` : "Relabel"),
    classChoice(model, null, "Relabel as another class",
                (label) => decide(() => act.relabel(rows(), label))()));
  }
  return el("div", { class: "buttons" }, buttons);
}
