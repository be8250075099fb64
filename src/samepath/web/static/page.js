// The explorer: puts the parts together; top bar, keys, dialogs.

import { classChoice } from "./decide.js";
import { el, find, say, whole } from "./dom.js";
import { findBox } from "./filter.js";
import { galleryPanel } from "./gallery.js";
import { keys } from "./keys.js";
import { MapView } from "./mapview.js";
import { Model } from "./model.js";
import { isDark, useColours } from "./palette.js";
import {
  classesPanel, coloursPanel, countsPanel, keyPanel, noisePanel, reasonsPanel,
} from "./panels.js";
import { hoverCard, pointPanel } from "./point.js";
import { reviewPanel, selectedPanel } from "./review.js";
import { openSource } from "./source.js";
import { tunePanel } from "./tune.js";

async function start() {
  const source = await openSource();
  history.replaceState(null, "", location.pathname); // the token need not be seen
  useColours(source.about);
  const model = new Model(source.about, source.points);
  document.title = `${model.about.title} - samepath`;
  document.body.classList.toggle("copy", source.isCopy);
  find("title").textContent = model.about.title;
  find("title").title = model.about.folder;
  const act = actions(model, source);
  const hover = hoverCard(model, source, find("map"));
  const view = new MapView(model, {
    hover,
    click: (row, event) => {
      hover(-1);
      if (event.shiftKey && row >= 0) act.select([row], false);
      else act.pin(row);
    },
    select: act.select,
  });
  Object.assign(act, {
    centre: (row) => view.centre(row),
    near: (rows) => view.setNear(rows),
    point: (row) => view.point(row),
    show: (row) => {
      act.pin(row);
      view.reveal(row);
    },
    ring: (row) => {
      model.pin(row);
      view.reveal(row);
    },
  });
  countsPanel(model);
  noisePanel(model);
  coloursPanel(model);
  classesPanel(model);
  reasonsPanel(model);
  keyPanel(model);
  pointPanel(model, source, act);
  const gallery = galleryPanel(model, source, act);
  const review = reviewPanel(model, source, act);
  const selected = selectedPanel(model, source, act);
  const showTab = tabs({ point: () => {}, review: review.open, gallery: gallery.open,
                         selected: selected.open });
  act.showTab = showTab;
  act.pin = (row) => {
    model.pin(row);
    if (row >= 0) showTab("point");
  };
  findBox(model, act);
  if (!source.isCopy) {
    const tune = tunePanel(model, source);
    act.finish = tune.finish;
    topBar(model, source, act);
    selectionBar(model, act);
    if (model.about.set_aside) {
      say(`The keep-list has changed since it was edited; the earlier edits are in ${model.about.set_aside}`);
    }
  }
  keys(model, act, view, review);
  themeButton(model);
  window.samepath = { model, view }; // for tests, and for people who are curious
  document.body.classList.add("ready");
}

/** What a person can do, each with its answer or its error in one line. */
function actions(model, source) {
  const change = async (path, body, done) => {
    try {
      await act.finish();
      const version = model.state.version;
      const answer = await source.change(path, body);
      if (answer.version > version + 1) await reload(); // another window changed something too
      else model.apply(answer);
      if (done) say(done(answer));
    } catch (error) {
      say(error.message, "error");
    }
  };
  const reload = async () => {
    const fresh = await source.constructor.open();
    model.load(fresh.about, fresh.points);
    model.tell("load");
    model.tell("data");
    model.tell("state");
  };
  const examples = (number) => (number === 1 ? "1 example" : `${whole(number)} examples`);
  const act = {
    finish: async () => {},
    pin: (row) => model.pin(row),
    mark: (rows, kept, note) => {
      if (source.isCopy || !rows.length) return null;
      return change("mark", { rows, kept, note: note || null }, (answer) =>
        `${kept ? "Kept" : "Dropped"} ${examples(answer.rows.length)}. z undoes it.`);
    },
    relabel: (rows, label, note) => {
      if (source.isCopy || !rows.length) return null;
      return change("relabel", { rows, label, note: note || null }, (answer) =>
        `Relabelled ${examples(answer.rows.length)}. z undoes it.`);
    },
    seen: async (rows) => {
      try {
        for (const row of rows) model.seen[row] = 1;
        model.tell("review");
        await source.change("reviewed", { rows });
      } catch (error) {
        say(error.message, "error");
      }
    },
    reviewAgain: async () => {
      try {
        await source.change("reviewed", { again: true });
        model.seen.fill(0);
        model.tell("load");
      } catch (error) {
        say(error.message, "error");
      }
    },
    note: (rows, note) => change("note", { rows, note }, () => (note ? "Noted." : "Note removed.")),
    undo: () => {
      const { undo } = model.state;
      return change("undo", {}, () => `Undone: ${undo || "clusters"}`);
    },
    redo: () => change("redo", {}, (answer) => `Redone: ${answer.undo}`),
    select: (rows, isLess) => {
      const chosen = new Set(model.selected);
      for (const row of rows) (isLess ? chosen.delete(row) : chosen.add(row));
      if (!rows.length) say("There are no points in the selection.");
      model.select(chosen);
    },
    save: async () => {
      try {
        await act.finish();
        const saved = await source.change("save");
        Object.assign(model.state, saved);
        model.tell("state");
        find("saved-words").textContent =
          `${whole(saved.num_kept)} of ${whole(model.num)} examples are kept. Saved in`;
        find("saved-file").textContent = saved.file;
        find("saved-train").textContent = saved.train;
        find("saved").showModal();
      } catch (error) {
        say(error.message, "error");
      }
    },
  };
  return act;
}

function topBar(model, source, act) {
  const draw = () => {
    const { undo, redo, num_edits: number, is_saved: isSaved, saved_as: file } = model.state;
    find("undo").disabled = !undo;
    find("undo").title = undo ? `Undo: ${undo} (z)` : "Nothing to undo";
    find("redo").disabled = !redo;
    find("redo").title = redo ? `Redo: ${redo} (Shift+z)` : "Nothing to redo";
    find("status").textContent = !isSaved ? `${number} edit${number === 1 ? "" : "s"}, not saved yet`
      : file ? `saved as ${file}` : model.about.keep;
    find("status").classList.toggle("unsaved", !isSaved);
    find("save").disabled = isSaved;
    find("save").title = isSaved ? "Nothing to save: no edits yet"
      : "Write a new keep-list beside the old one (Ctrl+S)";
  };
  model.on("state", draw);
  draw();
  find("undo").addEventListener("click", act.undo);
  find("redo").addEventListener("click", act.redo);
  find("save").addEventListener("click", act.save);
  find("copy-train").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(find("saved-train").textContent);
      say("Copied.");
    } catch {
      getSelection().selectAllChildren(find("saved-train")); // not allowed: make it easy by hand
      say("Press Ctrl+C to copy.");
    }
  });
  const menu = find("export-menu");
  for (const link of menu.querySelectorAll("a")) {
    link.addEventListener("click", async (event) => {
      menu.parentElement.open = false;
      if (link.dataset.kind === "parquet" && !model.about.parquet) {
        event.preventDefault();
        say("Parquet needs pyarrow: pip install 'samepath[parquet]'", "error");
        return;
      }
      say(`Making ${link.textContent.toLowerCase()} ...`);
    });
  }
  document.addEventListener("click", (event) => {
    if (!menu.parentElement.contains(event.target)) menu.parentElement.open = false;
  });
}

function selectionBar(model, act) {
  const bar = find("selection");
  const note = find("selection-note");
  const mark = (kept) => async () => {
    await act.mark([...model.selected], kept, note.value.trim());
    note.value = "";
    model.select([]);
  };
  const draw = () => {
    bar.hidden = !model.selected.size;
    const rows = [...model.selected];
    const kept = rows.filter((row) => model.kept[row]).length;
    find("selection-words").textContent = `${whole(rows.length)} selected`;
    find("selection-more").textContent = `${whole(kept)} kept, ${whole(rows.length - kept)} dropped`;
  };
  model.on("selection data", draw);
  if (model.about.has_labels) {
    const relabel = async (label) => {
      await act.relabel([...model.selected], label, note.value.trim());
      note.value = "";
      model.select([]);
    };
    const choice = classChoice(model, "selection-relabel", "Relabel the selection", relabel);
    find("selection-drop").after(choice);
    if (model.about.has_suggestions) {
      choice.firstChild.after(el("option", { value: "-1" }, "as suggested (r)"));
    }
  }
  find("selection-keep").addEventListener("click", mark(true));
  find("selection-drop").addEventListener("click", mark(false));
  find("selection-clear").addEventListener("click", () => model.select([]));
  note.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !note.value.trim()) return;
    act.note([...model.selected], note.value.trim());
    note.value = "";
  });
}

function tabs(openers) {
  const names = Object.keys(openers);
  const show = (name) => {
    for (const other of names) {
      find(`tab-${other}`).setAttribute("aria-selected", other === name);
      find(`tab-${other}`).tabIndex = other === name ? 0 : -1;
      find(other).hidden = other !== name;
    }
    openers[name]();
  };
  for (const name of names) {
    find(`tab-${name}`).addEventListener("click", () => show(name));
    find(`tab-${name}`).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const there = names.filter((each) => !find(`tab-${each}`).hidden);
      const by = event.key === "ArrowRight" ? 1 : there.length - 1;
      const other = there[(there.indexOf(name) + by) % there.length];
      show(other);
      find(`tab-${other}`).focus();
    });
  }
  return show;
}

function themeButton(model) {
  find("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    model.tell("theme");
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => model.tell("theme"));
}

start().catch((error) => {
  find("map-empty").hidden = false;
  find("map-empty").replaceChildren(el("p", { class: "lead" }, "The map cannot be shown."),
                                    el("p", {}, error.message));
  throw error;
});
