// Draws points with WebGL, and moves them smoothly also where there is no graphics card: the canvas
// is larger than what is seen of it, so that moving and zooming can shift and stretch the picture
// that is there while a new one is due (tens of thousands of points take software a tenth of a
// second). Where drawing is quick, every frame is drawn.
//
// Why it is no library: a map of 50,000 points, filled or rings, chosen or not, must follow the mouse
// also without a graphics card (tests/browser/test_explorer.py holds it). That rests on the
// shifted picture above, which a chart library that redraws all points for each frame does not have.
// It also becomes part of the one exported file, with no build step.

const MARGIN = 0.3;
const QUICK_MS = 9;
const SETTLE_MS = 130;
const NUM_TIMED = 4; // the first draws, to know how long one takes
const ATTRIBUTES = [["place", 2, "FLOAT", false], ["colour", 4, "UNSIGNED_BYTE", true],
                    ["form", 1, "UNSIGNED_BYTE", false]];

/** What `form` is made of. */
export const RING = 1;
export const CHOSEN = 2;

const VERTEX = `#version 300 es
in vec2 place; in vec4 colour; in float form;
uniform vec2 middle; uniform vec2 scale; uniform float size; uniform float ratio;
out vec4 fill; flat out float ring; flat out float chosen; flat out float pixels;
void main() {
  gl_Position = vec4((place - middle) * scale, 0.0, 1.0);
  chosen = step(1.5, form);
  ring = mod(form, 2.0);
  pixels = (size + 2.0 * ring + 3.0 * chosen) * ratio;
  gl_PointSize = pixels;
  fill = colour;
}`;
const FRAGMENT = `#version 300 es
precision highp float;
in vec4 fill; flat in float ring; flat in float chosen; flat in float pixels;
uniform vec3 edge; uniform float ratio;
out vec4 seen;
void main() {
  float r = length(gl_PointCoord * 2.0 - 1.0);
  float soft = 2.0 / pixels;
  float alpha = 1.0 - smoothstep(1.0 - soft, 1.0, r);
  float inner = 1.0 - (chosen > 0.5 ? 2.2 : 3.4) * ratio / pixels;
  if (ring > 0.5 && chosen < 0.5) alpha *= smoothstep(inner - soft, inner, r);
  vec3 shade = chosen > 0.5 && r > inner ? edge : fill.rgb;
  alpha *= chosen > 0.5 ? 1.0 : fill.a;
  seen = vec4(shade * alpha, alpha);
}`;

export class PointMap {
  /** In `box`: two canvases. `onView` is called whenever what is seen has moved. */
  constructor(box, points, overlay, onView) {
    Object.assign(this, { box, canvas: points, overlay, onView });
    this.gl = points.getContext("webgl2", { antialias: false, premultipliedAlpha: true });
    if (!this.gl) throw new Error("this browser has no WebGL 2: the map cannot be drawn");
    this.view = { x: 0, y: 0, scale: 1 };
    this.drawn = { x: 0, y: 0, scale: 1 };
    this.home = 1;
    this.num = 0;
    this.data = {};
    this.order = new Uint32Array(0);
    this.drawMs = Infinity;
    this.numTimed = 0;
    this.edge = [0, 0, 0];
    this.isStale = true;
    this.isAsked = false;
    points.addEventListener("webglcontextlost", (event) => event.preventDefault());
    points.addEventListener("webglcontextrestored", () => { this.prepare(); this.redraw(); });
    this.prepare();
    new ResizeObserver(() => this.resize()).observe(box);
    this.resize();
  }

  prepare() {
    const gl = this.gl;
    this.program = gl.createProgram();
    for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(this.program, shader);
    }
    gl.linkProgram(this.program);
    if (!gl.getProgramParameter(this.program, gl.LINK_STATUS) && !gl.isContextLost()) {
      throw new Error(`the map cannot be drawn: ${gl.getProgramInfoLog(this.program)}`);
    }
    gl.useProgram(this.program);
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
    this.buffers = {};
    for (const [name, length, kind, normal] of ATTRIBUTES) {
      this.buffers[name] = gl.createBuffer();
      gl.bindBuffer(gl.ARRAY_BUFFER, this.buffers[name]);
      const at = gl.getAttribLocation(this.program, name);
      gl.enableVertexAttribArray(at);
      gl.vertexAttribPointer(at, length, gl[kind], normal, 0, 0);
      if (this.data[name]) gl.bufferData(gl.ARRAY_BUFFER, this.data[name], gl.DYNAMIC_DRAW);
    }
    this.elements = gl.createBuffer();
    gl.bindBuffer(gl.ELEMENT_ARRAY_BUFFER, this.elements);
    gl.bufferData(gl.ELEMENT_ARRAY_BUFFER, this.order, gl.DYNAMIC_DRAW);
  }

  set(name, values) {
    this.data[name] = values;
    this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.buffers[name]);
    this.gl.bufferData(this.gl.ARRAY_BUFFER, values, this.gl.DYNAMIC_DRAW);
  }

  setPlaces(x, y) {
    const places = new Float32Array(2 * x.length);
    for (let i = 0; i < x.length; i++) [places[2 * i], places[2 * i + 1]] = [x[i], y[i]];
    this.num = x.length;
    this.set("place", places);
  }

  /** Colours (four bytes each), forms, and the points to draw, last on top. */
  setLook(colours, forms, order, edge) {
    this.set("colour", colours);
    this.set("form", forms);
    this.order = order;
    this.edge = edge;
    this.gl.bufferData(this.gl.ELEMENT_ARRAY_BUFFER, order, this.gl.DYNAMIC_DRAW);
    this.redraw();
  }

  resize() {
    const ratio = (this.ratio = Math.min(window.devicePixelRatio || 1, 2));
    const [width, height] = [this.box.clientWidth, this.box.clientHeight];
    if (!width || !height) return;
    if (width === this.width && height === this.height) return;
    Object.assign(this, { width, height });
    for (const [canvas, more] of [[this.canvas, MARGIN], [this.overlay, 0]]) {
      canvas.width = Math.round(width * (1 + 2 * more) * ratio);
      canvas.height = Math.round(height * (1 + 2 * more) * ratio);
      canvas.style.width = `${width * (1 + 2 * more)}px`;
      canvas.style.height = `${height * (1 + 2 * more)}px`;
      canvas.style.left = `${-width * more}px`;
      canvas.style.top = `${-height * more}px`;
    }
    if (this.isFitted) this.fit(this.bounds);
    this.draw(); // a canvas that was resized is empty: not a frame later
    this.onView();
  }

  /** Everything seen, with room around it. */
  fit(bounds) {
    this.bounds = bounds;
    const { x0, x1, y0, y1 } = bounds;
    const room = 0.9;
    this.home = Math.min((room * this.width) / (x1 - x0 || 1), (room * this.height) / (y1 - y0 || 1));
    this.view = { x: (x0 + x1) / 2, y: (y0 + y1) / 2, scale: this.home };
    this.moved();
    this.isFitted = true;
  }

  get zoom() { return this.view.scale / this.home; }

  toScreen(x, y) {
    const { x: cx, y: cy, scale } = this.view;
    return [(x - cx) * scale + this.width / 2, (cy - y) * scale + this.height / 2];
  }

  toWorld(left, top) {
    const { x, y, scale } = this.view;
    return [(left - this.width / 2) / scale + x, y - (top - this.height / 2) / scale];
  }

  panBy(dx, dy) {
    this.view.x -= dx / this.view.scale;
    this.view.y += dy / this.view.scale;
    this.moved();
  }

  /** Zoom so that the place under (left, top) stays there. */
  zoomAt(left, top, factor) {
    const [x, y] = this.toWorld(left, top);
    this.view.scale = Math.max(0.3, Math.min(400, this.zoom * factor)) * this.home;
    const [nx, ny] = this.toWorld(left, top);
    this.view.x += x - nx;
    this.view.y += y - ny;
    this.moved();
  }

  moved() {
    this.isFitted = false;
    clearTimeout(this.settling);
    this.settling = setTimeout(() => this.redraw(), SETTLE_MS);
    this.ask();
  }

  redraw() {
    this.isStale = true;
    this.ask();
  }

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame(() => {
      this.isAsked = false;
      if (this.isStale || this.drawMs < QUICK_MS || !this.shift()) this.draw();
      this.onView();
    });
  }

  /** Move the picture that is there to where it belongs; false if it does not cover the box. */
  shift() {
    const { view, drawn, width, height } = this;
    const stretch = view.scale / drawn.scale;
    const dx = (drawn.x - view.x) * view.scale;
    const dy = (view.y - drawn.y) * view.scale;
    const room = (0.5 + MARGIN) * stretch - 0.5;
    if (stretch > 3 || Math.abs(dx) > room * width || Math.abs(dy) > room * height) return false;
    this.canvas.style.transform = `translate(${dx}px, ${dy}px) scale(${stretch})`;
    return true;
  }

  pointSize() {
    const size = Math.max(3.2, Math.min(8, 7 * (500 / (this.num || 1)) ** 0.155));
    return Math.min(16, size * Math.max(0.7, this.zoom) ** 0.4);
  }

  draw() {
    const gl = this.gl;
    const began = performance.now();
    const at = (name) => gl.getUniformLocation(this.program, name);
    gl.viewport(0, 0, this.canvas.width, this.canvas.height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform2f(at("middle"), this.view.x, this.view.y);
    const [across, down] = [this.width, this.height].map((s) => (s * (1 + 2 * MARGIN)) / 2);
    gl.uniform2f(at("scale"), this.view.scale / across, this.view.scale / down);
    gl.uniform1f(at("size"), this.pointSize());
    gl.uniform1f(at("ratio"), this.ratio);
    gl.uniform3f(at("edge"), ...this.edge);
    if (this.num) gl.drawElements(gl.POINTS, this.order.length, gl.UNSIGNED_INT, 0);
    if (this.num && this.numTimed++ < NUM_TIMED) {
      gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(4)); // waits for it
      this.drawMs = Math.min(this.drawMs, performance.now() - began);
    }
    this.drawn = { ...this.view };
    this.isStale = false;
    clearTimeout(this.settling);
    this.canvas.style.transform = "";
  }
}
