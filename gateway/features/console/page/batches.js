// Batches of all tenants that the admin may see, with the credential that the section of keys was opened with.

import { PAGE, Pages, rows } from "./tables.js";

const EVERY_MS = 5000;
const at = (id) => document.getElementById(id);
const count = (value) => value.toLocaleString("en");
const STYLES = { completed: "good", failed: "bad", expired: "warn", cancelled: "warn", cancelling: "warn" };

export class Batches {
  constructor(keys) {
    this.keys = keys;
    this.asked = 0;
    this.sure = null; // the id of the batch that the next click cancels
    this.pages = new Pages("batches-pages", "batches-filter", (starts) => this.load(starts));
    keys.follow((open) => this.opened(open));
    at("batches-filter").onsubmit = (event) => { event.preventDefault(); this.load([""]); };
  }

  opened(open) {
    this.asked++;
    at("batches-locked").hidden = open;
    at("batches-open").hidden = !open;
    at("batches-wrong").textContent = "";
    this.pages.first();
    if (open) this.load();
    else this.draw([]);
  }

  // The page that `starts` ends with, by default the one that is shown. A page that has become empty gives way.
  async load(starts = this.pages.starts) {
    const mine = ++this.asked;
    const query = new URLSearchParams({ limit: PAGE, after: starts.at(-1), team: at("batches-team").value.trim(), status: at("batches-status").value });
    try {
      const page = await this.keys.call("GET", `/batches?${query}`);
      if (mine !== this.asked) return;
      if (!page.batches.length && !page.next && starts.length > 1) return this.load(starts.slice(0, -1));
      this.pages.show(starts, page.batches.length, page.next);
      this.draw(page.batches);
      at("batches-wrong").textContent = "";
    } catch (error) {
      if (mine === this.asked) at("batches-wrong").textContent = error.message;
    }
    setTimeout(() => (mine === this.asked ? this.load() : null), EVERY_MS);
  }

  draw(batches) {
    this.batches = batches;
    rows("batches-table", batches.map((one) => {
      const done = one.succeeded + one.failed;
      const progress = `${count(done)} of ${one.requests ? count(one.requests) : "?"}`;
      return [
        one.id, one.team ?? "–", one.key, one.endpoint, [one.status.replace("_", " "), STYLES[one.status] ?? ""], progress,
        { share: one.requests ? done / one.requests : 0 }, [count(one.failed), one.failed ? "warn" : ""],
        [one.created.slice(0, 16).replace("T", " "), "", `expires ${one.expires}`], this.button(one),
      ];
    }), 0, Infinity);
    at("batches-none").textContent = batches.length ? "" : "No batch is here.";
  }

  button(batch) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.row = batch.id;
    button.textContent = this.sure === batch.id ? "Cancel: sure?" : "Cancel";
    button.hidden = !this.keys.changes || batch.ended || batch.status === "cancelling";
    button.onclick = () => this.cancel(batch.id);
    return button;
  }

  async cancel(id) {
    if (this.sure !== id) {
      this.sure = id;
      return this.draw(this.batches);
    }
    this.sure = null;
    try {
      await this.keys.call("POST", `/batches/${encodeURIComponent(id)}/cancel`);
      await this.load();
    } catch (error) {
      at("batches-wrong").textContent = error.message;
      this.draw(this.batches);
    }
  }
}
