// Where everything comes from: the server that samepath runs, or, in a copy, the page itself.

import { el } from "./dom.js";

class Live {
  static async open() {
    const source = new Live();
    [source.about, source.points] = await Promise.all([
      source.ask("/api/about").then((r) => r.json()),
      source.ask("/api/points").then((r) => r.arrayBuffer()),
    ]);
    return source;
  }

  isCopy = false;

  async ask(path, options) {
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Error("The server does not answer. Start it again with the command you used; " +
                      "edits made so far are kept.");
    }
    if (response.ok) return response;
    const said = await response.json().catch(() => ({}));
    throw new Error(said.error || `The server says ${response.status}.`);
  }

  async change(path, body = {}) {
    const headers = { "content-type": "application/json", "x-samepath": "1" };
    const response = await this.ask(`/api/${path}`, {
      method: "POST", headers, body: JSON.stringify(body),
    });
    return response.json();
  }

  async neighbours(row) {
    return (await this.ask(`/api/neighbours/${row}`)).json();
  }

  /** An element that shows the image of an example. */
  picture(row, alt) {
    return el("img", { src: `/api/image/${row}`, alt, loading: "lazy", decoding: "async",
                       draggable: false });
  }
}

class Copy {
  static async open(about) {
    const source = new Copy();
    source.about = about;
    source.points = Uint8Array.from(atob(about.points), (c) => c.charCodeAt(0)).buffer;
    source.sheets = (about.sheets || []).map((url) => {
      const image = new Image();
      image.src = url;
      return image;
    });
    return source;
  }

  isCopy = true;

  picture(row, alt) {
    const [width, height, across, down] = this.about.thumbnail;
    const made = el("canvas", { width, height, role: "img", "aria-label": alt });
    const sheet = this.sheets[Math.floor(row / (across * down))];
    const at = row % (across * down);
    const draw = () => made.getContext("2d").drawImage(
      sheet, (at % across) * width, Math.floor(at / across) * height, width, height,
      0, 0, width, height);
    if (sheet.complete) draw();
    else sheet.addEventListener("load", draw);
    return made;
  }
}

export function openSource() {
  const data = document.getElementById("data");
  return data ? Copy.open(JSON.parse(data.textContent)) : Live.open();
}
