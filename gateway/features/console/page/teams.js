// Entries of teams, by the admin API, with the credential that the section of keys was opened with.

import { listed } from "./keys.js";
import { money, per, strain } from "./spend.js";
import { PAGE, Pages, rows } from "./tables.js";

const EVERY_MS = 60000;
const at = (id) => document.getElementById(id);
const count = (value) => value.toLocaleString("en");
const pairs = (own) => Object.entries(own).map(([name, number]) => `${name}=${number}`).join(", ");
const worst = (budgets) => budgets.reduce((one, other) => (one && one.share >= other.share ? one : other), null);

// "a=1, b=2" as an object; null for no text.
function numbers(text, read) {
  const found = listed(text)?.map((one) => one.split("=", 2).map((part) => part.trim()));
  return found ? Object.fromEntries(found.map(([name, number = ""]) => [name, read(number)])) : null;
}

// The options in the form: those that are empty are null, which is "none" to the API.
function given() {
  const value = (name) => at(`team-${name}`).value.trim();
  return {
    models: listed(value("models")), limits: numbers(value("limits"), (text) => (/^\d+$/.test(text) ? Number(text) : text)),
    budgets: numbers(value("budgets"), (text) => text), description: value("description") || null, disabled: at("team-disabled").checked || null,
  };
}

function fill(team) {
  const texts = { ...team, models: team.models?.join(", "), limits: pairs(team.limits), budgets: pairs(team.budgets) };
  for (const name of ["name", "models", "limits", "budgets", "description"]) at(`team-${name}`).value = texts[name] ?? "";
  at("team-disabled").checked = team.disabled;
}

export class Teams {
  constructor(keys) {
    this.keys = keys;
    this.asked = 0;
    this.teams = [];
    this.budgets = new Map(); // by the name of the team
    this.shown = null; // the team whose details are open
    this.changing = null; // the team that the form changes, and its options before; null: it makes an entry
    this.pages = new Pages("teams-pages", "teams-entries", (starts) => this.step(() => this.load(starts)));
    at("team-form").onsubmit = (event) => { event.preventDefault(); this.save(); };
    at("team-cancel").onclick = () => this.make();
    at("team-edit").onclick = () => this.change();
    at("team-delete").onclick = () => this.remove();
    at("team-close").onclick = () => this.close();
    keys.follow((open) => this.opened(open));
  }

  opened(open) {
    this.asked++;
    at("teams-locked").hidden = open;
    at("teams-open").hidden = !open;
    at("teams-wrong").textContent = "";
    this.close();
    this.make();
    this.pages.first();
    if (open) this.step(() => this.load());
    else this.take([]);
  }

  // Whether the one who looks may make and delete entries; who is not known by name is told so by the API.
  get all() {
    return this.keys.changes && !this.keys.who?.teams;
  }

  // Runs one step with all buttons of the section disabled, and says what was wrong.
  async step(doing) {
    const buttons = [...at("teams").querySelectorAll("button")].filter((one) => !one.disabled);
    for (const one of buttons) one.disabled = true;
    at("teams-wrong").textContent = "";
    try {
      await doing();
    } catch (error) {
      at("teams-wrong").textContent = error.message;
    } finally {
      for (const one of buttons) one.disabled = false;
    }
  }

  // The page that `starts` ends with, by default the one that is shown. A page that has become empty gives way.
  async load(starts = this.pages.starts) {
    const mine = ++this.asked;
    const page = await this.keys.call("GET", `/teams?${new URLSearchParams({ limit: PAGE, after: starts.at(-1) })}`);
    if (mine !== this.asked) return;
    if (!page.teams.length && starts.length > 1) return this.load(starts.slice(0, -1));
    this.pages.show(starts, page.teams.length, page.next);
    this.take(page.teams);
    this.look(page.teams, mine).catch(() => null); // they are not waited for
    setTimeout(() => (mine === this.asked ? this.load().catch(() => null) : null), EVERY_MS);
  }

  // Reads the budgets of teams, with what is spent of them and left; none where they cannot be read now.
  async look(teams, mine) {
    for (const { name } of teams) {
      const reply = await fetch(`budgets.json?${new URLSearchParams({ team: name })}`, { headers: this.keys.headers(), cache: "no-store" });
      if (mine !== this.asked) return;
      this.budgets.set(name, reply.ok ? await reply.json() : []);
    }
    this.draw();
    this.spent();
  }

  // The budgets of the team whose details are open.
  spent() {
    rows("team-budgets-table", (this.budgets.get(this.shown?.name) ?? []).map((one) => [
      one.budget, per(one), money(one.used, this.keys.currency, strain(one)), money(one.left, this.keys.currency, strain(one)), money(one.amount, this.keys.currency),
    ]));
  }

  take(teams) {
    this.teams = teams;
    this.draw();
  }

  draw() {
    at("team-form").hidden = !this.all && !this.changing;
    rows("teams-entries", this.teams.map((team) => {
      const spent = worst(this.budgets.get(team.name) ?? []);
      const amount = (text) => (spent ? money(text, this.keys.currency, strain(spent)) : "–");
      return [
        team.name, this.members(team), team.models?.join(", ") ?? "all", pairs(team.limits) || "–", amount(spent?.used), amount(spent?.left),
        team.where === "keys" ? ["no entry", "quiet"] : team.disabled ? ["disabled", "warn"] : ["valid", "good"], this.button(team),
      ];
    }), 0, Infinity);
    at("entries-none").textContent = this.teams.length ? "" : "No team is here.";
  }

  // Leads to the keys of the team.
  members(team) {
    const link = document.createElement("a");
    link.href = "keys";
    link.textContent = count(team.keys);
    link.setAttribute("aria-label", `${count(team.keys)} keys of ${team.name}`);
    link.onclick = () => this.keys.ofTeam(team.name);
    return link;
  }

  button(team) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.row = team.name;
    button.textContent = "Open";
    button.onclick = () => this.show(team);
    return button;
  }

  show(team) {
    this.shown = team;
    this.ask(false);
    at("team-title").textContent = team.name;
    at("team-text").textContent = team.description ?? "";
    at("team-file").hidden = team.where !== "configuration";
    at("team-edit").hidden = !(team.where === "store" ? this.keys.changes : team.where === "keys" && this.all);
    at("team-edit").textContent = team.where === "store" ? "Change" : "Make an entry";
    at("team-delete").hidden = !this.all || team.where !== "store";
    this.spent();
    const { name, version, description, ...rest } = team;
    at("team-options").textContent = JSON.stringify(Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null && String(value) !== "" && JSON.stringify(value) !== "{}")), null, 2);
    at("team-card").hidden = false;
    at("team-card").scrollIntoView({ block: "nearest" });
  }

  close() {
    this.shown = null;
    at("team-card").hidden = true;
  }

  // The form makes entries again.
  make() {
    this.changing = null;
    this.form("Make an entry", "Make the entry");
    at("team-form").reset();
  }

  change() {
    fill(this.shown);
    this.changing = this.shown.where === "store" ? { name: this.shown.name, before: given() } : null;
    this.form(this.changing ? `Change ${this.shown.name}` : "Make an entry", this.changing ? "Save" : "Make the entry");
    at("team-form").scrollIntoView({ block: "nearest" });
    at("team-models").focus();
  }

  form(title, button) {
    at("team-form-title").textContent = title;
    at("team-save").textContent = button;
    at("team-name").readOnly = Boolean(this.changing);
    at("team-cancel").hidden = !this.changing;
    at("team-form").hidden = !this.all && !this.changing;
  }

  // Only what differs from before is sent: another admin may change the rest at the same time.
  save() {
    return this.step(async () => {
      const before = this.changing?.before;
      const differs = ([option, value]) => (before ? JSON.stringify(value) !== JSON.stringify(before[option]) : value !== null);
      const options = Object.fromEntries(Object.entries(given()).filter(differs));
      const name = at("team-name").value.trim();
      const saved = before
        ? await this.keys.call("PATCH", `/teams/${encodeURIComponent(name)}`, options)
        : await this.keys.call("POST", "/teams", { name, ...options });
      this.make();
      await this.load();
      this.show(saved);
    });
  }

  // sure: the next click deletes.
  ask(sure) {
    this.sure = sure;
    at("team-delete").textContent = sure ? "Delete the entry: sure?" : "Delete";
  }

  remove() {
    if (!this.sure) return this.ask(true);
    return this.step(async () => {
      await this.keys.call("DELETE", `/teams/${encodeURIComponent(this.shown.name)}`);
      this.close();
      this.make();
      await this.load();
    });
  }
}
