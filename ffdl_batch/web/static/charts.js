// Draws the curves of the page's data source, again after each change of a job.
"use strict";

const place = document.getElementById("charts");
const tools = document.getElementById("chart-tools");
const logScale = document.getElementById("log-scale");
const smoothing = document.getElementById("smoothing");
const byTime = document.getElementById("by-time");
const COLOURS = ["#1f77b4", "#d9730d", "#2a8f4a", "#c0392b", "#8055b5", "#8c6d3f", "#c9489f", "#6f7680", "#8f9a1c", "#1698a6"];
const HEIGHT = 240;
let drawn = [];

// The exponential moving average, corrected for its beginning.
function smoothed(ys, weight) {
  let mean = 0;
  let mass = 0;
  return ys.map((y) => {
    if (y === null || y === undefined) return y;
    mean = mean * weight + y * (1 - weight);
    mass = mass * weight + (1 - weight);
    return mean / mass;
  });
}

const UNITS = { B: 1, "B/s": 1 };

function text(value, unit) {
  if (value === null || value === undefined) return "";
  if (!(unit in UNITS)) return String(Number(value.toPrecision(5)));
  const names = ["", "Ki", "Mi", "Gi", "Ti"];
  let size = value;
  let place = 0;
  while (Math.abs(size) >= 1024 && place < names.length - 1) {
    size /= 1024;
    place += 1;
  }
  return `${Number(size.toPrecision(3))} ${names[place]}${unit}`;
}

// Of an axis with names in place of numbers: one mark for each.
function nameMarks(names) {
  if (!names?.length) return {};
  return { splits: () => names.map((_, number) => number), values: () => names };
}

function chartOf(chart, width) {
  const weight = Number(smoothing?.value ?? 0);
  const tables = chart.curves.map((curve) => [curve.xs, smoothed(curve.ys, weight)]);
  const ink = getComputedStyle(document.body).color;
  const line = getComputedStyle(document.documentElement).getPropertyValue("--line");
  const isLog = logScale.checked && chart.curves.every((curve) => curve.ys.every((y) => y > 0));
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const options = {
    width,
    height: HEIGHT,
    scales: { x: { time: false, distr: chart.is_log_x ? 3 : 1 }, y: { distr: isLog ? 3 : 1 } },
    cursor: { sync: { key: chart.axis } },
    legend: { show: chart.curves.length <= 12 },
    axes: [{ ...axis, ...nameMarks(chart.names) }, { ...axis, size: 70, values: (_, marks) => marks.map((mark) => text(mark, chart.unit)) }],
    series: [
      { label: chart.axis === "time" ? "seconds" : chart.axis },
      ...chart.curves.map((curve, number) => ({
        label: curve.label,
        stroke: COLOURS[number % COLOURS.length],
        dash: number < COLOURS.length ? undefined : [6, 3],
        width: 1.5,
        paths: chart.is_stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
        spanGaps: true,
        points: { show: curve.xs.length < 2, size: chart.is_scatter ? 9 : 5 },
        value: (_, value) => text(value, chart.unit),
      })),
    ],
  };
  return [options, uPlot.join(tables)];
}

function drawAll(groups) {
  for (const one of drawn) one.destroy();
  drawn = [];
  place.replaceChildren();
  const boxes = [];
  for (const charts of groups) {
    for (const chart of charts.charts) {
      const box = document.createElement("section");
      box.className = "chart";
      const title = document.createElement("h2");
      title.textContent = chart.title;
      box.append(title);
      place.append(box);
      boxes.push([box, chart]);
    }
    if (charts.left_out) {
      const note = document.createElement("p");
      note.className = "meta";
      note.textContent = `${charts.left_out} more curves are not drawn.`;
      place.append(note);
    }
  }
  // The width of a box depends on the number of boxes.
  for (const [box, chart] of boxes) {
    const [options, data] = chartOf(chart, box.clientWidth - 16);
    drawn.push(new uPlot(options, data, box));
  }
  tools.hidden = !boxes.length;
}

let known = null;
let isLive = false;

async function load() {
  const source = new URL(place.dataset.source, location.href);
  if (byTime?.checked) source.searchParams.set("axis", "time");
  const answer = await fetch(source);
  if (!answer.ok) return;
  const found = await answer.json();
  isLive = found.is_live;
  known = [found.sweep, found.metrics, found.usage].filter(Boolean);
  drawAll(known);
  if (drawn.length) document.getElementById("numbers")?.removeAttribute("open");
}

logScale.addEventListener("change", () => drawAll(known));
smoothing?.addEventListener("input", () => drawAll(known));
byTime?.addEventListener("change", load);
addEventListener("resize", () => known && drawAll(known));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => known && drawAll(known));
document.getElementById("main").addEventListener("jobs-changed", load);
// While jobs run, their curves grow without a change of state.
setInterval(() => isLive && !document.hidden && load(), 15000);
load();
