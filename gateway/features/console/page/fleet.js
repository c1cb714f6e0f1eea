// The workers of all models: their state, why they are not ready, and an admin who drains them; and the other gateways.

import { PAGE, pages, rows, turned } from "./tables.js";

const CONDITIONS = { ready: "good", draining: "warn", leaving: "warn", ejected: "bad", stalled: "bad", down: "bad" };
const EVERY_MS = 2000, GATEWAYS_MS = 5000, DIFFERENCES = 3;
const at = (id) => document.getElementById(id);

export const bare = (address) => address?.replace(/^https?:\/\//, "") ?? "–";
export const ready = (model) => model.workers.filter((one) => one.condition === "ready").length;
export const lost = (model) => model.workers.filter((one) => CONDITIONS[one.condition] === "bad").length;

// Why a worker is not ready, or failed last: the word of the log and of the metrics, and the sentence that explains it,
// for which a small window has no room.
function reason({ condition, reason: word, meaning, certificate_for: hosts, proxy }) {
  const [shown, sentence] = [document.createElement("span"), document.createElement("span")];
  const more = [hosts.length && `its certificate is for ${hosts.join(", ")}`, proxy && `behind the proxy ${proxy}`];
  sentence.className = "more";
  sentence.textContent = word ? ["", meaning && `the worker ${meaning}`, ...more].filter((one) => typeof one === "string").join("; ") : "";
  shown.className = word ? "warn" : "";
  shown.append(word ? `${condition === "ready" ? "failed last: " : ""}${word}` : "–", sentence);
  shown.title = word ? shown.textContent : "";
  return shown;
}

export class Fleet {
  // keys: () => the view of keys, by which an admin drains a worker, or null. gateways: whether others can be known
  constructor(keys, headers) {
    this.keys = keys;
    this.headers = headers;
    this.gateways = false;
    this.asked = 0; // counts the questions, of which the last one counts
    this.looked = 0; // when the other gateways were asked for
    this.skip = 0; // workers before the page that is shown
    this.failed = false; // whether the last page did not come
    this.sure = null; // the address of the worker that the next click drains
    this.page = { workers: [], total: 0 };
    at("fleet-filter").onsubmit = (event) => { event.preventDefault(); this.skip = 0; this.load(); };
    const [before, next] = at("workers-pages").querySelectorAll("button");
    before.onclick = () => this.turn(this.skip - PAGE);
    next.onclick = () => this.turn(this.skip + PAGE);
  }

  // shown: whether the view is looked at
  watch(shown) {
    this.asked++;
    if (shown) this.load();
  }

  async turn(skip) {
    this.skip = skip;
    await this.load();
    turned("workers-pages", "fleet-filter");
  }

  async load() {
    const mine = ++this.asked, match = at("fleet-match").value.trim();
    if (this.gateways && Date.now() - this.looked >= GATEWAYS_MS) this.others();
    try {
      const query = new URLSearchParams({ match, skip: this.skip, limit: PAGE });
      const reply = await fetch(`workers.json?${query}`, { headers: this.headers(), cache: "no-store" });
      const found = await reply.json();
      if (mine !== this.asked) return;
      if (!reply.ok) throw new Error(found.error);
      if (!found.workers.length && this.skip) { // they have become fewer
        this.skip = 0;
        return this.load();
      }
      this.page = found;
      this.draw();
      if (this.failed) at("fleet-wrong").textContent = "";
      this.failed = false;
    } catch (error) {
      if (mine !== this.asked) return;
      this.failed = true;
      at("fleet-wrong").textContent = error.message;
    }
    setTimeout(() => (mine === this.asked ? this.load() : null), EVERY_MS);
  }

  draw() {
    const { workers, total } = this.page, keys = this.keys();
    rows("workers", workers.map(({ model, worker: one }) => [
      model, bare(one.address), [one.condition, CONDITIONS[one.condition]], reason(one),
      one.serves.length ? one.serves.join(", ") : one.served_as ?? model, one.in_flight, one.max_in_flight ?? "–", this.button(model, one),
    ]));
    pages("workers-pages", this.skip, workers.length, this.skip + workers.length < total, total);
    at("workers-none").textContent = workers.length ? "" : at("fleet-match").value.trim() ? "No worker matches." : "No worker is known.";
    at("fleet-locked").hidden = !keys?.locked || !workers.length;
  }

  // What became of requests that lost their worker.
  lost(models) {
    rows("lost", models.flatMap((model) => Object.entries(model.lost_worker).flatMap(([what, counts]) =>
      Object.entries(counts).map(([reason, count]) => [model.name, [what.replace("_", " "), what === "not_continued" ? "bad" : "good"], reason, count]))));
  }

  // The other gateways, and the workers that they see in another state than this one.
  async others() {
    this.looked = Date.now();
    const reply = await fetch("gateways.json", { headers: this.headers(), cache: "no-store" }).catch(() => null);
    if (!reply?.ok) return;
    rows("gateways", (await reply.json()).map((one) => {
      const otherwise = one.otherwise.map(([model, address, condition, why]) => `${model} ${bare(address)}: ${condition}${why ? ` (${why})` : ""}`);
      const state = one.draining ? ["draining", "warn"] : one.starting ? ["starting", "warn"] : one.ready ? ["ready", "good"] : ["no worker", "bad"];
      const shown = otherwise.slice(0, DIFFERENCES).join(", ") + (one.differs > DIFFERENCES ? `, and ${one.differs - DIFFERENCES} more` : "");
      return [one.name, state, one.version, one.running, one.waiting, one.workers_ready,
        [shown || "–", otherwise.length ? "warn" : "", otherwise.join("\n")]];
    }));
  }

  button(model, { address, condition }) {
    const button = document.createElement("button"), drained = condition === "draining";
    button.type = "button";
    button.dataset.row = `${model} ${address}`;
    button.hidden = !this.keys()?.changes || condition === "leaving";
    button.textContent = drained ? "Undrain" : this.sure === address ? "Drain: sure?" : "Drain";
    button.onclick = () => this.drain(address, drained);
    return button;
  }

  async drain(address, drained) {
    if (!drained && this.sure !== address) {
      this.sure = address;
      return this.draw();
    }
    this.sure = null;
    at("fleet-wrong").textContent = "";
    try {
      await this.keys().call("POST", `/workers/${encodeURIComponent(address)}/${drained ? "undrain" : "drain"}`);
    } catch (error) {
      at("fleet-wrong").textContent = error.message;
    }
    this.load();
  }
}
