// Mouse, pen, fingers and keys on the map: move, zoom, point at, click, draw a lasso.

const CLICK_PIXELS = 4;
const HOVER_PIXELS = 12;
const STEP_PIXELS = 60;

/**
 * `on` has: hover(row, left, top), click(row, event), lasso(outline, isDone, event), isLasso().
 * Rows are -1 where there is no point. `pick(left, top, radius)` finds one.
 */
export function listen(map, pick, on) {
  const target = map.overlay;
  const fingers = new Map();
  let from = null; // where the button went down
  let outline = null;
  let isMoving = false;
  let hovering = 0;

  const place = (event) => {
    const box = target.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  target.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    target.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
    from = place(event);
    isMoving = false;
    outline = (on.isLasso() || event.shiftKey) && fingers.size === 1 ? [map.toWorld(...from)] : null;
    on.hover(-1);
  });

  target.addEventListener("pointermove", (event) => {
    const now = place(event);
    if (!fingers.has(event.pointerId)) {
      cancelAnimationFrame(hovering);
      hovering = requestAnimationFrame(() => on.hover(pick(...now, HOVER_PIXELS), ...now));
      return;
    }
    const before = fingers.get(event.pointerId);
    if (!isMoving && Math.hypot(now[0] - from[0], now[1] - from[1]) < CLICK_PIXELS) return;
    isMoving = true;
    fingers.set(event.pointerId, now);
    if (fingers.size === 2) {
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const apart = (a) => Math.hypot(a[0] - other[0], a[1] - other[1]) || 1;
      map.zoomAt(...other, apart(now) / apart(before));
      outline = null;
    } else if (outline) {
      outline.push(map.toWorld(...now));
      on.lasso(outline, false, event);
    } else {
      map.panBy(now[0] - before[0], now[1] - before[1]);
      target.classList.add("moving");
    }
  });

  const end = (event, isDone) => {
    if (!fingers.delete(event.pointerId)) return;
    target.classList.remove("moving");
    if (outline) on.lasso(outline, true, isDone && isMoving ? event : null);
    if (isDone && !isMoving) on.click(pick(...place(event), HOVER_PIXELS), event);
    outline = null;
  };
  target.addEventListener("pointerup", (event) => end(event, true));
  target.addEventListener("pointercancel", (event) => end(event, false));
  target.addEventListener("pointerleave", () => {
    cancelAnimationFrame(hovering);
    if (!fingers.size) on.hover(-1);
  });

  target.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    const delta = Math.max(-120, Math.min(120, event.deltaY * lines));
    map.zoomAt(...place(event), Math.exp(-delta * (event.ctrlKey ? 0.01 : 0.0022)));
    on.hover(-1);
  }, { passive: false });

  target.addEventListener("dblclick", (event) => map.zoomAt(...place(event), 2));

  target.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (step[event.key]) map.panBy(...step[event.key].map((part) => part * STEP_PIXELS));
    else if (event.key === "+" || event.key === "=") zoomBy(map, 1.4);
    else if (event.key === "-") zoomBy(map, 1 / 1.4);
    else return;
    event.preventDefault();
  });
}

export const zoomBy = (map, factor) => map.zoomAt(map.width / 2, map.height / 2, factor);
