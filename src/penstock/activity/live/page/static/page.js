// The page of a run. The server sends snapshots with their sections: titles, notes, columns and cells of tables, and
// what charts draw. This script lays them out. A section is drawn only if it changed, so that focus, scrolling and
// selections stay where they are.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function node(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) made.setAttribute(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined).map((child) => child instanceof Node ? child : String(child)));
  return made;
}

const number = (value, digits = 0) => value === null || value === undefined ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (value, digits = 1) => value === null || value === undefined ? "–" : `${number(value * 100, digits)} %`;
const short = (value) => value % 1 ? number(value, 1) : value >= 1e9 ? `${number(value / 1e9, 2)} G` : value >= 1e6 ? `${number(value / 1e6, 2)} M` : value >= 1e4 ? `${number(value / 1e3, 1)} k` : number(value);
const time = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const span = (ms) => {
  const s = Math.max(0, Math.round(ms / 1000));
  return s < 60 ? `${s} s` : s < 3600 ? `${Math.floor(s / 60)} min ${String(s % 60).padStart(2, "0")} s` : `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
};
const clock = (ms) => {
  const s = Math.max(0, Math.floor(ms / 1000)), two = (n) => String(n).padStart(2, "0");
  return `${s >= 3600 ? `${Math.floor(s / 3600)}:` : ""}${two(Math.floor(s % 3600 / 60))}:${two(s % 60)}`;
};

function bar(share) {
  const filled = node("i");
  filled.style.width = `${Math.round(Math.min(1, Math.max(0, share)) * 100)}%`;
  return node("span", { class: "bar", "aria-hidden": "true" }, filled);
}

const empty = (text) => node("p", { class: "empty" }, text);

const drawn = new Map();
function draw(id, data, make) {
  const text = JSON.stringify(data);
  if (drawn.get(id) === text) return;
  drawn.set(id, text);
  const made = make(data);
  $(id).replaceChildren(...(Array.isArray(made) ? made : [made]));
}

// --- charts: lines over time, as SVG in the size that it has on the screen

const colours = Array.from({ length: 9 }, (_, at) => `var(--s${at + 1})`);
const charts = new Map();

function nice(top) {
  const power = 10 ** Math.floor(Math.log10(top));
  return power * ([1, 2, 2.5, 5, 10].find((step) => step * power >= top) ?? 10);
}

function lines(id, series, { unit = "", digits = 0, label, least = 1, waits }) {
  // Series: [{name, colour, isLoud, points: [[time, value or null]]}]
  charts.set(id, () => lines(id, series, { unit, digits, label, least, waits }));
  const known = series.filter((one) => one.points.length > 1);
  if (!known.length) { $(id).replaceChildren(empty(waits)); return; }
  const width = Math.max($(id).clientWidth, 200), height = 190, left = 54, right = 6, top = 8, bottom = 20;
  const times = known.flatMap((one) => [one.points[0][0], one.points.at(-1)[0]]);
  const from = Math.min(...times), to = Math.max(...times, from + 30000);
  const most = nice(Math.max(least, ...known.flatMap((one) => one.points.map((point) => point[1] ?? 0))));
  const x = (ms) => left + (ms - from) / (to - from) * (width - left - right);
  const y = (value) => height - bottom - value / most * (height - top - bottom);
  const svg = node("svg:svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: "0",
    "aria-label": `${label}. ${known.map((one) => `${one.name} ${number(one.points.at(-1)[1], digits)}${unit}`).join(", ")}` });
  for (const share of [0, 0.5, 1]) {
    svg.append(node("svg:line", { class: "grid", x1: left, x2: width - right, y1: y(most * share), y2: y(most * share) }),
      node("svg:text", { x: left - 8, y: y(most * share) + 4, "text-anchor": "end" }, `${short(most * share)}${share ? unit : ""}`));
  }
  svg.append(...timeAxis(from, to, x, height));
  for (const one of [...known].sort((a, b) => (a.isLoud ? 1 : 0) - (b.isLoud ? 1 : 0))) {
    let path = "", isOn = false;
    for (const [ms, value] of one.points) {
      if (value === null) { isOn = false; continue; }
      path += `${isOn ? "L" : "M"}${x(ms).toFixed(1)} ${y(value).toFixed(1)}`;
      isOn = true;
    }
    svg.append(node("svg:path", { class: "line", d: path, stroke: one.colour }));
  }
  const legend = node("ul", { class: "legend" });
  const cursor = node("svg:line", { class: "cursor", y1: top, y2: height - bottom, visibility: "hidden" });
  svg.append(cursor);
  const show = (ms) => {
    cursor.setAttribute("visibility", ms === null ? "hidden" : "visible");
    if (ms !== null) { cursor.setAttribute("x1", x(ms)); cursor.setAttribute("x2", x(ms)); }
    const at = (one) => ms === null ? one.points.at(-1) : one.points.reduce((best, point) => Math.abs(point[0] - ms) < Math.abs(best[0] - ms) ? point : best);
    const swatch = (one) => { const made = node("i"); made.style.background = one.colour; return made; };
    legend.replaceChildren(...known.map((one) => node("li", {}, swatch(one), one.name, node("b", {}, `${number(at(one)[1], digits)}${unit}`))),
      ...(ms === null ? [] : [node("li", { class: "when" }, `at ${time(ms)}`)]));
  };
  const inside = (ms) => Math.min(to, Math.max(from, ms));
  svg.addEventListener("pointermove", (event) => show(inside(from + (event.offsetX - left) / (width - left - right) * (to - from))));
  svg.addEventListener("pointerleave", () => show(null));
  svg.addEventListener("blur", () => { if (!isRedrawing) { held.delete(id); show(null); } });
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -5000, ArrowRight: 5000, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    held.set(id, inside((held.get(id) ?? to) + step));
    show(held.get(id));
  });
  const focused = document.activeElement?.parentElement === $(id);
  if ($(id).querySelector("svg:hover")) return;  // It is being read.
  isRedrawing = true;
  $(id).replaceChildren(svg, legend);
  isRedrawing = false;
  show(held.has(id) ? inside(held.get(id)) : null);
  if (focused) svg.focus({ preventScroll: true });
}
const held = new Map();  // Where charts are being read, by keyboard.
let isRedrawing = false;

function timeAxis(from, to, x, height) {
  const step = [10, 15, 30, 60, 120, 300, 600, 1800].find((seconds) => (to - from) / 1000 / seconds <= 6) ?? 3600;
  const made = [];
  for (let ms = Math.ceil(from / step / 1000) * step * 1000; ms <= to; ms += step * 1000) {
    if (x(ms) > x(to) - 22) break;
    made.push(node("svg:text", { x: x(ms), y: height - 4, "text-anchor": "middle" }, time(ms).slice(0, step < 60 ? 8 : 5)));
  }
  return made;
}

function timeline(state) {
  charts.set("timeline", () => timeline(state));
  const to = state.time_ms, from = Math.min(Math.max(state.generating_since_ms, to - 600000), to - 120000);
  const seen = state.incidents.filter((one) => one.until >= from);
  if (!seen.length) {
    $("timeline").replaceChildren(empty(state.generating_since_ms ? section(state, "alerts").table.empty : waitsFor(state)));
    return;
  }
  const servers = [...new Set(seen.map((one) => one.server))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const width = Math.max($("timeline").clientWidth, 200), left = 72, lane = 22, height = servers.length * lane + 22;
  const x = (ms) => left + (ms - from) / (to - from) * (width - left - 4);
  const kinds = ["latency", "errors", "cpu"];
  const svg = node("svg:svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": `Alerts since ${time(from)}: ${seen.map((one) => `${one.server} ${one.kind} from ${time(one.opened)} ${one.is_open ? "until now" : `to ${time(one.until)}`}`).join("; ")}` });
  servers.forEach((server, row) => {
    svg.append(node("svg:rect", { class: "lane", x: left, y: row * lane + 2, width: width - left - 4, height: lane - 4, rx: 3 }),
      node("svg:text", { x: left - 8, y: row * lane + 15, "text-anchor": "end" }, server));
    for (const one of seen.filter((each) => each.server === server)) {
      const begin = x(Math.max(one.opened, from)), end = x(one.is_open ? to : one.until), third = (lane - 4) / 3;
      const bit = node("svg:rect", { class: `${one.severity === "critical" ? "bad" : "warn"}${one.is_open ? "" : " past"}`,
        x: begin, y: row * lane + 2 + Math.max(kinds.indexOf(one.kind), 0) * third + 0.5, width: Math.max(end - begin, 3), height: third - 1, rx: 1.5 });
      bit.append(node("svg:title", {}, `${one.kind}: ${one.message}`));
      svg.append(bit);
    }
  });
  svg.append(...timeAxis(from, to, x, height));
  $("timeline").replaceChildren(svg);
}

// --- sections: tables of cells, by the kind of their column

const section = (state, name) => state.sections.find((one) => one.name === name);
const waitsFor = (state) => state.waiting_text ? `Waiting for ${state.waiting_text} …` : "Waiting for the first results …";

function arrow(trend) {
  const [sign, kind, word] = trend >= 1.5 ? ["↑", "up", "much more than before"] : trend >= 1.1 ? ["↗", "up", "more than before"] : trend > 0.9 ? ["→", "flat", "as before"] : ["↘", "down", "less than before"];
  return node("span", { class: kind, title: `${number(trend, 2)} times the usual share of views` }, sign, node("span", { hidden: "" }, word));
}

function cell({ kind, digits, unit, warn_above }, value, most) {
  const text = value === null || value === undefined ? "–" : `${number(value, digits)}${unit && ` ${unit}`}`;
  switch (kind) {
    case "number": return node("span", { class: warn_above !== null && value > warn_above ? "warn" : null }, text);
    case "short": return node("span", { class: warn_above !== null && value > warn_above ? "warn" : null }, value === null ? "–" : short(value));
    case "share": return percent(value, digits);
    case "bar": return node("span", {}, bar((value ?? 1) / most), node("span", { class: "after" }, text));
    case "clock": return time(value);
    case "elapsed": return span(value);
    case "trend": return arrow(value ?? 1);
    case "chip": return value ? node("span", { class: `chip ${value}` }, value) : "";
    case "state": return node("span", { class: value === "running" ? "quiet" : "strong" }, value);
    default: return node("span", { class: kind }, value);
  }
}

function cells(columns, rows) {
  const most = columns.map((column, at) => column.kind === "bar" ? Math.max(...rows.map((row) => row[at] ?? 1)) : 0);
  return rows.map((row) => row.map((value, at) => cell(columns[at], value, most[at])));
}

function table({ title, table: { columns, rows, empty: none } }) {
  if (!rows.length && none) return empty(none);
  const kind = (at) => [columns[at].is_number ? "n" : "", columns[at].detail > 1 ? "wideonly" : ""].join(" ").trim() || null;
  return node("table", { "aria-label": title },
    node("thead", {}, node("tr", {}, ...columns.map((column, at) => node("th", { scope: "col", class: kind(at) }, column.title)))),
    node("tbody", {}, ...cells(columns, rows).map((row) => node("tr", {}, ...row.map((made, at) => node("td", { class: kind(at) }, made))))));
}

function list({ table: { columns, rows } }) {
  return cells(columns, rows.slice(0, 40)).map((row, at) => node("li", { class: rows[at].includes("closed") ? "closed" : null }, ...row.map((made) => node("span", {}, made))));
}

function sampled(state, { field, factor }) {
  const names = [...new Set(state.samples.flatMap((sample) => Object.keys(sample[field])))];
  return names.map((name, at) => ({ name, colour: colours[at % colours.length], points: state.samples.map((sample) => [sample.time_ms, sample[field][name] >= 0 ? sample[field][name] * factor : null]) }));
}

const styled = ({ title, unit, digits, least, empty: waits }) => ({ label: title, unit: unit && ` ${unit}`, digits, least, waits });

function latency(state) {
  const field = document.querySelector("#percentile input:checked").value;
  const loud = new Set(state.incidents.filter((one) => state.time_ms - one.until < 120000).map((one) => one.server));
  let next = 0;
  const series = Object.entries(state.servers).sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true })).map(([name, windows]) => ({
    name, isLoud: loud.has(name), colour: loud.has(name) ? "var(--bad)" : colours[next++ % colours.length],
    // The newest window is still being filled.
    points: windows.slice(0, -1).map((one) => [one.start, one[field]]),
  }));
  const chart = section(state, "latency").charts[0];
  lines("latency", series, { ...styled(chart), label: `${chart.title}, ${field.slice(0, 3)}` });
}

// --- the feed of a member

const ENOUGH = 10;
let shown = null, last = null, isChosen = false, isThin = true;
async function feed(isAsked) {
  if (!last) return;
  const input = $("member");
  // The first feeds are short: until the reader chooses a member, the one with the longest feed is shown.
  if (!isChosen && (isThin || !input.value) && last.members.length && document.activeElement !== input) input.value = last.members[0];
  if (!/^\d+$/.test(input.value)) { draw("feed", "", () => empty(last.members_total ? "Member ids are numbers." : "Feeds appear once followed members post or vote.")); return; }
  if (!isAsked && shown === `${input.value}/${Math.floor(last.number / 5)}`) return;
  shown = `${input.value}/${Math.floor(last.number / 5)}`;
  let found;
  try { found = await (await fetch(`/api/feed/${input.value}`)).json(); } catch { shown = null; return; }
  isThin = found.entries.length < ENOUGH;
  draw("feed", found, () => found.entries.length ? node("ul", { class: "feed" }, ...found.entries.map((one) => node("li", {},
    node("div", { class: "who" }, node("span", { class: "strong" }, `Member ${one.author}`), node("span", { class: "quiet" }, one.kind === "vote" ? `voted for item ${one.item}` : `wrote about item ${one.item}`), node("time", { datetime: new Date(one.time_ms).toISOString() }, time(one.time_ms))),
    one.text ? node("p", {}, one.text) : null))) : empty(`Nothing for member ${found.member} in the last ten minutes.`));
}
$("feed-form").addEventListener("submit", (event) => { event.preventDefault(); isChosen = true; feed(true); });
$("member").addEventListener("change", () => { isChosen = true; feed(true); });
$("another").addEventListener("click", () => {
  if (!last?.members.length) return;
  isChosen = true;
  const at = last.members.indexOf(Number($("member").value));
  $("member").value = last.members[(at + 1) % last.members.length];
  feed(true);
});

// --- the whole

function show(state) {
  last = state;
  const since = state.generating_since_ms || state.started_ms;
  $("phase").dataset.phase = state.phase;
  $("phase-text").textContent = state.phase;
  $("clock").textContent = clock(state.time_ms - since) + (state.ends_ms > state.time_ms && state.phase === "running" ? ` of ${clock(state.ends_ms - since)}` : "");
  notice(state.waits_for ? `${waitsFor(state)}` : "");
  starting(state.start);
  draw("figures", state.figures, (rows) => rows.map((one) => node("div", { class: "figure", "data-look": one.look || null }, node("dt", {}, one.title), node("dd", {}, one.value), node("p", {}, one.note))));
  for (const one of state.sections) {
    if ($(`h-${one.name}`)) $(`h-${one.name}`).textContent = one.title;
    if ($(`n-${one.name}`)) $(`n-${one.name}`).textContent = one.note;
    if (one.table && $(one.name)) draw(one.name, one, one.name === "alerts" ? list : table);
    if (one.charts.length && one.name !== "latency") lines(one.name, sampled(state, one.charts[0]), styled(one.charts[0]));
  }
  latency(state);
  timeline(state);
  draw("members", state.members, (members) => members.map((member) => node("option", { value: member })));
  const { page, has_metrics, ...facts } = state.facts;
  $("broker-links").hidden = !has_metrics;
  draw("facts", facts, (each) => Object.entries(each).flatMap(([name, value]) => [node("dt", {}, name), node("dd", {}, value)]));
  draw("log", state.lines, (rows) => [...rows].reverse().map((one) => node("li", {}, node("time", {}, time(one.time_ms)), one.text)));
  feed(false);
}

function starting(start) {
  $("start").hidden = !start;
  if (!start) return;
  $("start-bar").value = start.share;
  $("start-time").textContent = start.time_text;
  draw("start-steps", start.steps, (steps) => steps.map((one) => node("li", { "data-state": one.state },
    one.title, one.state === "done" ? ` ${number(one.ended_ms / 1000, 1)} s` : one.note ? ` ${one.note}` : "", node("span", { hidden: "" }, ` (${one.state})`))));
}

function notice(text) {
  $("notice").hidden = !text;
  if ($("notice").textContent !== text) $("notice").textContent = text;
}

$("percentile").addEventListener("change", () => last && latency(last));
new ResizeObserver(() => charts.forEach((redraw) => redraw())).observe($("main"));
$("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches, now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
});

// --- snapshots come as server-sent events; without those, the page polls

let heard = Date.now();
function hear(state) { heard = Date.now(); show(state); }

async function ask() {
  try { hear(await (await fetch("/api/state", { cache: "no-store" })).json()); } catch { /* reported below, when nothing has come for a while */ }
}

let source = null;
function listen() {
  source = new EventSource("/api/events");
  source.onmessage = (event) => hear(JSON.parse(event.data));
}

setInterval(() => {
  const silent = Date.now() - heard;
  if (silent > 3000) ask();
  if (silent > 3000 && source.readyState === EventSource.CLOSED) listen();
  if (silent > 5000) {
    $("phase").dataset.phase = "lost";
    $("phase-text").textContent = last && ["stopping", "stopped"].includes(last.phase) ? "ended" : "not answering";
    notice(last && ["stopping", "stopped"].includes(last.phase) ? "The run has ended. This is its final state." : "No answer from the run; retrying. This is the last known state.");
  }
}, 2000);

ask();
listen();
