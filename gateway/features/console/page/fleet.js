// The workers of all models: their state, why they are not ready, and an admin who drains them; and the other gateways.

import { rows } from "./tables.js";

const CONDITIONS = { ready: "good", draining: "warn", leaving: "warn", ejected: "bad", stalled: "bad", down: "bad" };
const ORDER = ["bad", "warn", "good"];
const EVERY_MS = 5000, DIFFERENCES = 3;
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
    this.asked = 0;
    this.sure = null; // the address of the worker that the next click drains
  }

  draw(models) {
    this.models = models;
    if (this.gateways && !at("fleet").hidden && Date.now() - this.asked >= EVERY_MS) this.others();
    const badness = ([, one]) => ORDER.indexOf(CONDITIONS[one.condition]);
    const workers = models.flatMap((model) => model.workers.map((one) => [model, one])).sort((one, other) => badness(one) - badness(other));
    rows("workers", workers.map(([model, one]) => [
      model.name, bare(one.address), [one.condition, CONDITIONS[one.condition]], reason(one),
      one.serves.length ? one.serves.join(", ") : one.served_as ?? model.name, one.in_flight, one.max_in_flight ?? "–", this.button(model, one),
    ]));
    at("workers-none").hidden = workers.length > 0;
    const keys = this.keys();
    at("fleet-locked").hidden = !keys?.locked || !workers.length;
    rows("lost", models.flatMap((model) => Object.entries(model.lost_worker).flatMap(([what, counts]) =>
      Object.entries(counts).map(([reason, count]) => [model.name, [what.replace("_", " "), what === "not_continued" ? "bad" : "good"], reason, count]))));
  }

  // The other gateways, and the workers that they see in another state than this one.
  async others() {
    this.asked = Date.now();
    const reply = await fetch("gateways.json", { headers: this.headers(), cache: "no-store" }).catch(() => null);
    if (!reply?.ok) return;
    const here = new Map(this.models.flatMap((model) => model.workers.map((one) => [`${model.name} ${one.address}`, one.condition])));
    rows("gateways", (await reply.json()).map((one) => {
      const otherwise = one.workers.filter(([model, address, condition]) => here.get(`${model} ${address}`) !== condition)
        .map(([model, address, condition, why]) => `${model} ${bare(address)}: ${condition}${why ? ` (${why})` : ""}`);
      const state = one.draining ? ["draining", "warn"] : one.starting ? ["starting", "warn"] : one.ready ? ["ready", "good"] : ["no worker", "bad"];
      const shown = otherwise.slice(0, DIFFERENCES).join(", ") + (otherwise.length > DIFFERENCES ? `, and ${otherwise.length - DIFFERENCES} more` : "");
      return [one.name, state, one.version, one.running, one.waiting, one.workers.filter(([, , condition]) => condition === "ready").length,
        [shown || "–", otherwise.length ? "warn" : "", otherwise.join("\n")]];
    }));
  }

  button(model, { address, condition }) {
    const button = document.createElement("button"), drained = condition === "draining";
    button.type = "button";
    button.dataset.row = `${model.name} ${address}`;
    button.hidden = !this.keys()?.changes || condition === "leaving";
    button.textContent = drained ? "Undrain" : this.sure === address ? "Drain: sure?" : "Drain";
    button.onclick = () => this.drain(address, drained);
    return button;
  }

  async drain(address, drained) {
    if (!drained && this.sure !== address) {
      this.sure = address;
      return this.draw(this.models);
    }
    this.sure = null;
    at("fleet-wrong").textContent = "";
    try {
      await this.keys().call("POST", `/workers/${encodeURIComponent(address)}/${drained ? "undrain" : "drain"}`);
    } catch (error) {
      at("fleet-wrong").textContent = error.message;
    }
    this.draw(this.models); // the next state shows what has become of it
  }
}
