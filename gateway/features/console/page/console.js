// Polls the gateway's state and draws it. Counters only grow: what is drawn is the differences between two states.

import { Plot, short } from "./plot.js";
import { Batches } from "./batches.js";
import { Fleet, lost, ready } from "./fleet.js";
import { Keys } from "./keys.js";
import { Playground } from "./playground.js";
import { Requests } from "./requests.js";
import { Spending } from "./spend.js";
import { rows } from "./tables.js";
import { Tabs } from "./tabs.js";
import { Teams } from "./teams.js";

const EVERY_MS = 2000, SPAN_S = 300, LEAST_SPAN_S = 60, RATE_S = 10, QUANTILE_S = 30, LINES = 8;
const STORAGE_KEY = "dragoman.console.key";
const at = (id) => document.getElementById(id);

let key = sessionStorage.getItem(STORAGE_KEY) ?? "";
let who = null; // who has logged in; null with the key, or where nobody has to
let states = [];
let playground = null, spending = null, keys = null, batches = null, teams = null;
let polling = 0;
const fleet = new Fleet(() => keys, headers);
const requests = new Requests(headers, () => keys);
const tabs = new Tabs(watch);

const plots = {
  requests: new Plot(at("plot-requests"), "Requests per second by outcome"),
  tokens: new Plot(at("plot-tokens"), "Prompt and output tokens per second"),
  first: new Plot(at("plot-first"), "Time to first token, median and 95th percentile"),
  workers: new Plot(at("plot-workers"), "Requests in flight by worker"),
};

// What is asked for while its view is shown alone.
function watch(name) {
  const open = !at("main").hidden;
  requests.watch(open && name === "requests");
  fleet.watch(open && name === "fleet");
  if (open && states.length) draw(states[states.length - 1], name);
}

// A session's changes need a header of their own, which pages of other origins cannot send.
function headers(more = {}) {
  const own = { ...more, "x-dragoman-console": "1" };
  return key ? { ...own, authorization: `Bearer ${key}` } : own;
}

async function poll() {
  const mine = ++polling;
  try {
    const reply = await fetch("brief.json", { headers: headers(), cache: "no-store" });
    if (mine !== polling) return;
    if (reply.status === 401) return askForKey(await reply.json());
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    take(await reply.json());
  } catch (error) {
    write("condition", `no answer: ${error.message}`, "pill bad");
  }
  setTimeout(() => (mine === polling ? poll() : null), EVERY_MS);
}

// ways: those in that this console has.
function askForKey(ways) {
  if (who) return location.reload(); // nothing that was shown to somebody stays for the next
  at("login-form").hidden = !ways.login;
  at("login").href = `login?next=${encodeURIComponent(tabs.name)}`;
  at("key-wrong").textContent = key ? "This is not the console's key." : "";
  sessionStorage.removeItem(STORAGE_KEY);
  key = "";
  named();
  at("main").hidden = true;
  watch(tabs.name);
  at("key-form").hidden = !ways.key;
  write("condition", "locked", "pill warn");
  at(ways.key ? "key" : "login").focus();
}

// What the head says of who looks.
function named() {
  const role = who?.changes === false ? "viewer" : who?.teams ? `lead of ${who.teams.join(", ")}` : "admin";
  at("who").textContent = who ? `${who.name}, ${role}` : "";
  at("forget").textContent = who ? "Log out" : "Forget the key";
  at("forget").hidden = !key && !who;
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key = at("key").value.trim();
  at("key").value = "";
  sessionStorage.setItem(STORAGE_KEY, key);
  poll();
});
at("forget").addEventListener("click", async () => {
  if (who) {
    const reply = await fetch("logout", { method: "POST", headers: headers() });
    if (reply.ok) return location.assign((await reply.json()).to);
  }
  sessionStorage.removeItem(STORAGE_KEY);
  key = "";
  states = [];
  playground = null;
  keys?.forget("");
  poll();
});

function take(state) {
  at("key-form").hidden = at("login-form").hidden = true;
  for (const model of state.models) model.workers = model.workers.map(([address, condition, in_flight]) => ({ address, condition, in_flight }));
  state.load = new Map(state.models.flatMap((model) => model.workers.map((one) => [`${model.name} ${one.address}`, one.in_flight])));
  if (states.length && state.uptime_s < states[states.length - 1].uptime_s) states = []; // it was started anew
  states.push(state);
  states = states.filter((one) => one.time > state.time - SPAN_S - RATE_S);
  if (at("main").hidden) {
    at("main").hidden = false;
    watch(tabs.name);
  } else draw(state, tabs.name);
  if (!playground) {
    playground = new Playground(headers);
    offer();
  }
}

// The views that this gateway has.
async function offer() {
  const reply = await fetch("views.json", { headers: headers(), cache: "no-store" });
  if (!reply.ok) return;
  const found = await reply.json();
  who = found.who;
  named();
  fleet.gateways = found.gateways;
  tabs.offer(found);
  if (found.spend) spending ??= new Spending(headers);
  if (found.keys) keys ??= new Keys(headers, found.currency, who);
  if (found.keys) teams ??= new Teams(keys);
  if (found.batches) batches ??= new Batches(keys);
}

function write(id, text, style) {
  at(id).textContent = text;
  if (style) at(id).className = style;
}

const OUTCOMES = ["ok", "refused", "failed", "cancelled"];
const total = (things, part) => things.reduce((sum, one) => sum + part(one), 0);
const finished = (state, outcome) => total(state.models, (model) => model.requests[outcome] ?? 0);

// The state `window` seconds before the one at `index`, or the first one; null at the first.
const before = (index, window) => states.findLast((one, at) => at < index && one.time <= states[index].time - window) ?? (index ? states[0] : null);

// For each state, what happened since the one `window` seconds before, per second; null while there is none.
function rates(count, window = RATE_S) {
  return states.map((state, index) => {
    const then = before(index, window);
    return then ? Math.max(0, count(state) - count(then)) / (state.time - then.time) : null;
  });
}

// The last of them.
function rate(count) {
  const then = before(states.length - 1, RATE_S), now = states[states.length - 1];
  return then ? Math.max(0, count(now) - count(then)) / (now.time - then.time) : null;
}

function buckets(models) {
  const found = models.map((model) => model.first_output).filter(Boolean);
  if (!found.length) return null;
  return { bounds: found[0].bounds_s, counts: found[0].counts.map((_, index) => total(found, (one) => one.counts[index])) };
}

// A quantile of the half minute before the state at `index`, by straight lines within a bucket; null where nothing began.
function quantile(share, index, some = () => true) {
  const then = before(index, QUANTILE_S);
  const now = buckets(states[index].models.filter(some)), old = then ? buckets(then.models.filter(some)) : null;
  if (!now || !then) return null;
  const counts = now.counts.map((count, at) => count - (old?.counts[at] ?? 0));
  const wanted = share * counts.reduce((sum, count) => sum + count, 0);
  let counted = 0;
  for (let at = 0; wanted > 0 && at < counts.length; at++) {
    if (counted + counts[at] >= wanted) {
      const low = at ? now.bounds[at - 1] : 0, high = now.bounds[at] ?? low;
      return low + ((high - low) * (wanted - counted)) / counts[at];
    }
    counted += counts[at];
  }
  return null;
}

const last = (values) => (values.length ? values[values.length - 1] : null);
const busiest = (series) => series.map((one) => [Math.max(...one.values), one]).sort(([one], [other]) => other - one).slice(0, LINES).map(([, one]) => one);
const tokens = (team) => (team ? team.input_tokens + team.output_tokens : 0);
const seconds = (value) => (value === null ? "–" : `${short(value)} s`);

// What the badge says, and how bad that is.
function verdict(state, speed) {
  if (state.draining) return ["draining", "warn"];
  if (state.starting) return [`starting, not read yet: ${state.unread.join(", ")}`, "warn"];
  const without = state.models.filter((model) => !ready(model)).map((model) => model.name);
  if (without.length && without.length === state.models.length) return ["no worker is ready", "bad"];
  const all = speed.ok + speed.refused + speed.failed;
  if (speed.failed > all / 2) return ["most requests fail", "bad"];
  if (without.length) return [without.length > 1 ? `${without.length} models have no worker` : `${without[0]} has no worker`, "warn"];
  if (speed.refused > all / 2) return ["most requests are refused", "warn"];
  const losing = state.models.filter((model) => lost(model));
  if (losing.length > 1) return [`${losing.length} models have lost a worker`, "warn"];
  if (losing.length) return [`${losing[0].name} has lost ${lost(losing[0])} of ${losing[0].workers.length} workers`, "warn"];
  return ["ready", "good"];
}

// The head, and of the views the one that is shown.
function draw(state, name) {
  const limits = state.limits ? `limits ${state.limits.mode}, ${state.limits.replicas} replica${state.limits.replicas === 1 ? "" : "s"}` : "no limits";
  write("about", [state.host, state.version, `up ${duration(state.uptime_s)}`, limits].filter(Boolean).join(" · "));
  at("prompts-logged").hidden = !state.prompts_logged.length;
  at("prompts-logged").title = state.prompts_logged.join(", ");

  const speed = Object.fromEntries(OUTCOMES.map((outcome) => [outcome, rate((one) => finished(one, outcome)) ?? 0]));
  const [words, how] = verdict(state, speed);
  write("condition", words, `pill ${how}`);
  at("condition").title = words;
  DRAWN[name]?.(state, speed);
}

function live(state, speed) {
  const times = states.map((one) => one.time), newest = states.length - 1;
  const span = Math.max(LEAST_SPAN_S, Math.min(SPAN_S, state.time - times[0])); // a page just opened need not look empty
  const outcomes = OUTCOMES.map((name) => ({ name, style: name, values: rates((one) => finished(one, name)) }));
  const output = rates((one) => total(one.models, (model) => model.output_tokens));
  const prompt = rates((one) => total(one.models, (model) => model.input_tokens));
  const [median, late] = [0.5, 0.95].map((share) => states.map((_, index) => quantile(share, index)));
  plots.requests.draw(times, span, outcomes);
  plots.tokens.draw(times, span, [{ name: "output", values: output }, { name: "prompt", values: prompt }]);
  plots.first.draw(times, span, [{ name: "median", values: median }, { name: "95 %", values: late }]);
  const load = [...state.load.keys()].map((worker) => ({ name: worker.replace(/https?:\/\/(?=\S*$)/, ""), values: states.map((one) => one.load.get(worker) ?? null) }));
  plots.workers.draw(times, span, busiest(load));

  const running = Object.values(state.running).reduce((sum, count) => sum + count, 0);
  const up = total(state.models, ready), lacking = state.models.some((model) => !ready(model));
  tiles([
    ["Requests/s", short(Object.values(speed).reduce((sum, one) => sum + one, 0))],
    ["Output tokens/s", short(last(output))],
    ["First token, median", seconds(last(median))],
    ["Under way", short(running)],
    ["Waiting", short(total(state.models, (model) => model.waiting))],
    ["Workers ready", `${up} of ${load.length}`, lacking ? "bad" : up < load.length ? "warn" : "good"],
  ]);

  rows("models", state.models.map((model) => {
    const of = (part) => rate((one) => total(one.models.filter((other) => other.name === model.name), part));
    const outcome = (name) => of((one) => one.requests[name] ?? 0);
    const [refused, failed] = [outcome("refused"), outcome("failed")], up = ready(model);
    return [
      model.name,
      [`${up} of ${model.workers.length}`, !up ? "bad" : up < model.workers.length ? "warn" : "good"],
      total(model.workers, (one) => one.in_flight), model.waiting,
      short(of((one) => total(Object.values(one.requests), (count) => count))),
      [short(refused), refused ? "warn" : ""], [short(failed), failed ? "bad" : ""],
      short(of((one) => one.input_tokens)), short(of((one) => one.output_tokens)),
      seconds(quantile(0.5, newest, (one) => one.name === model.name)),
    ];
  }));
}

function usage(state) {
  rows("teams-table", state.teams.map((one) => [one.name, one.requests, one.input_tokens, one.output_tokens, short(rate((then) => tokens(then.teams.find((team) => team.name === one.name))))]));
  at("teams-none").hidden = state.teams.length > 0;
}

function refusals(state) {
  rows("errors", Object.entries(state.errors).map(([status, count]) => [[status, status >= 400 && status < 500 ? "warn" : "bad"], count]));
  const { refused = {}, shadowed = {} } = state.limits ?? {};
  rows("limits", Object.keys({ ...refused, ...shadowed }).map((name) => [name, [refused[name] ?? 0, refused[name] ? "warn" : ""], shadowed[name] ?? 0]));
}

const DRAWN = { live, teams: usage, requests: refusals, fleet: (state) => fleet.lost(state.models) };

// lines: [name, value, style]
function tiles(lines) {
  at("tiles").replaceChildren(...lines.map(([name, value, style = ""]) => {
    const tile = document.createElement("div"), term = document.createElement("dt"), description = document.createElement("dd");
    term.textContent = term.title = name;
    description.textContent = value;
    description.className = style;
    tile.append(term, description);
    return tile;
  }));
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (days) return `${days} d ${hours % 24} h`;
  if (hours) return `${hours} h ${minutes % 60} min`;
  return minutes ? `${minutes} min` : `${Math.floor(seconds)} s`;
}

poll();
