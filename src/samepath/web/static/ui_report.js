// A report that samepath wrote, in this page's own look. The server has taken it apart: words,
// tables and pictures come as plain values, and nothing else does.

import { el, say } from "./dom.js";

function made(node) {
  if (typeof node === "string") return node;
  const [tag, inner, words] = node;
  if (tag === "img") {
    const look = inner.startsWith("data:image/svg") ? "chart-picture" : "";
    return el("img", { src: inner, alt: words, loading: "lazy", class: look });
  }
  const children = inner.map(made);
  if (tag === "note") return el("p", { class: "quiet" }, children);
  const element = el(tag, {}, children);
  if (tag !== "table") return element;
  const isWide = [...element.rows].some((row) => row.cells.length > 2);
  return el("div", { class: isWide ? "scroll" : "scroll narrow" }, element);
}

export const addressOf = (item, file) =>
  `/api/file/${item.id}/${file.id}/${encodeURIComponent(file.name.split("/").at(-1))}`;

/** Put a report into a box, once for each version of its file. */
export async function report(box, item, file) {
  if (box.dataset.stamp === String(file.stamp)) return;
  box.dataset.stamp = file.stamp;
  const response = await fetch(`/api/report/${item.id}/${file.id}`).catch(() => null);
  if (!response?.ok) {
    delete box.dataset.stamp;
    say("The report cannot be read.", "error");
    return;
  }
  const nodes = await response.json();
  const text = ([, inner]) => inner.filter((part) => typeof part === "string").join("");
  const title = nodes.find(([tag]) => tag === "h1");
  // the verdict stands at the head of the page already
  const verdict = nodes.findIndex((node) => node[0] === "p" && text(node) === item.verdict);
  const shown = nodes.filter((node, i) => node !== title && i !== verdict &&
    !(i === verdict - 1 && node[0] === "h2"));
  const open = el("a", { href: addressOf(item, file), target: "_blank", rel: "noopener" },
                  "open as its own page");
  const heading = el("strong", {}, title ? text(title) : "Report");
  box.replaceChildren(el("p", { class: "report-head" }, heading, " ", open),
                      el("div", { class: "report" }, shown.map(made)));
}
