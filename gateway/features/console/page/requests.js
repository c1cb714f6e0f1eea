// Requests under way, the last that have ended, and what was refused. Asked for while the view is shown alone.

import { bare } from "./fleet.js";
import { PAGE, returned, rows } from "./tables.js";

const EVERY_MS = 2000, MOST = 500;
const at = (id) => document.getElementById(id);
const count = (value) => value?.toLocaleString("en") ?? "–";
const STYLES = { ok: "good", refused: "warn", failed: "bad", cancelled: "" };
const STAGES = { reading: "being read", queued: "waits for a worker", first_output: "waits for output", streaming: "streaming" };

function took(ms) {
  if (ms === undefined || ms === null) return "–";
  return ms < 1000 ? `${Math.round(ms)} ms` : ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${(ms / 60_000).toFixed(1)} min`;
}

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

// Why it was refused or has failed, and what became of it on its way.
function why(one) {
  const found = [one.limit ? `limit ${one.limit}` : one.code, ...(one.reasons ?? [])];
  if (one.asked) found.push(`asked for ${one.asked}`);
  for (const name of ["moved", "continued"]) if (one[name]) found.push(`${name}: ${one[name].join(", ")}`);
  if (one.not_continued) found.push(`not continued: ${one.not_continued}`);
  return found.filter(Boolean).join("; ") || "–";
}

const tokens = (one) => `${count(one.input_tokens)} / ${count(one.output_tokens)}`;

export class Requests {
  // headers: () => those that the console needs; keys: () => the view of keys, by which an admin ends a request, or null
  constructor(headers, keys) {
    this.headers = headers;
    this.keys = keys;
    this.asked = 0;
    this.opened = null; // the id and the begin of the request whose details are open
    this.limit = PAGE; // rows of each kind that are asked for
    at("requests-filter").onsubmit = (event) => { event.preventDefault(); this.limit = PAGE; this.load(); };
    at("requests-more").onclick = () => { this.limit += PAGE; this.load(); };
    at("request-end").onclick = () => this.end();
    at("request-close").onclick = () => this.close();
  }

  // shown: whether the view is looked at
  watch(shown) {
    this.asked++;
    this.limit = PAGE;
    if (shown) this.load();
  }

  async load() {
    const mine = ++this.asked;
    try {
      const query = new URLSearchParams({ match: at("requests-match").value.trim(), limit: this.limit });
      const reply = await fetch(`requests.json?${query}`, { headers: this.headers(), cache: "no-store" });
      const found = await reply.json();
      if (mine !== this.asked) return;
      if (!reply.ok) throw new Error(found.error);
      this.draw(found);
      at("requests-wrong").textContent = "";
    } catch (error) {
      if (mine === this.asked) at("requests-wrong").textContent = error.message;
    }
    setTimeout(() => (mine === this.asked ? this.load() : null), EVERY_MS);
  }

  draw({ under_way, ended, refusals, others, older }) {
    rows("under-way", under_way.map((one) => [
      this.button(one), one.key || "–", one.dialect, one.model || "–", bare(one.worker), STAGES[one.stage], clock(one.began), took(one.duration_ms),
      took(one.time_to_first_token_ms), count(one.output_tokens),
    ]), others, MOST);
    rows("ended", ended.map((one) => [
      this.button(one), one.key || "–", one.dialect, one.model || "–", bare(one.worker), [`${one.outcome} ${one.status || ""}`, STYLES[one.outcome]],
      clock(one.began), took(one.duration_ms), took(one.time_to_first_token_ms), tokens(one), why(one),
    ]), older, MOST);
    at("requests-more").hidden = this.limit >= MOST || (under_way.length < this.limit && ended.length < this.limit);
    rows("refusals", refusals.map((one) => [one.key || "–", one.team ?? "–", one.limit, [count(one.requests), "warn"]]));
    at("requests-none").textContent = under_way.length || ended.length ? "" : at("requests-match").value.trim() ? "No request here matches." : "No request is under way, and none has ended since the start.";
    at("refused-none").hidden = refusals.length > 0;
    const { id, began } = this.opened ?? {};
    const now = [...under_way, ...ended].find((one) => one.id === id && one.began === began);
    if (now) this.show(now);
  }

  button(one) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "id";
    button.textContent = button.title = one.id;
    button.dataset.row = `${one.id} ${one.began}`;
    button.onclick = () => { this.ask(false); this.show(one); at("request-card").scrollIntoView({ block: "nearest" }); at("request-title").focus({ preventScroll: true }); };
    return button;
  }

  show(one) {
    this.opened = one;
    const running = Boolean(one.stage), keys = this.keys();
    at("request-title").textContent = one.id;
    at("request-facts").textContent = JSON.stringify({ ...one, began: new Date(one.began * 1000).toISOString() }, null, 2);
    at("request-end").hidden = !running || !keys?.changes;
    at("request-locked").hidden = !running || !keys?.locked;
    at("request-card").hidden = false;
  }

  close() {
    const { id, began } = this.opened;
    this.opened = null;
    at("request-card").hidden = true;
    returned("requests", `${id} ${began}`);
  }

  // sure: the next click ends it.
  ask(sure) {
    this.sure = sure;
    at("request-end").textContent = sure ? "End it: sure?" : "End";
  }

  async end() {
    if (!this.sure) return this.ask(true);
    this.ask(false);
    try {
      await this.keys().call("POST", `/requests/${encodeURIComponent(this.opened.id)}/end`);
      await this.load();
    } catch (error) {
      at("requests-wrong").textContent = error.message;
    }
  }
}
