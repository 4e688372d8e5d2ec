// Charts by Observable Plot, from the JSON in `data-chart`; the same numbers stand in a table.

const COLOURS = [1, 2, 3, 4, 5, 6].map((number) => `var(--series-${number})`);

const short = (value) => window.d3.format("~s")(value);
const UNITS = { $: (value) => (value < 1000 ? `$${+value.toFixed(4)}` : `$${short(value)}`), tokens: short };

const DAY = 86400000;

/** `[{"at", "name", "value"}]` as bars upon each other, one a day or week, from `data-since` until `data-until`. */
function bars(points, { label, unit, days, since, until }, width) {
  const { Plot } = window;
  const names = [...new Set(points.map((point) => point.name))];
  const interval = days === "7" ? "monday" : "day";
  const domain = [new Date(since), new Date(until)];
  // A bar is a day: no tick is an hour.
  const ticks = domain[1] - domain[0] <= 10 * DAY ? "day" : undefined;
  return Plot.plot({
    width,
    height: 180,
    marginLeft: 48,
    color: { domain: names, range: COLOURS, legend: names.length > 1 },
    y: { grid: true, label: null, ticks: 4, tickFormat: UNITS[unit] ?? ((value) => (Number.isInteger(value) ? `${value}` : "")) },
    x: { label: null, type: "utc", domain, ticks },
    marks: [
      Plot.rectY(points, { x: "at", y: "value", fill: "name", interval, order: names, tip: { format: { y: UNITS[unit] ?? true } }, ariaLabel: label }),
      Plot.ruleY([0]),
    ],
  });
}

const LONGEST_STEP = 35 * DAY;

/** The stretch of its series that each point is in: a line joins nothing over a time without data. */
function stretches(points) {
  const last = new Map();
  return new Map([...points].sort((one, other) => one.at - other.at).map((point) => {
    const before = last.get(point.name);
    const number = before ? before.number + (point.at - before.at > LONGEST_STEP) : 0;
    last.set(point.name, { at: point.at, number });
    return [point, `${point.name} ${number}`];
  }));
}

/** `[{"at", "value", "low", "high", "name", "faint"}]` as lines with bands; unless `data-scale` says
    otherwise, rates in percent. `data-marks` has `[{"at", "what"}]`: what was first seen when. */
function lines(points, { label, scale, marks: told }, width) {
  const { Plot } = window;
  // What cannot be below nothing has no bounds there.
  if (points.every((point) => point.value >= 0)) {
    for (const point of points) if (point.low < 0) point.low = 0;
  }
  const times = points.map((point) => Number(point.at));
  const marks = JSON.parse(told ?? "[]").map((mark) => ({ ...mark, at: new Date(mark.at) }))
    .filter((mark) => mark.at >= Math.min(...times) && mark.at <= Math.max(...times));
  const several = new Set(points.map((point) => point.name)).size > 1;
  const stretch = stretches(points);
  const z = (point) => stretch.get(point);
  const shown = (point) => (point.faint ? 0.35 : 1);
  return Plot.plot({
    width,
    height: Math.min(320, Math.max(200, width / 3)),
    marginLeft: 48,
    color: { range: COLOURS, legend: several },
    symbol: { legend: false },
    y: (scale ?? "rate") === "rate"
      ? { percent: true, grid: true, domain: [0, 100], label: `${label} (%)` }
      : { grid: true, zero: true, nice: true, label },
    x: { label: null, type: "utc" },
    marks: [
      Plot.ruleX(marks, { x: "at", stroke: "var(--dim)", strokeDasharray: "2,3", title: "what", tip: true }),
      Plot.areaY(points, { x: "at", y1: "low", y2: "high", z, fill: "name", fillOpacity: 0.12 }),
      Plot.ruleX(points, { x: "at", y1: "low", y2: "high", stroke: "name", strokeOpacity: 0.3 }),
      Plot.lineY(points, { x: "at", y: "value", z, stroke: "name", strokeWidth: 2 }),
      Plot.dot(points, {
        x: "at", y: "value", fill: "name", symbol: "name", r: 3.5, fillOpacity: shown, tip: true,
      }),
    ],
  });
}

/** The points in `data-chart`, drawn as `data-kind` says. */
class PlotFigure extends HTMLElement {
  connectedCallback() {
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this);
    // A page that is brought up to date loses what was drawn, or gets other numbers.
    this.changes = new MutationObserver(() => this.draw());
    this.changes.observe(this, { attributeFilter: ["data-chart"], childList: true });
  }
  disconnectedCallback() {
    this.sizes.disconnect();
    this.changes.disconnect();
  }
  draw() {
    const { Plot } = window;
    const width = Math.floor(this.clientWidth);
    const drawn = this.querySelector("figure, svg");
    const wanted = `${width} ${this.dataset.chart} ${this.dataset.marks} ${this.dataset.since} ${this.dataset.until}`;
    if (!Plot || !width || (drawn && wanted === this.drawn)) return;
    this.drawn = wanted;
    const points = JSON.parse(this.dataset.chart).map((point) => ({ ...point, at: new Date(point.at) }));
    const plot = (this.dataset.kind === "bars" ? bars : lines)(points, this.dataset, width);
    // Its style is in pages.css: the page allows no other.
    plot.querySelectorAll("style").forEach((style) => style.remove());
    // The element around it says what it is, and the table has its numbers.
    plot.setAttribute("aria-hidden", "true");
    drawn?.remove();
    this.append(plot);
  }
}

customElements.define("plot-figure", PlotFigure);
