// A run's note: a few words of one's own, kept as note.txt in its folder.

import { el, say } from "./dom.js";

const LONGEST = 2000;

export class Note {
  constructor() {
    this.field = el("textarea", { rows: 1, maxLength: LONGEST, placeholder: "Add a note to this run",
                                  "aria-label": "Note", onchange: () => this.save(),
                                  oninput: () => this.fit() });
    this.element = el("div", { class: "note-box", hidden: true }, this.field);
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.field.blur();
      }
    });
  }

  /** Show a run's note, unless it is being written. */
  show(run) {
    this.run = run;
    this.element.hidden = !run;
    if (!run || this.field === document.activeElement || this.isSaving) return;
    this.field.value = run.note;
    this.fit();
  }

  fit() {
    this.field.rows = Math.min(8, this.field.value.split("\n").length);
  }

  async save() {
    const headers = { "content-type": "application/json", "x-samepath": "1" };
    const body = JSON.stringify({ note: this.field.value });
    this.isSaving = true;
    const answer = await fetch(`/api/note/${this.run.id}`, { method: "POST", headers, body })
      .catch(() => null);
    this.isSaving = false;
    const said = answer?.ok ? null : await answer?.json().catch(() => null);
    if (answer?.ok) say("Note saved.");
    else say(said?.error || "The note was not saved: the server does not answer.", "error");
  }
}
