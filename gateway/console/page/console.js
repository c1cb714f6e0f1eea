// Polls the gateway's state and draws it. Counters only grow: what is drawn is the differences between two states.

import { Plot, short } from "./plot.js";
import { Playground } from "./playground.js";

const EVERY_MS = 2000, SPAN_S = 300, LEAST_SPAN_S = 60, RATE_S = 10, QUANTILE_S = 30, LINES = 8, ROWS = 200;
const KEPT = "dragoman.console.key";
const at = (id) => document.getElementById(id);

let key = sessionStorage.getItem(KEPT) ?? "";
let states = [];
let playground = null;
let polling = 0;

const plots = {
  requests: new Plot(at("plot-requests"), "Requests per second by outcome"),
  tokens: new Plot(at("plot-tokens"), "Prompt and output tokens per second"),
  first: new Plot(at("plot-first"), "Time to first token, median and 95th percentile"),
  workers: new Plot(at("plot-workers"), "Requests in flight by worker"),
  teams: new Plot(at("plot-teams"), "Tokens per second by team"),
};

function headers(more = {}) {
  return key ? { ...more, authorization: `Bearer ${key}` } : more;
}

async function poll() {
  const mine = ++polling;
  try {
    const reply = await fetch("status.json", { headers: headers(), cache: "no-store" });
    if (mine !== polling) return;
    if (reply.status === 401) return askForKey();
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    take(await reply.json());
  } catch (error) {
    tell("condition", `no answer: ${error.message}`, "pill bad");
  }
  setTimeout(() => (mine === polling ? poll() : null), EVERY_MS);
}

function askForKey() {
  at("key-wrong").textContent = key ? "This is not the console's key." : "";
  sessionStorage.removeItem(KEPT);
  key = "";
  at("main").hidden = true;
  at("forget").hidden = true;
  at("key-form").hidden = false;
  tell("condition", "locked", "pill warn");
  at("key").focus();
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  at("key").value = "";
  sessionStorage.setItem(KEPT, key);
  poll();
});
at("forget").addEventListener("click", () => { key = ""; states = []; playground = null; askForKey(); });

function take(state) {
  at("key-form").hidden = true;
  at("main").hidden = false;
  at("forget").hidden = !key;
  if (states.length && state.uptime_s < states[states.length - 1].uptime_s) states = []; // it was started anew
  states.push(state);
  states = states.filter((one) => one.time > state.time - SPAN_S - RATE_S);
  draw(state);
  if (!playground) playground = new Playground(headers);
}

function tell(id, text, style) {
  at(id).textContent = text;
  if (style) at(id).className = style;
}

const total = (things, part) => things.reduce((sum, one) => sum + part(one), 0);
const finished = (state, outcome) => total(state.models, (model) => model.requests[outcome] ?? 0);

// For each state, what happened since the one `window` seconds before, per second; null while there is none.
function rates(count, window = RATE_S) {
  return states.map((state, number) => {
    const before = states.findLast((one, place) => place < number && one.time <= state.time - window) ?? (number ? states[0] : null);
    return before ? Math.max(0, count(state) - count(before)) / (state.time - before.time) : null;
  });
}

function buckets(state) {
  const found = state.models.map((model) => model.first_output).filter(Boolean);
  if (!found.length) return null;
  return { bounds: found[0].bounds_s, counts: found[0].counts.map((_, place) => total(found, (one) => one.counts[place])) };
}

// The quantiles of the last half minute, by straight lines within a bucket; null where nothing began.
function quantiles(share) {
  return states.map((state, number) => {
    const now = buckets(state);
    if (!now || !number) return null;
    const earlier = states.findLast((one, place) => place < number && one.time <= state.time - QUANTILE_S) ?? states[0];
    const before = buckets(earlier);
    const counts = now.counts.map((count, place) => count - (before?.counts[place] ?? 0));
    const wanted = share * counts.reduce((sum, count) => sum + count, 0);
    let seen = 0;
    for (let place = 0; wanted > 0 && place < counts.length; place++) {
      if (seen + counts[place] >= wanted) {
        const low = place ? now.bounds[place - 1] : 0, high = now.bounds[place] ?? low;
        return low + ((high - low) * (wanted - seen)) / counts[place];
      }
      seen += counts[place];
    }
    return null;
  });
}

const last = (values) => (values.length ? values[values.length - 1] : null);
const busiest = (series) => series.sort((one, other) => Math.max(...other.values) - Math.max(...one.values)).slice(0, LINES);
const tokens = (team) => team.input_tokens + team.output_tokens;

function draw(state) {
  const condition = state.draining ? "draining" : state.ready ? "ready" : "no worker is ready";
  tell("condition", condition, `pill ${state.draining ? "warn" : state.ready ? "good" : "bad"}`);
  const limits = state.limits ? `limits ${state.limits.mode}, ${state.limits.replicas} replica${state.limits.replicas === 1 ? "" : "s"}` : "no limits";
  tell("about", `${state.version} · up ${duration(state.uptime_s)} · ${limits}`);

  const times = states.map((one) => one.time);
  const span = Math.max(LEAST_SPAN_S, Math.min(SPAN_S, state.time - times[0])); // a page just opened need not look empty
  const outcomes = ["ok", "refused", "failed", "cancelled"].map((name) => ({ name, values: rates((one) => finished(one, name)) }));
  const output = rates((one) => total(one.models, (model) => model.output_tokens));
  const prompt = rates((one) => total(one.models, (model) => model.input_tokens));
  const median = quantiles(0.5), late = quantiles(0.95);
  plots.requests.draw(times, span, outcomes);
  plots.tokens.draw(times, span, [{ name: "output", values: output }, { name: "prompt", values: prompt }]);
  plots.first.draw(times, span, [{ name: "median", values: median }, { name: "95 %", values: late }]);
  const places = state.models.flatMap((model) => model.workers.map((worker) => [model.name, worker.address]));
  const load = places.map(([name, address]) => ({
    name: `${name} ${address.replace(/^https?:\/\//, "")}`,
    values: states.map((one) => one.models.find((model) => model.name === name)?.workers.find((worker) => worker.address === address)?.in_flight ?? null),
  }));
  plots.workers.draw(times, span, busiest(load));
  const teams = state.teams.map(({ name }) => ({
    name,
    values: rates((one) => tokens(one.teams.find((team) => team.name === name) ?? { input_tokens: 0, output_tokens: 0 })),
  }));
  plots.teams.draw(times, span, busiest(teams));

  const perSecond = outcomes.reduce((sum, one) => sum + (last(one.values) ?? 0), 0);
  const running = Object.values(state.running).reduce((sum, count) => sum + count, 0);
  tiles([
    ["Requests a second", short(perSecond)],
    ["Output tokens a second", short(last(output))],
    ["First token, median", last(median) === null ? "–" : `${short(last(median))} s`],
    ["Under way", short(running)],
    ["Waiting", short(total(state.models, (model) => model.waiting))],
    ["Workers ready", `${total(state.models, (model) => model.workers.filter((one) => one.condition === "ready").length)} of ${places.length}`],
  ]);
  rows("workers", state.models.flatMap((model) => model.workers.map((one) => [model.name, one.address, one.condition, one.in_flight, one.max_in_flight ?? "–"])), 3);
  rows("teams", state.teams.map((one) => [one.name, one.requests, one.input_tokens, one.output_tokens]), 1);
}

function tiles(pairs) {
  at("tiles").replaceChildren(...pairs.map(([name, value]) => {
    const tile = document.createElement("div"), term = document.createElement("dt"), said = document.createElement("dd");
    term.textContent = name;
    said.textContent = value;
    tile.append(term, said);
    return tile;
  }));
}

// numbers: the first column that holds numbers
function rows(id, lines, numbers) {
  const shown = lines.slice(0, ROWS).map((cells) => {
    const row = document.createElement("tr");
    cells.forEach((cell, column) => {
      const made = row.insertCell();
      made.textContent = cell;
      if (column >= numbers) made.className = "number";
      if (cell === "ready") made.className = "good";
      if (cell === "down" || cell === "ejected") made.className = "bad";
    });
    return row;
  });
  if (lines.length > ROWS) {
    const row = document.createElement("tr");
    row.insertCell().textContent = `and ${lines.length - ROWS} more`;
    shown.push(row);
  }
  at(id).tBodies[0].replaceChildren(...shown);
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

poll();
