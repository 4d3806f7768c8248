// Curves as small multiples: one chart a metric, one line a run, a band where there is an interval.

const CHART = {width: 360, height: 170, left: 50, right: 10, top: 8, bottom: 22};
const DASHES = [null, "6 3", "2 3", "9 3 2 3"]; // lines differ in more than color
const dashOf = (index) => DASHES[(index + Math.floor(index / 4)) % 4]; // with four colors sixteen lines that differ
const charts = []; // all that are drawn: the cursor stands at the same step in each

function mountCurves(panel, main) {
  if (main.runs.length > 1) panel.append(legend(main.runs));
  for (const section of main.sections) {
    const grid = el("div", {class: "charts"}, section.names.map((name) => metricChart(main, name)));
    const still = section.still.map((name) => stillNumber(main, name));
    const flat = still.length ? el("p", {class: "muted still"}, "Did not change: ", still) : null;
    panel.append(el("details", {class: "section", open: section.open},
      el("summary", null, section.title, el("span", {class: "muted"}, ` (${section.names.length})`)), grid, flat));
  }
  if (!main.sections.length) panel.append(el("p", {class: "muted"}, "No step has been recorded yet."));
}

function legend(runs) {
  return el("p", {class: "legend"}, runs.map((run, index) => el("span", null,
    svg("svg", {width: 34, height: 10, "aria-hidden": "true"},
      svg("line", {x1: 0, x2: 34, y1: 5, y2: 5, class: "line series-" + (index % 4), "stroke-dasharray": dashOf(index)})),
    " " + run.name + "  ")));
}

function stillNumber(main, name) {
  const values = main.runs.map((run) => (run.series[name] || []).find((value) => value !== null));
  const about = main.metrics[name];
  return el("span", {class: "mono", title: about ? about.meaning : null}, `${name} ${values.map(number).join(" | ")}`);
}

function metricChart(main, name) {
  const about = main.metrics[name] || {unit: "", meaning: "", bad: ""};
  const lines = main.runs.map((run) => ({
    label: run.name, steps: run.steps, values: run.series[name] || [],
    low: run.series[name + "_low"], high: run.series[name + "_high"],
  }));
  return lineChart({title: name, unit: about.unit, meaning: about.meaning, bad: about.bad, lines});
}

/** A chart with its heading: `lines` is [{label, steps, values, low, high}], equally long lists, null where there is no
 *  value; low and high may be absent. Hover, touch and the arrow keys read values. */
function lineChart({title, unit, meaning, bad, lines}) {
  const curves = lines.map(pointsOf);
  const all = curves.flat();
  const x = scale(extent(all.map((point) => point.step)), CHART.left, CHART.width - CHART.right);
  const y = scale(padded(extent(all.flatMap((point) => [point.value, point.low, point.high]))),
    CHART.height - CHART.bottom, CHART.top);
  const readout = el("span", {class: "readout mono", "aria-live": "off"});
  const cursor = svg("g", {class: "cursor"});
  const plot = svg("svg", {viewBox: `0 0 ${CHART.width} ${CHART.height}`, tabindex: 0, role: "img",
    "aria-label": summary(title, curves, lines)}, axes(x, y), curves.map((points, index) => curve(points, index, x, y)), cursor);
  const chart = {curves, x, y, cursor, readout, lines};
  charts.push(chart);
  const steps = [...new Set(all.map((point) => point.step))].sort((a, b) => a - b);
  listen(plot, steps, x);
  readAt(chart, null);
  const hint = bad && bad !== "-" ? `${meaning}\nLooks wrong when: ${bad}` : meaning;
  const about = el("p", {class: "muted about", title: hint, onclick: () => about.classList.toggle("open")},
    meaning + (unit && unit !== "1" ? ` [${unit}]` : ""));
  return el("figure", {class: "card chart"},
    el("figcaption", null, el("div", {class: "chart-head"}, el("b", {class: "mono", title: hint}, title), readout), about), plot);
}

function pointsOf({steps, values, low, high}) {
  const points = [];
  values.forEach((value, index) => {
    if (value === null || value === undefined) return;
    points.push({step: steps[index], value, low: low ? low[index] : null, high: high ? high[index] : null});
  });
  return points;
}

function summary(title, curves, lines) {
  const parts = curves.map((points, index) => {
    if (!points.length) return `${lines[index].label}: no value`;
    const first = points[0], last = points[points.length - 1];
    return `${lines[index].label}: ${number(first.value)} at step ${first.step}, ${number(last.value)} at step ${last.step}`;
  });
  return `${title}. ${parts.join(". ")}`;
}

function curve(points, index, x, y) {
  if (!points.length) return null;
  const at = (point, value) => `${x(point.step).toFixed(1)} ${y(value).toFixed(1)}`;
  const banded = points.filter((point) => typeof point.low === "number" && typeof point.high === "number");
  const edge = [...banded.map((point) => at(point, point.high)), ...banded.reverse().map((point) => at(point, point.low))];
  const dots = points.length <= 40 ? points.map((point) =>
    svg("circle", {cx: x(point.step), cy: y(point.value), r: 2.2, class: "dot series-" + (index % 4)})) : [];
  return svg("g", null,
    banded.length ? svg("path", {d: "M" + edge.join("L") + "Z", class: "band series-" + (index % 4)}) : null,
    svg("path", {d: "M" + points.map((point) => at(point, point.value)).join("L"),
      class: "line series-" + (index % 4), "stroke-dasharray": dashOf(index)}), dots);
}

function axes(x, y) {
  const lines = ticks(y.domain, 5).map((value) => svg("g", null,
    svg("line", {x1: CHART.left, x2: CHART.width - CHART.right, y1: y(value), y2: y(value), class: "grid"}),
    svg("text", {x: CHART.left - 5, y: y(value) + 3.5, class: "tick end"}, number(value))));
  const steps = ticks(x.domain, 5).filter(Number.isInteger).map((value) =>
    svg("text", {x: x(value), y: CHART.height - 6, class: "tick middle"}, number(value)));
  return svg("g", null, lines, steps);
}

// ------------------------------------------------------------------------------------------------------- scales

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (typeof value !== "number") continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 1];
}

function padded([low, high]) {
  const room = low === high ? Math.abs(low) / 10 || 1 : (high - low) * 0.05;
  return [low - room, high + room];
}

function scale([low, high], start, end) {
  const width = high - low || 1;
  const place = (value) => start + ((value - low) / width) * (end - start);
  place.domain = [low, high];
  return place;
}

/** About `count` round numbers inside [low, high]: 1, 2 or 5 times a power of ten apart. */
function ticks([low, high], count) {
  const rough = (high - low || 1) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999) * power;
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
    found.push(Number((index * step).toPrecision(12)));
  }
  return found;
}

// ------------------------------------------------------------------------------------------------------- cursor

let cursorStep = null;
let cursorFrame = 0;

function moveCursor(step) {
  cursorStep = step;
  if (!cursorFrame) cursorFrame = requestAnimationFrame(() => {
    cursorFrame = 0;
    for (const chart of charts) readAt(chart, cursorStep);
  });
}

function listen(plot, steps, x) {
  const nearest = (event) => {
    const box = plot.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * CHART.width;
    return steps.reduce((best, step) => (Math.abs(x(step) - place) < Math.abs(x(best) - place) ? step : best), steps[0]);
  };
  plot.addEventListener("pointermove", (event) => moveCursor(nearest(event)));
  plot.addEventListener("pointerdown", (event) => moveCursor(nearest(event)));
  plot.addEventListener("pointerleave", () => moveCursor(null));
  plot.addEventListener("blur", () => moveCursor(null));
  plot.addEventListener("keydown", (event) => {
    const now = cursorStep === null ? steps.length - 1 : steps.findIndex((step) => step >= cursorStep);
    const next = {ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: steps.length - 1}[event.key];
    if (next === undefined) return;
    event.preventDefault();
    moveCursor(steps[Math.min(steps.length - 1, Math.max(0, next))]);
  });
}

/** The values at a step, or the last ones; a curve without a value there shows the one before. */
function readAt(chart, step) {
  const marks = [], texts = [];
  chart.curves.forEach((points, index) => {
    const point = step === null ? points[points.length - 1] : lastUntil(points, step);
    if (!point) return;
    const band = typeof point.low === "number" && typeof point.high === "number" ? ` (${number(point.low)} to ${number(point.high)})` : "";
    texts.push(number(point.value) + band);
    if (step === null) return;
    marks.push(svg("line", {x1: chart.x(point.step), x2: chart.x(point.step), y1: CHART.top, y2: CHART.height - CHART.bottom, class: "rule"}),
      svg("circle", {cx: chart.x(point.step), cy: chart.y(point.value), r: 4, class: "dot series-" + (index % 4)}));
    if (index === 0) texts[0] = `step ${point.step}: ` + texts[0];
  });
  chart.cursor.replaceChildren(...marks);
  chart.readout.textContent = texts.join(" | ");
}

function lastUntil(points, step) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle].step <= step) low = middle + 1; else high = middle;
  }
  return points[low - 1];
}

/** A curve without axes; the last value as a dot. */
function sparkline(values) {
  const points = values.map((value, index) => [index, value]).filter(([, value]) => typeof value === "number");
  const box = svg("svg", {viewBox: "0 0 120 30", class: "spark", "aria-hidden": "true"});
  if (!points.length) return box;
  const x = scale([points[0][0], points[points.length - 1][0]], 3, 114);
  const y = scale(padded(extent(points.map(([, value]) => value))), 28, 2);
  const path = points.map(([index, value]) => `${x(index).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
  const [index, value] = points[points.length - 1];
  box.append(svg("path", {d: "M" + path, class: "line series-0"}), svg("circle", {cx: x(index), cy: y(value), r: 2.6, class: "dot series-0"}));
  return box;
}
