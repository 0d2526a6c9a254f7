// Elements and plots. Text only ever goes in as text: nothing that a tenant or a model wrote can become markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width%") element.style.width = `${value}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Parts of a whole, each `[class, value, label?]`; `whole` may be more than their sum. */
export function bar(parts, whole, label, tall = false) {
  const total = Math.max(whole, 1e-9);
  return h("div", { class: tall ? "bar tall" : "bar", role: "img", "aria-label": label, title: label },
    parts.map(([kind, value, text]) => value > 0 ? h("i", { class: kind, "width%": (100 * value / total).toFixed(3) }, text ?? "") : null));
}

/** A line without axes, for the last values of something. */
export function spark(values, label) {
  const width = 96, height = 22, top = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const line = values.map((value, i) => `${i ? "L" : "M"}${(i * step).toFixed(1)} ${(height - 2 - (height - 4) * value / top).toFixed(1)}`).join("");
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, s("path", { d: line || "M0 0" }));
}

function ceiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((edge) => edge >= value * 1.0001) ?? 10 * power;
}

const FRAME = { width: 320, height: 150, left: 36, right: 8, top: 8, bottom: 18 };

/**
 * A plot over time. `series`: `{kind, name, points: [[atMs, value|null]]}`; `limit`: a dashed line; `least`: the smallest top of the scale.
 */
export function plot({ title, unit, series, limit, least = 0, most, now }) {
  const { width, height, left, right, top, bottom } = FRAME;
  const all = series.flatMap((one) => one.points);
  const values = all.map(([, value]) => value).filter((value) => value !== null);
  const from = Math.min(...all.map(([at]) => at), now - 60_000);
  const lowest = Math.min(0, ...values);
  const low = lowest < 0 ? -ceiling(-lowest) : 0;
  const high = most ?? ceiling(Math.max(least, ...values, limit === undefined || limit === null ? 0 : limit * 1.15));
  const x = (at) => left + (width - left - right) * (at - from) / Math.max(now - from, 1);
  const y = (value) => height - bottom - (height - top - bottom) * (value - low) / Math.max(high - low, 1e-9);
  const number = (value) => Math.abs(value) >= 100 || Number.isInteger(value) ? `${Math.round(value)}` : value.toPrecision(2);
  const parts = [low, low + (high - low) / 2, high].flatMap((value) => [
    s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    s("text", { x: left - 5, y: y(value) + 3, "text-anchor": "end" }, number(value)),
  ]);
  parts.push(s("text", { x: left, y: height - 4 }, ago(now - from)), s("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "now"));
  if (limit !== undefined && limit !== null) parts.push(s("line", { class: "limit", x1: left, x2: width - right, y1: y(limit), y2: y(limit) }));
  const said = [], legend = [];
  for (const one of series) {
    let line = "", pen = "M", last = null;
    for (const [at, value] of one.points) {
      if (value === null) { pen = "M"; continue; }
      line += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = "L";
      last = [at, value];
    }
    if (last === null) continue;
    // What was last measured holds until now.
    if (one.points.at(-1)[1] !== null) line += `L${x(now).toFixed(1)} ${y(last[1]).toFixed(1)}`;
    parts.push(s("path", { class: `s-${one.kind}`, d: line }), s("circle", { class: `s-${one.kind}`, cx: x(now).toFixed(1), cy: y(last[1]).toFixed(1), r: 2.6 }));
    said.push(`${one.name} ${number(last[1])}${unit}`);
    legend.push(h("span", { class: `l-${one.kind}` }, `${one.name} ${number(last[1])}${unit}`));
  }
  if (limit !== undefined && limit !== null) {
    said.push(`limit ${number(limit)}${unit}`);
    legend.push(h("span", { class: "l-limit" }, `limit ${number(limit)}${unit}`));
  }
  const text = said.join(", ") || "no data yet";
  return h("figure", {},
    h("figcaption", {}, h("strong", {}, title), h("span", { class: "legend" }, legend.length > 0 ? legend : text)),
    s("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${title}: ${text}` }, ...parts));
}

export function ago(ms) {
  const seconds = Math.round(ms / 1000);
  return seconds < 90 ? `${seconds} s ago` : seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : `${(seconds / 3600).toFixed(1)} h ago`;
}
