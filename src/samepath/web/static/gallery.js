// What is dropped, class by class, worst first: the most doubtful, or else the highest loss.

import { el, find, percent, whole } from "./dom.js";
import { classColour } from "./palette.js";
import { thumbItem } from "./thumb.js";

const FIRST = 24;
const MORE = 96;
const NUM_OPEN = 12;

export function galleryPanel(model, source, act) {
  const box = find("gallery");
  const numShown = new Map(); // by class, as far as the user asked for more
  const closed = new Map();
  let isStale = true;

  const worstFirst = (a, b) => model.worst[b] - model.worst[a] || a - b;

  const item = (row) => thumbItem(model, source, act, row);

  const section = (label, rows, count, isOpen) => {
    const number = numShown.get(label) || FIRST;
    const shown = rows.slice(0, number);
    const rest = rows.length - shown.length;
    const more = rest > 0 && el("button", { class: "link more", type: "button", onclick: () => {
      numShown.set(label, number + MORE);
      draw();
    } }, `show ${whole(Math.min(rest, MORE))} more of ${whole(rest)}`);
    const details = el("details", { open: closed.has(label) ? !closed.get(label) : isOpen },
      el("summary", {},
        model.about.has_labels ? el("span", { class: "swatch",
                                              style: { background: classColour(label) } }) : null,
        el("span", { class: "name" }, model.about.has_labels ? model.className(label) : "All"),
        el("span", { class: "numbers" }, `${whole(rows.length)} (${percent(rows.length, count)})`)));
    const fill = () => {
      if (details.open && details.children.length === 1) {
        details.append(el("ul", { class: "thumbs" }, shown.map(item)), more || "");
      }
    };
    details.addEventListener("toggle", () => {
      closed.set(label, !details.open);
      fill();
    });
    fill();
    return details;
  };

  const draw = () => {
    isStale = false;
    const { kept, all, classes } = model.counts();
    const byClass = classes.map(() => []);
    for (let i = 0; i < model.num; i++) {
      if (!model.kept[i] && model.isVisible(i)) byClass[model.label[i]].push(i);
    }
    const sections = byClass.map((rows, label) => [label, rows.sort(worstFirst)])
      .filter(([, rows]) => rows.length)
      .map(([label, rows], k) => section(label, rows, classes[label].all, k < NUM_OPEN));
    const words = kept === all ? "Nothing is dropped: all examples are kept."
      : sections.length ? (model.about.has_doubts ? "Most doubtful first."
        : model.about.has_losses ? "Highest loss first." : "In their order.")
        : "What is dropped is hidden by the filters on the left.";
    box.replaceChildren(el("p", { class: sections.length ? "quiet" : "empty" }, words), ...sections);
  };

  const follow = () => {
    const { kept, all } = model.counts();
    find("tab-gallery").textContent = `Dropped (${whole(all - kept)})`;
    isStale = true;
    if (!box.hidden) draw();
  };
  model.on("data theme filters", follow);
  follow();
  return { open: () => { if (isStale) draw(); } };
}
