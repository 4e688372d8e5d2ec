// Charts by Observable Plot, from the JSON in `data-chart`; the same numbers stand in a table.

const COLOURS = [1, 2, 3, 4, 5, 6].map((number) => `var(--series-${number})`);

/** `[{"at", "value", "low", "high", "name", "faint"}]` as lines with bands; rates in percent. In
    `data-marks`, `[{"at", "what"}]`: what was first seen when, as upright lines. */
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
    const wanted = `${width} ${this.dataset.chart} ${this.dataset.marks}`;
    if (!Plot || !width || (drawn && wanted === this.drawn)) return;
    this.drawn = wanted;
    const points = JSON.parse(this.dataset.chart).map((point) => ({ ...point, at: new Date(point.at) }));
    // What cannot be below nothing has no bounds there.
    if (points.every((point) => point.value >= 0)) {
      for (const point of points) if (point.low < 0) point.low = 0;
    }
    const several = new Set(points.map((point) => point.name)).size > 1;
    const shown = (point) => (point.faint ? 0.35 : 1);
    const isRate = (this.dataset.kind ?? "rate") === "rate";
    const [first, last] = [points[0]?.at, points.at(-1)?.at];
    const times = points.map((point) => Number(point.at));
    const marks = JSON.parse(this.dataset.marks ?? "[]").map((mark) => ({ ...mark, at: new Date(mark.at) }))
      .filter((mark) => first && last && mark.at >= Math.min(...times) && mark.at <= Math.max(...times));
    const plot = Plot.plot({
      width,
      height: Math.min(320, Math.max(200, width / 3)),
      marginLeft: 48,
      color: { range: COLOURS, legend: several },
      symbol: { legend: false },
      y: isRate
        ? { percent: true, grid: true, domain: [0, 100], label: `${this.dataset.label} (%)` }
        : { grid: true, zero: true, nice: true, label: this.dataset.label },
      x: { label: null, type: "utc" },
      marks: [
        Plot.ruleX(marks, { x: "at", stroke: "var(--dim)", strokeDasharray: "2,3", title: "what", tip: true }),
        Plot.areaY(points, { x: "at", y1: "low", y2: "high", z: "name", fill: "name", fillOpacity: 0.12 }),
        Plot.ruleX(points, { x: "at", y1: "low", y2: "high", stroke: "name", strokeOpacity: 0.3 }),
        Plot.lineY(points, { x: "at", y: "value", z: "name", stroke: "name", strokeWidth: 2 }),
        Plot.dot(points, {
          x: "at", y: "value", fill: "name", symbol: "name", r: 3.5, fillOpacity: shown, tip: true,
        }),
      ],
    });
    // Its style is in pages.css: the page allows no other.
    plot.querySelectorAll("style").forEach((style) => style.remove());
    // The element around it says what it is, and the table has its numbers.
    plot.setAttribute("aria-hidden", "true");
    drawn?.remove();
    this.append(plot);
  }
}

customElements.define("plot-figure", PlotFigure);
