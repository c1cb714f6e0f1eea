// Spending: a month by team, key, model and day, what moved, and who is near a budget.

import { rows } from "./tables.js";

const EVERY_MS = 60000;
const at = (id) => document.getElementById(id);

// Costs are text: at most six decimals are shown, all of them in the cell's title.
export function money(text, currency, style = "") {
  const value = Number(text);
  const digits = value >= 1 ? 2 : 6;
  return [`${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: digits })} ${currency}`.trim(), style, `${text} ${currency}`.trim()];
}

const count = (value) => value.toLocaleString("en");
// The period of a budget.
export const per = (budget) => (budget.per === "total" ? "in total" : `a ${budget.per}`);
// How a budget stands: amber from four fifths on, red when it is spent.
export const strain = (budget) => (budget.share >= 1 ? "bad" : budget.share >= 0.8 ? "warn" : "");
const nameless = (name) => name || "–";

export class Spending {
  // headers: () => those that the console needs
  constructor(headers) {
    this.headers = headers;
    this.asked = 0;
    at("month").value = at("month").max = new Date().toISOString().slice(0, 7);
    at("month").onchange = () => this.load();
    this.load();
  }

  async load() {
    const mine = ++this.asked;
    try {
      const month = at("month").value, query = month ? `?month=${encodeURIComponent(month)}` : "";
      const reply = await fetch(`spend.json${query}`, { headers: this.headers(), cache: "no-store" });
      const found = await reply.json();
      if (mine !== this.asked) return;
      if (!reply.ok) throw new Error(found.error);
      this.draw(found);
      at("spend-wrong").textContent = "";
    } catch (error) {
      if (mine === this.asked) at("spend-wrong").textContent = error.message;
    }
    setTimeout(() => (mine === this.asked ? this.load() : null), EVERY_MS);
  }

  draw(found) {
    const { currency, total } = found;
    const [sum] = money(total.cost, currency);
    at("spent").textContent = `${sum} for ${count(total.requests)} requests, ${found.from} to ${found.to}`;
    for (const [dimension, { rows: lines, others }] of Object.entries(found.by)) {
      const most = Math.max(...lines.map((one) => Number(one.cost)), 0);
      rows(`spend-${dimension}`, lines.map((one) => [
        nameless(one.name), count(one.requests), count(one.input_tokens), count(one.output_tokens), money(one.cost, currency),
        { share: most ? Number(one.cost) / most : 0 },
      ]), others);
    }
    rows("movers", found.movers.map((one) => {
      const more = Number(one.now) - Number(one.before);
      return [nameless(one.name), one.dimension, money(one.before, currency), money(one.now, currency, more > 0 ? "warn" : "good")];
    }));
    const near = found.budgets ?? [];
    rows("near", near.map((one) => {
      const style = strain(one);
      return [
        Object.values(one.of).join(", ") || "all together", one.budget, [`${Math.floor(one.share * 100)} %`, style], money(one.used, currency, style),
        money(one.left, currency, style), money(one.amount, currency), per(one),
      ];
    }));
    const [text, style] = found.budgets === null ? ["Budgets cannot be read now.", "warn"] : ["No budget is half spent.", "quiet"];
    at("near-none").textContent = near.length ? "" : text;
    at("near-none").className = `wide ${style}`;
  }
}
