// Keys of the store, by the admin API beside the console, with an admin's own credential. It is kept in this page alone,
// and gone when the page is.

import { rows } from "./tables.js";

const PAGE = 50, COPIED_MS = 2000;
const at = (id) => document.getElementById(id);

// An idempotency key. `crypto.randomUUID` needs TLS or localhost.
const once = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
const listed = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);

function state(key) {
  if (key.revoked) return ["revoked", "bad"];
  if (key.disabled) return ["disabled", "warn"];
  if (key.expires && new Date(key.expires) < new Date()) return ["expired", "warn"];
  return key.old.length ? ["rotating", "warn"] : ["valid", "good"];
}

export class Keys {
  constructor() {
    this.admin = "";
    this.keys = [];
    this.followers = []; // told whether a credential is there
    this.shown = null; // the key whose details are open
    this.creation = null; // the last one that may have arrived: its body, and its idempotency key
    at("admin-form").onsubmit = (event) => { event.preventDefault(); this.open(); };
    at("admin-forget").onclick = () => this.forget("");
    at("keys-filter").onsubmit = (event) => { event.preventDefault(); this.list(); };
    at("keys-more").onclick = () => this.list(this.next);
    at("keys-new").onsubmit = (event) => { event.preventDefault(); this.create(); };
    at("secret-copy").onclick = () => this.copy();
    at("secret-kept").onclick = () => this.hide();
    at("key-rotate").onclick = () => this.rotate();
    at("key-revoke").onclick = () => this.revoke();
    at("key-close").onclick = () => this.close();
  }

  follow(told) {
    this.followers.push(told);
    told(!at("keys-open").hidden);
  }

  // The answer's JSON. Throws an error with the API's message.
  async call(method, path, body = null, more = {}) {
    const headers = { authorization: `Bearer ${this.admin}`, ...more };
    if (body !== null) headers["content-type"] = "application/json";
    const reply = await fetch(`../admin/v1${path}`, { method, headers, cache: "no-store", body: body === null ? undefined : JSON.stringify(body) });
    const found = await reply.json();
    if (reply.status === 401) this.forget(found.error.message);
    if (!reply.ok) throw new Error(found.error.message);
    return found;
  }

  // Runs one step with all buttons of the section disabled, and says what was wrong.
  async step(doing) {
    const buttons = [...at("keys").querySelectorAll("button")].filter((one) => !one.disabled);
    for (const one of buttons) one.disabled = true;
    at("keys-wrong").textContent = "";
    try {
      await doing();
    } catch (error) {
      at("keys-wrong").textContent = error.message;
    } finally {
      for (const one of buttons) one.disabled = false;
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
    this.hide();
    this.close();
    at("admin-form").hidden = false;
    at("keys-open").hidden = true;
    at("keys-wrong").textContent = why;
    for (const told of this.followers) told(false);
  }

  list(after = "") {
    return this.step(() => this.load(after));
  }

  async load(after = "") {
    const query = new URLSearchParams({ limit: PAGE, after });
    if (at("keys-team").value.trim()) query.set("team", at("keys-team").value.trim());
    if (at("keys-revoked").checked) query.set("revoked", "true");
    const page = await this.call("GET", `/keys?${query}`);
    this.keys = after ? [...this.keys, ...page.keys] : page.keys;
    this.next = page.next;
    at("admin-form").hidden = true;
    const first = at("keys-open").hidden;
    at("keys-open").hidden = false;
    this.draw();
    if (first) for (const told of this.followers) told(true);
  }

  draw() {
    rows("keys-table", this.keys.map((key) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Open";
      button.onclick = () => this.show(key);
      return [key.name, key.team ?? "–", key.models?.join(", ") ?? "all", key.limits?.budget ?? "–", state(key), key.changed?.slice(0, 10) ?? "–", key.changed_by ?? "configuration", button];
    }), 0, Infinity); // those that were asked for by pages
    at("keys-none").textContent = this.keys.length ? "" : "No key is here.";
    at("keys-more").hidden = !this.next;
  }

  show(key) {
    this.shown = key;
    this.ask(false);
    at("key-title").textContent = key.name;
    const { name, version, ...rest } = key;
    at("key-options").textContent = JSON.stringify(Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== null && String(value) !== "")), null, 2);
    at("key-rotate").hidden = at("key-revoke").hidden = at("key-valid-label").hidden = key.revoked !== null || key.where !== "store";
    at("key-card").hidden = false;
    at("key-card").scrollIntoView({ block: "nearest" });
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
      const value = (id) => at(id).value.trim();
      const body = { name: value("new-name") };
      if (value("new-team")) body.team = value("new-team");
      if (value("new-models")) body.models = listed(value("new-models"));
      if (value("new-budget")) body.limits = { budget: value("new-budget") };
      if (value("new-expires")) body.expires = value("new-expires");
      // A creation whose answer was lost is sent again under its own key, and makes no second one.
      const same = JSON.stringify(body);
      if (this.creation?.same !== same) this.creation = { same, once: once() };
      const made = await this.call("POST", "/keys", body, { "idempotency-key": this.creation.once });
      this.creation = null;
      at("keys-new").reset();
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
