// One request through the gateway, shown on both sides as it happens.

const at = (id) => document.getElementById(id);

// `words` in an example stands for the prompt.
function filled(value, words, prompt) {
  if (value === words) return prompt;
  if (Array.isArray(value)) return value.map((one) => filled(one, words, prompt));
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, filled(inner, words, prompt)]));
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

function options(select, entries) {
  select.replaceChildren(...entries.map(([value, text]) => new Option(text, value)));
}

export class Playground {
  // headers: (more) => those that the console needs
  constructor(headers) {
    this.headers = headers;
    this.stopping = null;
    this.load();
  }

  async load() {
    const reply = await fetch("ways.json", { headers: this.headers(), cache: "no-store" });
    if (!reply.ok) return;
    const { ways, models, needs_key } = await reply.json();
    this.ways = ways;
    at("client-key-label").hidden = !needs_key;
    options(at("dialect"), [...new Set(ways.map((one) => one.dialect))].map((name) => [name, name]));
    options(at("model"), models.map((name) => [name, name]));
    at("dialect").onchange = () => this.offer();
    for (const id of ["way", "model", "stream"]) at(id).onchange = () => this.fill();
    at("prompt").oninput = () => this.fill();
    at("ask").onsubmit = (event) => { event.preventDefault(); this.run(true); };
    at("translate").onclick = () => this.run(false);
    at("stop").onclick = () => this.stopping?.abort();
    this.offer();
  }

  offer() {
    const found = this.ways.map((one, number) => [number, one]).filter(([, one]) => one.dialect === at("dialect").value);
    options(at("way"), found.map(([number, one]) => [number, `${one.operation} ${one.path}`]));
    this.fill();
  }

  fill() {
    const way = this.ways[Number(at("way").value)], model = at("model").value;
    at("stream").disabled = way.streams !== "asked";
    at("path").value = way.path.replaceAll("{model}", encodeURIComponent(model)) + (way.query ? `?${way.query}` : "");
    const body = filled(way.body, way.words, at("prompt").value);
    if (way.model) body[way.model] = model;
    if (way.streams === "asked") body.stream = at("stream").checked;
    at("body").value = JSON.stringify(body, null, 2);
  }

  async run(send) {
    const [path, query = ""] = at("path").value.split(/\?(.*)/s), body = at("body").value, clientKey = at("client-key").value.trim();
    for (const id of ["client-request", "worker-request", "client-reply", "worker-reply"]) at(id).textContent = "";
    const header = this.ways[Number(at("way").value)].key_header;
    const shownKey = clientKey ? `${header}: ${header === "authorization" ? "Bearer " : ""}(your key)\n` : "";
    at("client-request").textContent = `POST ${at("path").value}\ncontent-type: application/json\n${shownKey}\n${body}`;
    at("outcome").textContent = send ? "under way" : "";
    this.busy(true);
    this.stopping = new AbortController();
    try {
      const reply = await fetch("play", {
        method: "POST",
        headers: this.headers({ "content-type": "application/json" }),
        body: JSON.stringify({ path, query, body, key: clientKey, model: at("model").value, send }),
        signal: this.stopping.signal,
      });
      if (!reply.ok) throw new Error((await reply.json()).error);
      await this.follow(reply.body.getReader(), send);
    } catch (error) {
      at("outcome").textContent = error.name === "AbortError" ? "stopped, at the worker too" : error.message;
    } finally {
      this.busy(false);
    }
  }

  busy(yes) {
    at("send").disabled = at("translate").disabled = yes;
    at("stop").disabled = !yes;
  }

  async follow(reader, send) {
    const decoder = new TextDecoder();
    let rest = "";
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
      const lines = (rest + decoder.decode(piece.value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const line of lines) this.show(JSON.parse(line), send);
    }
  }

  show(line, send) {
    const add = (id, text) => { at(id).append(text); };
    const reply = line.side === "client" ? "client-reply" : "worker-reply";
    if (line.what === "request") {
      add("worker-request", `${at("worker-request").textContent ? "\n\n" : ""}${line.method} ${line.path}\n`);
      if (line.address) add("worker-request", `to ${line.address}, after ${line.ms} ms\n`);
      add("worker-request", `\n${pretty(line.text ?? "")}`);
    } else if (line.what === "head") {
      const headers = (line.headers ?? []).map(([name, value]) => `${name}: ${value}\n`).join("");
      add(reply, `${at(reply).textContent ? "\n\n" : ""}${line.status}, after ${line.ms} ms\n${headers}\n`);
      if (line.side === "client") at("outcome").textContent = `status ${line.status}`;
    } else if (line.what === "data") {
      add(reply, line.text);
    } else {
      if (line.unshown) add(reply, `\n(${line.unshown} bytes more are not shown)`);
      if (line.text) add(reply, `\n(${line.text})`);
      if (line.side === "client" && send) at("outcome").textContent += `, ${line.text ?? "whole"} after ${line.ms} ms`;
      if (line.side === "worker" && !send) at("outcome").textContent = "translated, not sent";
    }
  }
}
