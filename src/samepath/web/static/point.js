// One example: the card that follows the mouse, and the right panel for the one that is pinned,
// with its facts, its note and its nearest neighbours.

import { el, find, percent, say, short } from "./dom.js";
import { classColour } from "./palette.js";

const NUM_SHOWN = 12;

export const altOf = (model, row) =>
  `Example ${row}` + (model.about.has_labels ? `, ${model.className(model.label[row])}` : "");

/** A rank from 0 to 1 in words; never rounded up to all. */
function among(rank) {
  if (rank === 1) return "the highest";
  if (rank === 0) return "the lowest";
  const share = Math.max(rank, 1 - rank);
  const shown = Math.floor(share * 1000) / 10;
  return `${rank >= 0.5 ? "higher" : "lower"} than ${shown >= 99 ? shown : Math.floor(shown)}%`;
}

/** What is known of an example, as [name, value, class] lines. */
function facts(model, row) {
  const { about } = model;
  const lines = [];
  if (about.has_labels) lines.push(["Class", model.className(model.label[row])]);
  if (about.has_guesses) {
    const isOther = about.has_labels && model.guess[row] !== model.label[row];
    const says = `${model.className(model.guess[row])}, ${percent(model.confidence[row], 1)} sure`;
    lines.push(["Model says", says, isOther ? "other" : ""]);
  }
  if (Number.isFinite(model.loss[row])) {
    lines.push(["Loss", `${short(model.loss[row])}, ${among(model.lossRank[row])}`]);
  }
  if (Number.isFinite(model.doubt[row])) lines.push(["Doubt", `${short(model.doubt[row])} of 1`]);
  lines.push(["Cluster", model.cluster[row] < 0 ? "none: noise" : String(model.cluster[row])]);
  if (model.notes.has(row)) lines.push(["Note", model.notes.get(row)]);
  return el("dl", { class: "facts" }, lines.map(([name, value, kind]) =>
    [el("dt", {}, name), el("dd", { class: kind || "" }, value)]).flat());
}

function verdict(model, row) {
  const reason = model.about.reasons[model.reason[row]];
  const isKept = model.kept[row];
  const words = reason.endsWith("by hand") ? reason : `${isKept ? "kept" : "dropped"}` +
    (reason ? `: ${reason}` : "");
  return el("span", { class: `verdict ${isKept ? "kept" : "dropped"}` }, words);
}

export function hoverCard(model, source, box) {
  const card = find("hover");
  let shown = -1;
  return (row, left, top) => {
    if (row < 0) {
      card.hidden = true;
      shown = -1;
      return;
    }
    if (row !== shown) {
      const picture = model.about.picture ? source.picture(row, altOf(model, row)) : null;
      card.replaceChildren(...[picture && el("div", { class: "frame" }, picture),
        el("div", { class: "words" }, el("div", { class: "head" }, `#${row}`, verdict(model, row)),
           facts(model, row))].filter(Boolean));
      shown = row;
    }
    card.hidden = false;
    const room = 14;
    const [width, height] = [card.offsetWidth, card.offsetHeight];
    const flip = left + room + width > box.clientWidth;
    card.style.left = `${Math.max(4, flip ? left - room - width : left + room)}px`;
    card.style.top = `${Math.max(4, Math.min(top + room, box.clientHeight - height - 4))}px`;
  };
}

export function pointPanel(model, source, act) {
  const box = find("point");
  let drawn = -1;

  const thumbnail = (row, title) => {
    const isOther = model.about.has_labels && model.label[row] !== model.label[model.pinned];
    const colour = classColour(model.label[row]);
    const inside = model.about.picture ? source.picture(row, altOf(model, row)) : `#${row}`;
    const name = model.about.has_labels ? model.className(model.label[row]) : `#${row}`;
    return el("li", {}, el("button", { class: "thumb", type: "button", title, "data-row": row,
                                       onclick: () => act.show(row),
                                       onpointerenter: () => act.point(row),
                                       onpointerleave: () => act.point(-1),
                                       style: { borderColor: colour } }, inside),
      el("span", { class: isOther ? "caption other" : "caption" },
         (model.kept[row] ? "" : "dropped ") + name));
  };

  const neighbours = async (row, list) => {
    try {
      const near = await source.neighbours(row);
      if (model.pinned !== row) return;
      act.near(near.map(([other]) => other));
      list.replaceChildren(...near.slice(0, NUM_SHOWN).map(([other, distance]) =>
        thumbnail(other, `${altOf(model, other)}; distance ${short(distance)}`)));
      const others = near.filter(([other]) => model.label[other] !== model.label[row]).length;
      if (others && model.about.has_labels) {
        find("near-words").textContent = `${others} of ${near.length} are of another class`;
      }
    } catch (error) {
      say(error.message, "error");
    }
  };

  const draw = () => {
    const row = model.pinned;
    find("tab-point").textContent = row < 0 ? "Example" : `Example ${row}`;
    if (row < 0) {
      drawn = -1;
      act.near([]);
      box.replaceChildren(el("div", { class: "empty" },
        el("p", { class: "lead" }, "Point at the map to see an example."),
        el("p", {}, source.isCopy ? "Click one to pin it here."
          : "Click one to pin it here, with its nearest neighbours. Draw around many with the lasso, then keep or drop them.")));
      return;
    }
    const noteWas = model.notes.get(row) || "";
    const saveNote = (event) => {
      const note = event.target.value.trim().replace(/\s+/g, " ");
      if (note !== (model.notes.get(row) || "")) act.note([row], note);
    };
    const buttons = source.isCopy ? null : el("div", { class: "buttons" },
      el("button", { type: "button", class: "keep", disabled: !!model.kept[row], title: "Keep (k)",
                     onclick: () => act.mark([row], true) }, "Keep"),
      el("button", { type: "button", class: "drop", disabled: !model.kept[row], title: "Drop (d)",
                     onclick: () => act.mark([row], false) }, "Drop"));
    const note = source.isCopy ? null : el("label", { class: "note" }, el("span", {}, "Note"),
      el("input", { id: "note", type: "text", value: noteWas, maxLength: 500, autocomplete: "off",
                    placeholder: "Why? (saved with the keep-list)", onchange: saveNote }));
    const old = drawn === row ? box.querySelector(".neighbours") : null;
    const list = el("ul", { class: "thumbs" });
    const near = source.isCopy ? null : old || el("section", { class: "neighbours" },
      el("h3", {}, "Nearest neighbours"), el("p", { class: "quiet", id: "near-words" }), list);
    box.replaceChildren(...[
      model.about.picture && el("div", { class: "frame large" }, source.picture(row, altOf(model, row))),
      el("div", { class: "head" }, verdict(model, row), el("button", { type: "button",
        class: "link", onclick: () => act.centre(row), title: "Show it on the map" }, "locate"),
        el("button", { type: "button", class: "link", title: "Release it (Esc)",
                       onclick: () => model.pin(-1) }, "close")),
      buttons, facts(model, row), note, near].filter(Boolean));
    if (!old && near) neighbours(row, list);
    drawn = row;
  };
  model.on("pin data state", draw);
  draw();
}
