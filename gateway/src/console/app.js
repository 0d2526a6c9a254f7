// The console: three views over a few JSON pages. Reads only.
import { ago, bar, h, plot, spark } from "/console/plots.js";

const $ = (id) => document.getElementById(id);
const KEPT = 60;
/** What was seen of each worker: output tokens and times, for rates. */
const seen = new Map();
let state = null, tenantAsked = null, picked = null, replayTimer = 0, runsPage = null;

async function get(path, options) {
  const answer = await fetch(path, { cache: "no-store", ...options });
  const text = await answer.text();
  let body = null;
  try { body = JSON.parse(text); } catch { /* said below */ }
  if (!answer.ok) throw new Error(body?.error?.message ?? text.trim() ?? answer.statusText);
  return body;
}
/** A page that only some processes have. */
const maybe = (path) => get(path).catch(() => null);

const number = (value) => value >= 1e6 ? `${(value / 1e6).toFixed(2)} M` : value >= 1e4 ? `${(value / 1e3).toFixed(1)} k` : `${value}`;
const millis = (ms) => ms === null || ms === undefined ? "–" : ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
const percent = (part, whole) => whole > 0 ? `${(100 * part / whole).toFixed(part > 0 && part / whole < 0.1 ? 1 : 0)} %` : "–";
const key = (...entries) => h("p", { class: "key" }, entries.map(([kind, text]) => h("span", {}, h("i", { class: kind }), text)));
const sum = (all, of) => all.reduce((total, one) => total + of(one), 0);

function note(worker, atMs) {
  const all = seen.get(worker.name) ?? [];
  const last = all.at(-1);
  if (!last || atMs > last.atMs) all.push({ atMs, tokens: worker.outputTokens, used: used(worker) });
  while (all.length > KEPT) all.shift();
  seen.set(worker.name, all);
}
function rates(name) {
  const all = seen.get(name) ?? [];
  return all.slice(1).map((one, i) => Math.max(0, 1000 * (one.tokens - all[i].tokens) / Math.max(one.atMs - all[i].atMs, 1)));
}
const used = ({ blocks }) => blocks.total - blocks.free - blocks.cached;
const queued = (queue) => queue.interactive + queue.standard + queue.batch;

function figures() {
  // One look makes no rate.
  const isKnown = state.workers.some((worker) => rates(worker.name).length > 0);
  const rate = sum(state.workers, (worker) => rates(worker.name).at(-1) ?? 0);
  const blocks = sum(state.workers, (worker) => worker.blocks.total);
  const up = state.workers.filter((worker) => worker.connected).length;
  const one = (name, value, more) => h("div", {}, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, ` ${more}`) : null));
  $("figures").replaceChildren(
    one("Live runs", number(state.liveRuns)),
    one("Waiting", number(sum(state.queues, queued))),
    one("Workers", `${up}`, `of ${state.workers.length}`),
    one("KV in use", percent(sum(state.workers, used), blocks)),
    one("Output", isKnown ? number(Math.round(rate)) : "–", "tokens/s"),
    one("Open streams", number(state.openStreams)),
  );
  $("where").textContent = `${state.version} · ${state.replica}${state.draining ? " · draining" : ""}`;
}

function workerState(worker) {
  if (!worker.connected) return h("span", { class: "tag bad" }, "no session");
  if (worker.stalled) return h("span", { class: "tag bad" }, "stalled");
  if (worker.draining) return h("span", { class: "tag warn" }, "draining");
  return h("span", { class: "tag good" }, "serving");
}

function pools() {
  const names = [...new Set([...state.workers, ...state.queues].map((one) => one.pool))].sort();
  if (names.length === 0) return h("p", { class: "card empty" }, "No pool has a worker yet.");
  return names.map((name) => {
    const workers = state.workers.filter((worker) => worker.pool === name);
    const queues = state.queues.filter((queue) => queue.pool === name)
      .sort((one, two) => one.model.localeCompare(two.model) || one.version - two.version);
    const up = workers.filter((worker) => worker.connected).length;
    return h("article", { class: "card" },
      h("header", {}, h("h2", {}, name),
        h("span", { class: up === workers.length ? "tag good" : "tag bad" }, `${up} of ${workers.length} workers`),
        h("span", { class: "muted" }, `${number(sum(queues, queued))} runs wait`)),
      h("div", { class: "scroll" }, h("table", {},
        h("caption", {}, "Workers"),
        h("thead", {}, h("tr", {}, ["Worker", "State", "Serves"].map((text) => h("th", { scope: "col" }, text)), h("th", { scope: "col" }, "KV blocks"),
          ["Running", "Cached prompt", "Step"].map((text) => h("th", { scope: "col", class: "n" }, text)), h("th", { scope: "col" }, "Output tokens/s"))),
        h("tbody", {}, workers.map((worker) => {
          const { total, cached } = worker.blocks, full = used(worker), last = rates(worker.name);
          return h("tr", {},
            h("td", { class: "mono" }, worker.name),
            h("td", {}, workerState(worker)),
            h("td", {}, worker.serves.map((one) => `${one.model}@${one.version}`).join(", ") || "–"),
            h("td", {}, h("div", { class: "pair" }, bar([["b-used", full], ["b-cached", cached]], total, `${full} of ${total} blocks in use, ${cached} cached`), percent(full, total))),
            h("td", { class: "n" }, `${worker.running} of ${worker.seats}`),
            h("td", { class: "n" }, percent(worker.cachedTokens, worker.promptTokens)),
            h("td", { class: "n" }, worker.stepMicros ? `${(worker.stepMicros / 1000).toFixed(2)} ms` : "–"),
            h("td", {}, last.length === 0 ? "–" : h("div", { class: "pair" }, spark(last, `output tokens per second, last ${Math.round(last.at(-1))}`), number(Math.round(last.at(-1))))));
        })))),
      key(["b-used", "in use"], ["b-cached", "cached prefixes, free when needed"]),
      queues.length === 0 ? null : h("div", { class: "scroll" }, h("table", {},
        h("caption", {}, "Queues"),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Version"), h("th", { scope: "col" }, "Waiting"),
          ["Interactive", "Standard", "Batch"].map((text) => h("th", { scope: "col", class: "n" }, text)))),
        h("tbody", {}, queues.map((queue) => h("tr", {},
          h("td", {}, `${queue.model}@${queue.version}`),
          h("td", {}, bar([["b-q1", queue.interactive], ["b-q2", queue.standard], ["b-q3", queue.batch]], Math.max(20, queued(queue)), `${queued(queue)} runs wait`)),
          [queue.interactive, queue.standard, queue.batch].map((depth) => h("td", { class: "n" }, number(depth)))))))),
      queues.length === 0 ? null : key(["b-q1", "interactive"], ["b-q2", "standard"], ["b-q3", "batch"]));
  });
}

const conditionOf = (object, type) => object?.status?.conditions?.find((condition) => condition.type === type);

async function rollouts() {
  const [course, objects] = await Promise.all([maybe("/console/rollouts"), maybe("/objects")]);
  if (state.models.length === 0) return [h("p", { class: "card empty" }, "No model is served yet.")];
  return state.models.map((model) => {
    const shares = [...model.versions].sort((one, two) => two.isStable - one.isStable || one.version - two.version);
    const label = shares.map((one) => `version ${one.version} ${one.weightPercent} %`).join(", ");
    const points = course?.[model.name] ?? [];
    return h("article", { class: "card" },
      h("header", {}, h("h2", {}, model.name),
        model.attempt ? h("span", { class: "tag info" }, `attempt ${model.attempt}, step ${model.step}`) : h("span", { class: "tag" }, "no rollout runs"),
        h("span", { class: "muted" }, `${model.versions.length} versions`)),
      h("div", { class: "body" },
        bar(shares.map((one) => [one.isStable ? "b-stable" : "b-canary", one.weightPercent, `v${one.version} · ${one.weightPercent} %`]), 100, `share of new runs: ${label}`, true),
        objects ? said(objects, model.name) : null,
        points.length > 0 ? guardrails(points) : h("p", { class: "note" }, "Evidence is judged by the operator; see kubectl weir rollout status.")));
  });
}

function said(objects, model) {
  const versions = objects.filter((object) => object.kind === "ModelVersion" && object.spec.model === model);
  return versions.flatMap((object) => ["Progressing", "RolledBack"].map((type) => {
    const condition = conditionOf(object, type);
    if (!condition) return null;
    const isBad = type === "RolledBack" && condition.status === "True";
    return h("p", { class: isBad ? "note bad" : "note" }, h("strong", {}, `Version ${object.spec.version} ${condition.reason}: `), condition.message);
  }));
}

function guardrails(points) {
  const now = state.atMs, newest = points.at(-1).versions;
  const attempted = newest.find((one) => one.isAttempted) ?? null;
  const numbers = [...new Set(points.flatMap((point) => point.versions.map((one) => one.version)))].sort((one, two) => one - two).slice(-3);
  // The version on trial, else the newest, stands out.
  const canary = attempted?.version ?? numbers.at(-1);
  const series = (of) => numbers.map((version) => ({
    kind: version === canary ? "canary" : "stable",
    name: `v${version}`,
    points: points.map((point) => {
      const one = point.versions.find((other) => other.version === version);
      return [point.atMs, one ? of(one) : null];
    }),
  }));
  const boundary = [...points].reverse().flatMap((point) => point.versions).find((one) => one.boundary !== null)?.boundary;
  return h("div", { class: "plots" },
    plot({ title: "Share of new runs", unit: " %", series: series((one) => one.weightPercent), most: 100, now }),
    plot({ title: "Error rate", unit: " %", series: series((one) => one.settled > 0 ? 100 * one.failed / one.settled : null), least: 1, now }),
    plot({ title: "First token, p95", unit: " ms", series: series((one) => one.ttftP95Ms), least: 10, now }),
    plot({ title: "Evidence against (ln E)", unit: "", series: series((one) => one.logEvidence).filter((one) => one.kind === "canary"), limit: boundary, least: 5, now }));
}

const STATUS = { completed: "good", failed: "bad", interrupted: "bad", expired: "warn", cancelled: "warn" };

function lane(run) {
  const end = run.finishedAtMs ?? state.atMs;
  const started = run.startedAtMs ?? end, first = run.firstTokenAtMs ?? end;
  const parts = [["b-wait", started - run.createdAtMs], ["b-first", Math.max(0, first - started)], ["b-rest", Math.max(0, end - first)]];
  return bar(parts, Math.max(end - run.createdAtMs, 1), `waited ${millis(started - run.createdAtMs)}, first token after ${millis(first - run.createdAtMs)}, ended after ${millis(end - run.createdAtMs)}`);
}

async function runs() {
  const tenant = tenantAsked ?? state.tenants[0];
  if (!tenant) return [h("p", { class: "card empty" }, "No tenant has a quota yet.")];
  const seconds = Number(sessionStorage.getItem("seconds") ?? 3600);
  const [page, usage] = await Promise.all([
    get(`/console/runs?tenant=${encodeURIComponent(tenant)}&seconds=${seconds}`),
    maybe(`/usage?tenant=${encodeURIComponent(tenant)}`),
  ]);
  runsPage = page;
  const choose = (event) => { tenantAsked = event.target.value; picked = null; show(); };
  const windows = [[600, "10 minutes"], [3600, "hour"], [86400, "day"], [604800, "week"]];
  return [
    h("form", { class: "ask", onsubmit: (event) => event.preventDefault() },
      h("label", {}, "Tenant", h("select", { id: "tenant", onchange: choose }, state.tenants.map((name) => h("option", { value: name, selected: name === tenant }, name)))),
      h("label", {}, "Accepted in the last", h("select", { onchange: (event) => { sessionStorage.setItem("seconds", event.target.value); show(); } },
        windows.map(([value, text]) => h("option", { value, selected: value === seconds }, text))))),
    usage?.windows?.length ? h("div", { class: "card" }, h("div", { class: "body budgets" }, usage.windows.flatMap(budget))) : null,
    h("div", { class: "split" },
      h("div", { class: "card" }, page.runs.length === 0 ? h("p", { class: "empty" }, "No run was accepted in this time.") : runTable(page, tenant)),
      h("aside", { class: "card", id: "detail", "aria-label": "The run that was chosen" }, h("p", { class: "empty" }, "Choose a run to see its events."))),
  ];
}

function budget(window) {
  return [["tokens", "Tokens"], ["cost", "Micros"]].map(([unit, field]) => {
    const limit = window[`limit${field}`], used = window[`used${field}`], reserved = window[`reserved${field}`];
    if (limit === null || limit === undefined) return null;
    const text = `${number(used)} used, ${number(reserved)} reserved of ${number(limit)}`;
    return h("div", {}, h("p", {}, h("strong", {}, `${unit} per ${window.period}`), h("span", { class: "muted" }, text)),
      bar([["b-used", used], ["b-cached", reserved]], limit, text));
  });
}

function runTable(page, tenant) {
  return [h("div", { class: "scroll" }, h("table", {},
    h("caption", {}, `${page.runs.length} newest runs of ${tenant}`),
    h("thead", {}, h("tr", {}, ["Run", "Version", "Status"].map((text) => h("th", { scope: "col" }, text)),
      ["Prompt", "Output", "First token"].map((text) => h("th", { scope: "col", class: "n" }, text)), h("th", { scope: "col" }, "Time"), h("th", { scope: "col", class: "n" }, "Accepted"))),
    h("tbody", {}, page.runs.map((run) => h("tr", { class: "pick", "aria-selected": picked === run.runId, "data-run": run.runId, onclick: () => choose(run.runId, tenant) },
      h("td", {}, h("button", { class: "link", type: "button", title: run.runId, "aria-label": `show ${run.runId}` }, `…${run.runId.slice(-8)}`)),
      h("td", {}, `${run.model}@${run.version}`),
      h("td", {}, h("span", { class: `tag ${STATUS[run.status] ?? "info"}` }, run.status)),
      h("td", { class: "n" }, number(run.promptTokens)), h("td", { class: "n" }, number(run.outputTokens)),
      h("td", { class: "n" }, run.firstTokenAtMs ? millis(run.firstTokenAtMs - run.createdAtMs) : "–"),
      h("td", {}, lane(run)),
      h("td", { class: "n muted" }, ago(state.atMs - run.createdAtMs))))))),
  key(["b-wait", "waits"], ["b-first", "reads the prompt"], ["b-rest", "writes"])];
}

async function choose(id, tenant, apiKey) {
  picked = id;
  // A view that is being drawn knows nothing of the choice, and would cover it.
  drawing += 1;
  clearInterval(replayTimer);
  for (const row of document.querySelectorAll("tr.pick")) row.setAttribute("aria-selected", String(row.dataset.run === id));
  const headers = apiKey ? { authorization: `Bearer ${apiKey}` } : {};
  let story;
  try {
    story = await get(`/console/events?tenant=${encodeURIComponent(tenant)}&run=${encodeURIComponent(id)}`, { headers });
  } catch (error) {
    $("detail").replaceChildren(h("p", { class: "empty", role: "alert" }, error.message));
    return;
  }
  $("detail").replaceChildren(...detail(story, tenant));
}

function detail({ run, events, hasText, isCut }, tenant) {
  const facts = [["Run", run.runId], ["Version", `${run.model}@${run.version} on ${run.worker ?? run.pool}`], ["Status", `${run.status}${run.finishReason ? `, ${run.finishReason}` : ""}`],
    ["Tokens", `${run.promptTokens} prompt (${run.cachedTokens} cached), ${run.outputTokens} output`], ["Cost", run.costMicros === null ? "not settled" : `${number(run.costMicros)} micros`]];
  const said = h("div", { class: "said", id: "said", tabindex: "0", role: "region", "aria-label": "Output up to this event" });
  const log = h("ol", { class: "log", tabindex: "0", "aria-label": "Events" });
  const place = h("input", { type: "range", min: 0, max: events.length, value: events.length, "aria-label": "Event" });
  const play = h("button", { class: "main", type: "button" }, "Replay");
  const draw = () => {
    const until = events.slice(0, Number(place.value));
    said.textContent = until.filter((event) => event.kind === "delta" && !event.data.choice)
      .map((event) => hasText ? event.data.text : "▪".repeat(event.data.textChars ?? 0)).join("") || "no output yet";
    log.replaceChildren(...until.slice(-60).reverse().map((event) => h("li", {}, h("span", { class: "muted" }, `${event.sequence}`), h("span", {}, event.kind), h("span", { class: "muted" }, about(event, hasText)))));
  };
  const stop = () => { clearInterval(replayTimer); replayTimer = 0; play.textContent = "Replay"; };
  play.addEventListener("click", () => {
    if (replayTimer) return stop();
    if (Number(place.value) >= events.length) place.value = 0;
    play.textContent = "Pause";
    const many = Math.max(1, Math.round(events.length / 240));
    replayTimer = setInterval(() => { place.value = Number(place.value) + many; draw(); if (Number(place.value) >= events.length) stop(); }, 25);
  });
  place.addEventListener("input", () => { stop(); draw(); });
  draw();
  const ask = h("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); choose(run.runId, tenant, event.target.elements.key.value); } },
    h("label", {}, `A key of ${tenant} shows the text`, h("input", { name: "key", type: "password", autocomplete: "off", required: true })), h("button", { type: "submit" }, "Show text"));
  return [h("header", {}, h("h2", {}, "Run"), h("span", { class: `tag ${STATUS[run.status] ?? "info"}` }, run.status), h("span", { class: "muted" }, `${events.length}${isCut ? " first" : ""} events`)),
    h("div", { class: "body" },
      h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", { class: name === "Run" ? "mono" : undefined }, value)])),
      h("div", { class: "replay" }, hasText ? null : ask,
        events.length === 0 ? h("p", { class: "muted" }, "Its events are no longer kept.") : [h("div", { class: "controls" }, play, place), said, log]))];
}

function about(event, hasText) {
  const { data } = event;
  if (event.kind === "delta") return hasText ? JSON.stringify(data.text) : `${data.textChars ?? 0} characters, ${data.tokens} token${data.tokens === 1 ? "" : "s"}`;
  if (event.kind === "started") return `waited ${data.queueMs} ms`;
  if (event.kind === "accepted") return `version ${data.modelVersion}, ${data.reservedTokens} tokens reserved`;
  return data.usage ? `${data.usage.outputTokens} tokens, ${data.usage.costMicros} micros` : data.status ?? "";
}

const VIEWS = { "#/pools": ["Pools", pools], "#/rollouts": ["Rollouts", rollouts], "#/runs": ["Runs", runs] };
let drawing = 0;

async function show() {
  const here = VIEWS[location.hash] ? location.hash : "#/pools";
  const [title, view] = VIEWS[here];
  document.title = `${title} · Weir console`;
  for (const link of document.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.hash === here);
  for (const link of document.querySelectorAll("nav a[aria-current]")) link.setAttribute("aria-current", "page");
  if (!state) return;
  const turn = ++drawing;
  let parts;
  try {
    parts = await view();
  } catch (error) {
    parts = h("p", { class: "card empty", role: "alert" }, error.message);
  }
  // A slower answer must not cover a newer one.
  if (turn === drawing) $("view").replaceChildren(...[parts].flat().filter(Boolean));
}

async function look() {
  try {
    state = await get("/console/state");
    for (const worker of state.workers) note(worker, state.atMs);
    figures();
    $("pulse").className = "pulse live";
    $("pulse-text").textContent = "live";
    // Whoever reads a run is not interrupted.
    if (location.hash !== "#/runs" || (picked === null && !$("view").contains(document.activeElement)) || runsPage === null) await show();
  } catch (error) {
    $("pulse").className = "pulse lost";
    $("pulse-text").textContent = `no answer: ${error.message}`;
  }
  setTimeout(look, document.hidden ? 10_000 : 2_000);
}

addEventListener("hashchange", () => { picked = null; clearInterval(replayTimer); show(); });
look();
