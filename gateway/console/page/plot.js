// A line plot over time in SVG, with a legend that tells the values under the pointer, or the last ones.

const SVG = "http://www.w3.org/2000/svg";
const HIGH = 160, LEFT = 44, BOTTOM = 18, TOP = 6;
const COLOURS = 8;

function shape(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  parent.append(made);
  return made;
}

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value >= 1e6) return (value / 1e6).toFixed(1) + " M";
  if (value >= 1e4) return (value / 1e3).toFixed(1) + " k";
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(value < 1 ? 2 : 1);
}

// The least of 1, 2, 5 times a power of ten that is not below `value`.
function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

export class Plot {
  // at: the element that holds the plot; label: what it shows, for screen readers
  constructor(at, label) {
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", label);
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    at.append(this.svg, this.legend);
    this.pointed = null;
    this.svg.addEventListener("pointermove", (event) => {
      const box = this.svg.getBoundingClientRect();
      this.pointed = event.clientX - box.left;
      this.redraw();
    });
    this.svg.addEventListener("pointerleave", () => { this.pointed = null; this.redraw(); });
  }

  // times: seconds, growing; span: how many of them the plot covers; series: [{name, values}], null where there is none
  draw(times, span, series) {
    this.shown = { times, span, series: series.slice(0, COLOURS) };
    this.redraw();
  }

  redraw() {
    if (!this.shown) return;
    const { times, span, series } = this.shown;
    const wide = this.svg.clientWidth || 560;
    this.svg.setAttribute("viewBox", `0 0 ${wide} ${HIGH}`);
    const last = times.length ? times[times.length - 1] : 0;
    const x = (time) => wide - ((last - time) / span) * (wide - LEFT);
    const top = ceiling(Math.max(0, ...series.flatMap((one) => one.values.map((value) => value ?? 0))));
    const y = (value) => HIGH - BOTTOM - (value / top) * (HIGH - BOTTOM - TOP);
    this.svg.replaceChildren();
    for (const part of [0, 0.5, 1]) {
      shape("line", { class: "grid", x1: LEFT, x2: wide, y1: y(top * part), y2: y(top * part) }, this.svg);
      shape("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" }, this.svg).textContent = short(top * part);
    }
    for (const seconds of span < 120 ? [30] : [60, 120, 180, 240].filter((one) => one < span)) {
      const text = shape("text", { x: x(last - seconds), y: HIGH - 4, "text-anchor": "middle" }, this.svg);
      text.textContent = seconds < 60 ? `−${seconds} s` : `−${seconds / 60} min`;
    }
    let chosen = times.length - 1;
    if (this.pointed !== null && times.length) {
      const distance = (at) => Math.abs(x(times[at]) - this.pointed);
      chosen = times.reduce((best, _, at) => (distance(at) < distance(best) ? at : best), 0);
      shape("line", { class: "cross", x1: x(times[chosen]), x2: x(times[chosen]), y1: TOP, y2: HIGH - BOTTOM }, this.svg);
    }
    this.legend.replaceChildren();
    series.forEach((one, number) => {
      let path = "", drawing = false;
      one.values.forEach((value, at) => {
        if (value === null) { drawing = false; return; }
        path += `${drawing ? "L" : "M"}${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
        drawing = true;
      });
      shape("path", { class: `series c${number}`, d: path }, this.svg);
      const item = document.createElement("li"), mark = document.createElement("i"), value = document.createElement("b");
      mark.className = `c${number}`;
      value.textContent = short(one.values[chosen] ?? null);
      item.append(mark, one.name, value);
      this.legend.append(item);
    });
  }
}
