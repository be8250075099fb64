// `samepath ui`: which page is shown, and asking again and again what is new.

import { el, find } from "./dom.js";
import { isDark } from "./palette.js";
import { Overview } from "./ui_overview.js";
import { RunPage } from "./ui_run.js";
import { ItemPage } from "./ui_item.js";

const LIVE_MS = 1000;
const QUIET_MS = 2000;

// what stays as it is when one goes from page to page
const state = { filter: "", kind: "all", parts: false, ticked: new Set(), across: "step",
                up: "linear", isOthersOpen: false, numLive: 0, sort: ["newest", 1] };
let has = {}; // addresses of what is shown, with the tags of their answers
let page = null;
let waiting = 0;
let turn = 0;

const go = (hash) => { location.hash = hash; };
go.refresh = () => refresh();

/** The server has ended, or says no. */
class Refused extends Error {
  constructor(words, isGone) {
    super(words);
    this.isGone = isGone;
  }
}

/** The answer and its tag; null instead of an answer if it is what is shown. */
async function ask(address) {
  const headers = has[address] ? { "if-none-match": has[address] } : {};
  const response = await fetch(address, { headers }).catch(() => {
    throw new Refused("The server does not answer. Start samepath ui again.", true);
  });
  const tag = response.headers.get("etag");
  if (response.status === 304) return [null, tag];
  const answer = await response.json();
  if (!response.ok) throw new Refused(answer.error || `The server says ${response.status}.`, false);
  return [answer, tag];
}

function choose() {
  const [, kind, ids] = location.hash.split("/");
  page = kind === "run" && ids ? new RunPage(ids.split(","), state, go)
    : kind === "item" && ids ? new ItemPage(ids, state, go) : new Overview(state, go);
  has = {};
  find("view").replaceChildren(page.element);
  window.scrollTo(0, 0);
  find("title").textContent = "";
  document.body.classList.remove("ready");
  window.samepath = { page, state }; // for tests, and for people who are curious
  refresh();
}

async function refresh() {
  clearTimeout(waiting);
  const mine = ++turn;
  const shown = page;
  const addresses = ["/api/overview", ...(shown.address ? [shown.address] : [])];
  try {
    const answers = await Promise.all(addresses.map(ask));
    if (mine !== turn) return; // another page has been opened meanwhile
    has = Object.fromEntries(addresses.map((address, k) => [address, answers[k][1]]));
    const [overview, own] = answers.map(([answer]) => answer);
    if (!shown.element.isConnected) find("view").replaceChildren(shown.element);
    if (overview) {
      const isLive = (item) => item.is_live && item.kind === "run";
      state.numLive = overview.items.filter(isLive).length;
      if (shown instanceof Overview) shown.show(overview);
      shown.showOthers?.(overview.items);
    }
    if (own) shown.show(own);
    find("status").textContent = state.numLive ? `${state.numLive} running` : "";
    find("status").classList.toggle("live", state.numLive > 0);
    document.title = `${find("title").textContent} - samepath`;
    find("view").classList.remove("gone");
    document.body.classList.add("ready");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (mine !== turn) return;
    find("status").textContent = error.message;
    find("status").classList.remove("live");
    find("view").classList.toggle("gone", error.isGone);
    if (!error.isGone) {
      find("view").replaceChildren(el("div", { class: "empty" },
        el("p", { class: "lead" }, error.message),
        el("p", {}, el("a", { href: "#/" }, "Back to the overview"))));
    }
    document.body.classList.add("ready");
    has = {};
  }
  if (mine !== turn || document.hidden) return;
  waiting = setTimeout(refresh, state.numLive ? LIVE_MS : QUIET_MS);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
addEventListener("hashchange", choose);
find("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  page.theme?.();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.theme?.());
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches("input") && find("filter")) {
    event.preventDefault();
    find("filter").focus();
  }
});
history.replaceState(null, "", location.pathname + location.hash); // the token need not be seen
choose();
