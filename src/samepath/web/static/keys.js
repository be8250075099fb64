// Keys, and the dialogs they open.

import { find } from "./dom.js";

export function keys(model, act, view, review) {
  const isCopy = document.body.classList.contains("copy");
  const decided = async (decide) => {
    const row = review.current();
    if (review.isOpen() && row >= 0) {
      await decide([row], "");
      review.next(row);
      return;
    }
    await decide(model.chosen(), find("selection-note").value.trim());
    model.select([]);
  };
  const marked = (kept) => decided((rows, note) => act.mark(rows, kept, note));
  const relabelled = () => decided((rows, note) => act.relabel(rows, null, note));
  const doing = {
    "?": () => find("help").showModal(),
    0: () => find("zoom-fit").click(),
    "/": () => find("find").focus(),
    v: () => act.showTab("review"),
    Escape: () => (model.selected.size ? model.select([]) : view.isLasso ? view.useLasso(false)
      : model.pin(-1)),
  };
  const editing = {
    k: () => marked(true),
    d: () => marked(false),
    r: relabelled,
    z: () => !find("undo").disabled && act.undo(),
    Z: () => !find("redo").disabled && act.redo(),
    l: () => view.useLasso(!view.isLasso),
    n: () => (model.selected.size ? find("selection-note") : find("note"))?.focus(),
  };
  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.matches("input[type=text], input[type=search], select");
    const moves = { ArrowRight: () => review.next(), ArrowLeft: review.previous }[event.key];
    const isElsewhere = event.target.matches("input, select, canvas, [role=tab]");
    if (moves && review.isOpen() && !isElsewhere && !document.querySelector("dialog[open]")) {
      event.preventDefault();
      moves();
      return;
    }
    const isDialog = document.querySelector("dialog[open]");
    if ((event.ctrlKey || event.metaKey) && event.key === "s" && !isCopy) {
      event.preventDefault();
      if (!find("save").disabled && !isDialog) act.save();
      return;
    }
    if (event.key === "Escape" && isTyping) event.target.blur();
    if (isTyping || isDialog || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = doing[event.key] || (!isCopy && editing[event.key]);
    if (!action) return;
    event.preventDefault();
    action();
  });
  find("help-button").addEventListener("click", () => find("help").showModal());
  for (const button of document.querySelectorAll("dialog .close")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
}
