// Keys of the store, by the admin API: with the session of a person who has logged in, or beside the console with an
// admin's own credential, which is kept in this page alone, and gone when the page is.

import { money, per, strain } from "./spend.js";
import { PAGE, Pages, returned, rows } from "./tables.js";

const COPIED_MS = 2000;
const at = (id) => document.getElementById(id);

// An idempotency key. `crypto.randomUUID` needs TLS or localhost.
const once = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
export const listed = (text) => (text ? text.split(",").map((one) => one.trim()).filter(Boolean) : null);
const number = (text) => (/^-?\d+$/.test(text) ? Number(text) : text || null);
const LIMITS = ["requests", "tokens", "concurrency", "streams", "connections"];

// The options in the form: those that are empty are null, which is "none" to the API.
function given() {
  const value = (name) => at(`new-${name}`).value.trim();
  const limits = { ...Object.fromEntries(LIMITS.map((name) => [name, number(value(name))])), budget: value("budget") || null };
  const own = Object.fromEntries(Object.entries(limits).filter(([, limit]) => limit !== null));
  const aliases = listed(value("aliases"))?.map((one) => one.split("=", 2).map((part) => part.trim()));
  return {
    team: value("team") || null, models: listed(value("models")), dialects: listed(value("dialects")), expires: value("expires") || null,
    aliases: aliases ? Object.fromEntries(aliases.map(([name, model = ""]) => [name, model])) : null,
    log_prompts_until: value("log_prompts_until") || null, priority: number(value("priority")), disabled: at("new-disabled").checked || null,
    limits: Object.keys(own).length ? own : null,
  };
}

function fill(key) {
  const texts = { ...key, ...key.limits, models: key.models?.join(", "), dialects: key.dialects?.join(", "), priority: key.priority || "" };
  texts.aliases = Object.entries(key.aliases).map(([name, model]) => `${name}=${model}`).join(", ");
  for (const name of ["name", "team", "models", "dialects", "aliases", "expires", "log_prompts_until", "priority", "budget", ...LIMITS]) at(`new-${name}`).value = texts[name] ?? "";
  at("new-disabled").checked = key.disabled;
}

function state(key) {
  if (key.revoked) return ["revoked", "bad"];
  if (key.disabled) return ["disabled", "warn"];
  if (key.expires && new Date(key.expires) < new Date()) return ["expired", "warn"];
  return key.old.length ? ["rotating", "warn"] : ["valid", "good"];
}

const used = (key) => [key.last_used?.slice(0, 10) ?? "–", "", key.last_used?.replace("T", " ").slice(0, 16) ?? "never, as far as is known"];

export class Keys {
  // headers: (more) => those that the console needs; currency: of amounts, "" without one; who: has logged in, or null
  constructor(headers, currency, who) {
    this.headers = headers;
    this.who = who;
    this.currency = currency;
    if (currency) at("new-currency").textContent += `, ${currency}`;
    this.changing = null; // the name of the key that the form changes, and its options before; null: it makes a key
    this.admin = "";
    this.keys = [];
    this.followers = []; // called with whether a credential is there
    this.shown = null; // the key whose details are open
    this.creation = null; // the last one that may have arrived: its body, and its idempotency key
    at("admin-form").onsubmit = (event) => { event.preventDefault(); this.open(); };
    at("admin-forget").onclick = () => this.forget("");
    at("keys-filter").onsubmit = (event) => { event.preventDefault(); this.list([""]); };
    this.pages = new Pages("keys-pages", "keys-filter", (starts) => this.list(starts));
    at("keys-new").onsubmit = (event) => { event.preventDefault(); this.changing ? this.update() : this.create(); };
    at("new-cancel").onclick = () => this.make();
    at("key-edit").onclick = () => this.change();
    at("secret-copy").onclick = () => this.copy();
    at("secret-stored").onclick = () => this.hide();
    at("key-rotate").onclick = () => this.rotate();
    at("key-revoke").onclick = () => this.revoke();
    at("key-close").onclick = () => { const { name } = this.shown; this.close(); returned("keys-table", name); };
    at("keys-how").hidden = at("admin-form").hidden = at("admin-forget").hidden = Boolean(who);
    if (who) this.list([""]);
  }

  // Whether nobody is known who could see keys, and whether who is known may change something.
  get locked() {
    return !this.who && !this.admin;
  }

  get changes() {
    return this.who ? this.who.changes : !this.locked;
  }

  follow(follower) {
    this.followers.push(follower);
    follower(!at("keys-open").hidden);
  }

  // The answer's JSON. Throws an error with the API's message.
  async call(method, path, body = null, more = {}) {
    const [base, headers] = this.who ? ["admin", this.headers(more)] : ["../admin", { authorization: `Bearer ${this.admin}`, ...more }];
    if (body !== null) headers["content-type"] = "application/json";
    const reply = await fetch(`${base}/v1${path}`, { method, headers, cache: "no-store", body: body === null ? undefined : JSON.stringify(body) });
    const found = await reply.json();
    const wrong = found.error?.message ?? found.error; // of the admin API, or of the console before it
    if (reply.status === 401) this.forget(wrong);
    if (!reply.ok) throw new Error(wrong);
    return found;
  }

  // Runs one step with all buttons of the section disabled, and says what was wrong.
  async step(doing) {
    const held = document.activeElement, buttons = [...at("keys").querySelectorAll("button")].filter((one) => !one.disabled);
    for (const one of buttons) one.disabled = true;
    at("keys-wrong").textContent = "";
    try {
      await doing();
    } catch (error) {
      at("keys-wrong").textContent = error.message;
    } finally {
      for (const one of buttons) one.disabled = false;
      if (document.activeElement === document.body) held.focus({ preventScroll: true }); // a disabled button has lost it
    }
  }

  async open() {
    this.admin = at("admin-key").value.trim();
    at("admin-key").value = "";
    await this.step(() => this.load());
  }

  forget(why) {
    this.admin = "";
    this.keys = [];
    this.pages.first();
    this.draw();
    this.hide();
    this.close();
    this.make();
    at("admin-form").hidden = Boolean(this.who);
    at("keys-open").hidden = true;
    at("keys-wrong").textContent = why;
    for (const follower of this.followers) follower(false);
  }

  // The keys of one team.
  ofTeam(name) {
    at("keys-team").value = name;
    at("keys-match").value = "";
    return this.list([""]);
  }

  list(starts) {
    return this.step(() => this.load(starts));
  }

  // The page that `starts` ends with, by default the one that is shown. A page that has become empty gives way.
  async load(starts = this.pages.starts) {
    const query = new URLSearchParams({ limit: PAGE, after: starts.at(-1), match: at("keys-match").value.trim() });
    if (at("keys-team").value.trim()) query.set("team", at("keys-team").value.trim());
    if (at("keys-revoked").checked) query.set("revoked", "true");
    const page = await this.call("GET", `/keys?${query}`);
    if (!page.keys.length && starts.length > 1) return this.load(starts.slice(0, -1));
    this.keys = page.keys;
    this.pages.show(starts, page.keys.length, page.next);
    at("admin-form").hidden = true;
    const first = at("keys-open").hidden;
    at("keys-open").hidden = false;
    at("keys-new").hidden = !this.changes;
    this.draw();
    if (first) for (const follower of this.followers) follower(true);
  }

  draw() {
    rows("keys-table", this.keys.map((key) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Open";
      button.dataset.row = key.name;
      button.onclick = () => { this.show(key); at("key-title").focus({ preventScroll: true }); }; // rows may stand between
      return [key.name, key.team ?? "–", key.models?.join(", ") ?? "all", key.limits?.budget ? money(key.limits.budget, this.currency) : "–", state(key), used(key), key.changed?.slice(0, 10) ?? "–", key.changed_by ?? "configuration", button];
    }));
    at("keys-none").textContent = this.keys.length ? "" : "No key is here.";
  }

  show(key) {
    this.shown = key;
    this.ask(false);
    at("key-title").textContent = key.name;
    const { name, version, ...rest } = key;
    at("key-options").textContent = JSON.stringify(Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null && String(value) !== "")), null, 2);
    for (const id of ["key-edit", "key-rotate", "key-revoke", "key-valid-label"]) at(id).hidden = !this.changes || key.revoked !== null || key.where !== "store";
    at("key-file").hidden = key.where === "store";
    this.look(key);
    at("key-card").hidden = false;
    at("key-card").scrollIntoView({ block: "nearest" });
  }

  // Its budgets: what is spent of them in their periods, and what is left.
  async look(key) {
    rows("key-budgets", []);
    try {
      const query = new URLSearchParams({ key: key.name, team: key.team ?? "" });
      const reply = await fetch(`budgets.json?${query}`, { headers: this.headers(), cache: "no-store" });
      const found = await reply.json();
      if (!reply.ok) throw new Error(found.error);
      if (this.shown !== key) return;
      rows("key-budgets", found.map((one) => [
        one.budget, per(one), money(one.used, this.currency, strain(one)), money(one.left, this.currency, strain(one)), money(one.amount, this.currency),
      ]));
    } catch (error) {
      at("keys-wrong").textContent = error.message;
    }
  }

  // The form makes keys again.
  make() {
    this.changing = null;
    this.form("Make a key", "Make the key");
    at("keys-new").reset();
  }

  change() {
    fill(this.shown);
    this.changing = { name: this.shown.name, before: given() };
    this.form(`Change ${this.shown.name}`, "Save");
    at("new-more").open = true;
    at("keys-new").scrollIntoView({ block: "nearest" });
    at("new-team").focus();
  }

  form(title, button) {
    at("keys-new-title").textContent = title;
    at("new-save").textContent = button;
    at("new-name").readOnly = Boolean(this.changing);
    at("new-cancel").hidden = !this.changing;
  }

  // Only what differs from before is sent: another admin may change the rest at the same time.
  update() {
    return this.step(async () => {
      const { name, before } = this.changing;
      const differs = ([option, value]) => JSON.stringify(value) !== JSON.stringify(before[option]);
      const options = Object.fromEntries(Object.entries(given()).filter(differs));
      const changed = await this.call("PATCH", `/keys/${encodeURIComponent(name)}`, options);
      this.make();
      this.show(changed);
      await this.load();
    });
  }

  close() {
    this.shown = null;
    at("key-card").hidden = true;
  }

  // sure: the next click revokes.
  ask(sure) {
    this.sure = sure;
    at("key-revoke").textContent = sure ? "Revoke for ever: sure?" : "Revoke";
  }

  create() {
    return this.step(async () => {
      const options = Object.entries(given()).filter(([, value]) => value !== null);
      const body = { name: at("new-name").value.trim(), ...Object.fromEntries(options) };
      // A creation whose answer was lost is sent again under its own key, and makes no second one.
      const same = JSON.stringify(body);
      if (this.creation?.same !== same) this.creation = { same, once: once() };
      const made = await this.call("POST", "/keys", body, { "idempotency-key": this.creation.once });
      this.creation = null;
      this.make();
      if (made.key === null) throw new Error(`${made.name} was made before, and its key was shown then: rotate it for a new one`);
      this.reveal(made.name, made.key);
      await this.load();
    });
  }

  rotate() {
    return this.step(async () => {
      const { name } = this.shown;
      const made = await this.call("POST", `/keys/${encodeURIComponent(name)}/rotate`, { valid_s: Number(at("key-valid").value) });
      this.close();
      this.reveal(name, made.key);
      await this.load();
    });
  }

  revoke() {
    if (!this.sure) return this.ask(true);
    return this.step(async () => {
      await this.call("POST", `/keys/${encodeURIComponent(this.shown.name)}/revoke`);
      this.close();
      await this.load();
    });
  }

  reveal(name, secret) {
    at("secret-name").textContent = name;
    at("secret").value = secret;
    at("secret-card").hidden = false;
    at("secret-card").scrollIntoView({ block: "nearest" });
    at("secret").focus();
    at("secret").select();
  }

  hide() {
    at("secret").value = "";
    at("secret-card").hidden = true;
  }

  async copy() {
    at("secret").select();
    try {
      await navigator.clipboard.writeText(at("secret").value);
    } catch {
      document.execCommand("copy"); // without TLS there is no clipboard to write to, but for localhost
    }
    at("secret-copy").textContent = "Copied";
    setTimeout(() => (at("secret-copy").textContent = "Copy"), COPIED_MS);
  }
}
