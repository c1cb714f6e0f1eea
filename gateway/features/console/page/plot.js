// A line plot over time in SVG, with a legend that shows the values under the pointer, or the last ones.

const SVG = "http://www.w3.org/2000/svg";
const HIGH = 160, LEFT = 40, RIGHT = 6, BOTTOM = 18, TOP = 8, LABEL = 56;
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
  if (value >= 100 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(value < 0.1 ? 3 : value < 1 ? 2 : 1);
}

// The least step of 1, 2, 2.5 or 5 times a power of ten of which at most four reach `most`.
function step(most) {
  if (most <= 0) return 0.5;
  const power = 10 ** Math.floor(Math.log10(most / 4));
  return [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one * 4 >= most * 0.999);
}

const ago = (seconds) => (!seconds ? "now" : seconds % 60 ? `−${seconds} s` : `−${seconds / 60} min`);

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
    new ResizeObserver(() => this.redraw()).observe(this.svg);
  }

  // times: seconds, growing; span: how many of them the plot covers; series: [{name, style, values}], null where there
  // is none; style: a class with its colour, by default that of its index
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
    const x = (time) => wide - RIGHT - ((last - time) / span) * (wide - LEFT - RIGHT);
    const most = Math.max(0, ...series.flatMap((one) => one.values.map((value) => value ?? 0)));
    const rise = step(most), top = rise * Math.max(2, Math.ceil((most / rise) * 0.999));
    const y = (value) => HIGH - BOTTOM - (value / top) * (HIGH - BOTTOM - TOP);
    this.svg.replaceChildren();
    for (let value = 0; value <= top * 1.001; value += rise) {
      shape("line", { class: "grid", x1: LEFT, x2: wide - RIGHT, y1: y(value), y2: y(value) }, this.svg);
      shape("text", { class: "y", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, this.svg).textContent = short(value);
    }
    const apart = [15, 30, 60, 120].find((one) => (one / span) * (wide - LEFT) >= LABEL) ?? span;
    for (let seconds = 0; seconds < span; seconds += apart) {
      const attributes = { class: "x", x: x(last - seconds), y: HIGH - 4, "text-anchor": seconds ? "middle" : "end" };
      shape("text", attributes, this.svg).textContent = ago(seconds);
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
        if (value === null || x(times[at]) < LEFT) { drawing = false; return; }
        path += `${drawing ? "L" : "M"}${x(times[at]).toFixed(1)} ${y(value).toFixed(1)}`;
        drawing = true;
      });
      const style = one.style ?? `c${number}`;
      shape("path", { class: `series ${style}`, d: path }, this.svg);
      const [item, mark, name, value] = ["li", "i", "span", "b"].map((tag) => document.createElement(tag));
      mark.className = style;
      value.textContent = short(one.values[chosen] ?? null);
      name.textContent = name.title = one.name;
      item.append(mark, name, value);
      this.legend.append(item);
    });
  }
}
