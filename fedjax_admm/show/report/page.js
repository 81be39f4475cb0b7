"use strict";
// Draws the curves from the page's embedded numbers, as SVG; no library, nothing is fetched.
(() => {
  const root = document.documentElement;
  window.addEventListener("error", (event) => { root.dataset.errors = `${root.dataset.errors ?? ""}${event.message}\n`; });

  const data = JSON.parse(document.getElementById("data").textContent);
  const template = document.getElementById("chart");
  const SVG = template.content.querySelector("svg").namespaceURI;
  const DASHES = ["", "7 3", "2 2.5", "9 3 2 3", "12 4"]; // five dashes and seven colours: 35 different lines
  const COLOURS = 7;
  const MARGIN = { left: 54, right: 14, top: 8, bottom: 40 };
  const state = { x: "round", hidden: new Set() };

  // Elements

  function add(parent, name, attributes = {}, text = "") {
    const element = document.createElementNS(name === "svg" ? SVG : parent.namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== "") element.textContent = text;
    return parent.appendChild(element);
  }

  function swatch(parent, index) {
    const svg = add(parent, "svg", { viewBox: "0 0 30 8", "aria-hidden": "true", class: `s${index % COLOURS}` });
    add(svg, "path", { class: "line", d: "M0 4H30", "stroke-dasharray": DASHES[index % DASHES.length] });
  }

  // Numbers as text

  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

  function short(value, digits = 5) {
    const size = Math.abs(value);
    if (size >= 1e15 || (size > 0 && size < 1e-3)) return String(Number(value.toPrecision(digits)).toExponential()).replace("e+", "e");
    return size >= 1e4 ? compact.format(value) : String(Number(value.toPrecision(digits)));
  }

  const whole = (value) => Math.round(value).toLocaleString("en");
  const counted = (value) => (Math.abs(value) < 1000 ? String(+value.toPrecision(4)) : whole(value)); // seconds may be few

  // Axes

  function linearTicks([low, high], count) {
    const rough = (high - low) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    // The nearest by ratio: the next larger one could leave two ticks.
    const factor = rough < 1.5 * power ? 1 : rough < 3.2 * power ? 2 : rough < 7.1 * power ? 5 : 10;
    const step = factor * power;
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
    return ticks;
  }

  function logTicks([low, high], count) {
    const decades = Math.log10(high / low);
    if (decades < 1) return linearTicks([low, high], count).filter((tick) => tick > 0);
    const every = Math.ceil(decades / count);
    const factors = decades < 2.5 ? [1, 2, 5] : [1];
    const ticks = [];
    for (let k = Math.floor(Math.log10(low)); k <= Math.log10(high); k += every) {
      for (const factor of factors) ticks.push(factor * 10 ** k);
    }
    return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
  }

  function range(values, log) {
    let [low, high] = [Infinity, -Infinity];
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low === high) return log ? [low / 2, high * 2] : [low - (Math.abs(low) / 10 || 1), high + (Math.abs(low) / 10 || 1)];
    if (log) { const edge = (high / low) ** 0.04; return [low / edge, high * edge]; }
    const edge = (high - low) * 0.04;
    return [low >= 0 && low < 5 * edge ? 0 : low - edge, high + edge];
  }

  function scale([low, high], from, to, log) {
    const map = log ? Math.log : (value) => value;
    return (value) => from + ((map(Math.max(value, log ? low : -Infinity)) - map(low)) / (map(high) - map(low))) * (to - from);
  }

  // One chart

  function points(series, column, log) {
    const curve = series.y[column];
    if (!curve) return [];
    const found = [];
    curve.mean.forEach((y, k) => {
      if (y === null || (log && y <= 0)) return;
      const x = series.x[state.x][k];
      const [low, high] = [curve.low?.[k] ?? null, curve.high?.[k] ?? null];
      found.push({ x, y, round: series.x.round[k], low, high });
    });
    return found;
  }

  class Chart {
    constructor(spec, parent) {
      this.spec = spec;
      this.figure = parent.appendChild(template.content.firstElementChild.cloneNode(true));
      this.svg = this.figure.querySelector("svg");
      this.tip = this.figure.querySelector(".tip");
      this.log = this.figure.querySelector("input");
      this.figure.querySelector(".title").textContent = spec.title;
      this.log.checked = spec.log;
      this.log.addEventListener("change", () => this.draw());
      this.svg.addEventListener("pointermove", (event) => this.pointAt(event.clientX - this.svg.getBoundingClientRect().left));
      this.svg.addEventListener("pointerleave", () => this.leave());
      this.svg.addEventListener("blur", () => this.leave());
      this.svg.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => { if (this.svg.clientWidth !== this.width) this.draw(); }).observe(this.svg);
      this.draw();
    }

    draw() {
      const { svg, log: { checked: log }, spec } = this;
      this.leave();
      svg.replaceChildren();
      this.width = svg.clientWidth || 480;
      this.height = svg.clientHeight || 270;
      svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.lines = data.series
        .map((series, index) => ({ index, label: series.label, points: state.hidden.has(index) ? [] : points(series, spec.column, log) }))
        .filter((line) => line.points.length);
      this.describe();
      if (!this.lines.length) {
        add(svg, "text", { x: this.width / 2, y: this.height / 2, "text-anchor": "middle" }, log ? "nothing positive to show" : "nothing to show");
        return;
      }
      const all = this.lines.flatMap((line) => line.points);
      const heights = all.flatMap((point) => [point.y, point.low, point.high]).filter((y) => y !== null && (!log || y > 0));
      const xRange = [Math.min(0, ...this.lines.map((line) => line.points[0].x)), Math.max(...this.lines.map((line) => line.points.at(-1).x)) || 1];
      // A band that reaches far below its line would squeeze all lines of a log scale.
      const least = log ? all.reduce((low, point) => Math.min(low, point.y), Infinity) / 3 : -Infinity;
      const yRange = range(heights.filter((y) => y >= least), log);
      this.x = scale(xRange, MARGIN.left, this.width - MARGIN.right, false);
      this.y = scale(yRange, this.height - MARGIN.bottom, MARGIN.top, log);
      this.axes(linearTicks(xRange, Math.max(2, this.width / 80)), (log ? logTicks : linearTicks)(yRange, 5));
      for (const line of this.lines) this.band(line);
      for (const line of this.lines) this.line(line);
      this.marks = add(svg, "g");
    }

    describe() {
      const ends = this.lines.map((line) => `${line.label} ends at ${short(line.points.at(-1).y)}`);
      this.svg.setAttribute("aria-label", `${this.spec.title} against ${data.abscissas[state.x]}: ${ends.join(", ") || "nothing shown"}`);
    }

    axes(xTicks, yTicks) {
      const { svg, width, height } = this;
      const [left, right, bottom] = [MARGIN.left, width - MARGIN.right, height - MARGIN.bottom];
      for (const tick of yTicks) {
        const y = this.y(tick);
        add(svg, "path", { class: "gridline", d: `M${left} ${y}H${right}` });
        add(svg, "text", { x: left - 7, y: y + 4, "text-anchor": "end" }, short(tick));
      }
      for (const tick of xTicks) {
        const x = this.x(tick);
        add(svg, "path", { class: "axis", d: `M${x} ${bottom}v5` });
        add(svg, "text", { x, y: bottom + 18, "text-anchor": "middle" }, short(tick));
      }
      add(svg, "path", { class: "axis", d: `M${left} ${bottom}H${right}` });
      add(svg, "text", { x: (left + right) / 2, y: height - 5, "text-anchor": "middle" }, data.abscissas[state.x]);
    }

    place(point, y = point.y) { return `${this.x(point.x).toFixed(1)} ${this.y(y).toFixed(1)}`; }

    line({ index, points: found }) {
      const style = { class: `line s${index % COLOURS}`, "stroke-dasharray": DASHES[index % DASHES.length] };
      add(this.svg, "path", { ...style, d: `M${found.map((point) => this.place(point)).join("L")}` });
      if (found.length === 1) this.dot(this.svg, index, found[0]);
    }

    band({ index, points: found }) {
      const known = found.filter((point) => point.low !== null && point.high !== null);
      if (!known.length) return;
      const upper = known.map((point) => this.place(point, point.high));
      const lower = known.map((point) => this.place(point, point.low)).reverse();
      add(this.svg, "path", { class: `band s${index % COLOURS}`, d: `M${[...upper, ...lower].join("L")}Z` });
    }

    dot(parent, index, point) {
      add(parent, "circle", { class: `dot s${index % COLOURS}`, r: 4, cx: this.x(point.x), cy: this.y(point.y) });
    }

    // Crosshair: each line's point nearest to a place on the abscissa.

    pointAt(pixel) {
      if (!this.lines.length) return;
      const nearest = this.lines.map((line) => ({
        ...line,
        point: line.points.reduce((best, point) => (Math.abs(this.x(point.x) - pixel) < Math.abs(this.x(best.x) - pixel) ? point : best)),
      }));
      const gap = (line) => Math.abs(this.x(line.point.x) - pixel);
      const closest = nearest.reduce((best, line) => (gap(line) < gap(best) ? line : best)).point;
      this.at = closest.x;
      this.marks.replaceChildren();
      const x = this.x(closest.x);
      add(this.marks, "path", { class: "cross", d: `M${x} ${MARGIN.top}V${this.height - MARGIN.bottom}` });
      for (const { index, point } of nearest) this.dot(this.marks, index, point);
      this.showTip(nearest, closest, x);
    }

    showTip(nearest, closest, x) {
      const { tip, figure, svg } = this;
      tip.replaceChildren();
      add(tip, "div", {}, state.x === "round" ? `round ${whole(closest.x)}` : `${counted(closest.x)} ${data.abscissas[state.x]}`);
      for (const { index, label, point } of nearest) {
        const row = add(tip, "div");
        swatch(row, index);
        const own = point.x === closest.x ? "" : `, round ${whole(point.round)}`;
        add(row, "span", {}, `${label}${own}`);
        add(row, "b", {}, `${short(point.y)}${this.bandText(point)}`);
      }
      tip.hidden = false;
      // Below the chart, where it hides none of the lines.
      const [outer, inner] = [figure.getBoundingClientRect(), svg.getBoundingClientRect()];
      const left = x + inner.left - outer.left - tip.offsetWidth / 2;
      tip.style.left = `${Math.max(4, Math.min(outer.width - tip.offsetWidth - 6, left))}px`;
      tip.style.top = `${inner.bottom - outer.top - 18}px`;
    }

    bandText({ low, high }) {
      if (low === null || low === high) return "";
      return this.spec.band === "deviation" ? ` ± ${short((high - low) / 2, 2)}` : ` (${short(low, 3)} to ${short(high, 3)})`;
    }

    leave() {
      this.tip.hidden = true;
      this.marks?.replaceChildren();
    }

    key(event) {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.leave();
      if (!step || !this.lines.length) return;
      event.preventDefault();
      const places = [...new Set(this.lines.flatMap((line) => line.points.map((point) => point.x)))].sort((a, b) => a - b);
      const now = this.tip.hidden ? -1 : places.indexOf(this.at);
      this.pointAt(this.x(places[Math.max(0, Math.min(places.length - 1, now + step))]));
    }
  }

  // Controls

  const charts = data.charts.map((spec) => new Chart(spec, document.getElementById("charts")));
  const redraw = () => charts.forEach((chart) => chart.draw());

  for (const [key, text] of Object.entries(data.abscissas)) {
    const label = add(document.getElementById("abscissas"), "label");
    const input = add(label, "input", { type: "radio", name: "abscissa", value: key });
    input.checked = key === state.x;
    input.addEventListener("change", () => { state.x = key; redraw(); });
    label.append(` ${text}`);
  }

  if (data.series.length > 1) {
    data.series.forEach((series, index) => {
      const button = add(document.getElementById("legend"), "button", { type: "button", "aria-pressed": "true" });
      swatch(button, index);
      button.append(series.label);
      button.addEventListener("click", () => {
        if (!state.hidden.delete(index)) state.hidden.add(index);
        button.setAttribute("aria-pressed", String(!state.hidden.has(index)));
        redraw();
      });
    });
  }
  document.querySelector(".controls").hidden = false;

  // Heat maps: the value under the pointer is read back from its colour.

  const levels = new Map(data.heat.colours.map((colour, level) => [colour, level]));

  function reader(image, binned) {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(image, 0, 0);
    return (column, row) => {
      const [red, green, blue, alpha] = context.getImageData(column, row, 1, 1).data;
      const colour = `#${[red, green, blue].map((part) => part.toString(16).padStart(2, "0")).join("")}`;
      if (!alpha) return "not selected";
      if (colour === data.heat.away) return "selected, but away";
      const value = (levels.get(colour) / (data.heat.colours.length - 1)) * data.heat.largest;
      return `${binned ? value.toFixed(1) : Math.round(value)} epochs`;
    };
  }

  function interval(name, bin, size, first, count) {
    const [low, high] = [bin * size, Math.min(count, (bin + 1) * size) - 1].map((n) => whole(n + first));
    return low === high ? `${name} ${low}` : `${name}s ${low} to ${high}`;
  }

  function hover(figure) {
    const image = figure.querySelector("img");
    const tip = add(figure, "div", { class: "tip", hidden: "" });
    const { clients, rounds, bins } = figure.dataset;
    const [perRow, perColumn] = bins.split(" ").map(Number);
    let read = null;
    image.addEventListener("pointermove", (event) => {
      read ??= reader(image, perRow * perColumn > 1);
      const box = image.getBoundingClientRect();
      const cell = (offset, side, count) => Math.max(0, Math.min(count - 1, Math.floor((offset / side) * count)));
      const column = cell(event.clientX - box.left, box.width, image.naturalWidth);
      const row = cell(event.clientY - box.top, box.height, image.naturalHeight);
      const place = `${interval("client", row, perRow, 0, clients)}, ${interval("round", column, perColumn, 1, rounds)}`;
      tip.textContent = `${place}: ${read(column, row)}`;
      tip.hidden = false;
      const outer = figure.getBoundingClientRect();
      const left = event.clientX - outer.left - tip.offsetWidth / 2;
      tip.style.left = `${Math.max(4, Math.min(outer.width - tip.offsetWidth - 4, left))}px`;
      tip.style.top = `${event.clientY - outer.top - tip.offsetHeight - 10}px`;
    });
    image.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  document.querySelectorAll(".heat[data-bins]").forEach(hover);

  // A table that is wider than its place says so: many systems hide the scroll bar until it is used.

  document.querySelectorAll(".scroll").forEach((place) => {
    const hint = document.createElement("p");
    [hint.className, hint.textContent] = ["hint", "more columns to the right: scroll \u2192"];
    place.before(hint);
    const update = () => { hint.hidden = place.scrollWidth <= place.clientWidth; };
    update();  // the observer waits for a frame, which a busy machine may draw late
    new ResizeObserver(update).observe(place);
  });

  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
})();
