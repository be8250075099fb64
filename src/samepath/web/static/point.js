// One example: the card that follows the mouse, and the right panel for the one that is pinned,
// with its facts, its note and its nearest neighbours.

import { decideButtons, factsOf, verdict } from "./decide.js";
import { el, find, say, short } from "./dom.js";
import { altOf, labelWords, thumbButton } from "./thumb.js";

const NUM_SHOWN = 12;

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
           factsOf(model, row))].filter(Boolean));
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
    return el("li", {}, thumbButton(model, source, act, row, title),
      el("span", { class: isOther ? "caption other" : "caption" },
         (model.kept[row] ? "" : "dropped ") + (labelWords(model, row) || `#${row}`)));
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
    const buttons = source.isCopy ? null : decideButtons(model, act, () => [row]);
    const note = source.isCopy ? null : el("label", { class: "note" }, el("span", {}, "Note"),
      el("input", { id: "note", type: "text", value: noteWas, maxLength: 500, autocomplete: "off",
                    placeholder: "Why? #tags can be filtered", onchange: saveNote }));
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
      buttons, factsOf(model, row), note, near].filter(Boolean));
    if (!old && near) neighbours(row, list);
    drawn = row;
  };
  model.on("pin data state", draw);
  draw();
}
