// Drives the unmodified `openai` client for Node on sound and images; prints what it returns as one JSON object.
// Usage: node media.mjs GATEWAY WAVE_FILE
import fs from "node:fs";
import OpenAI, { AzureOpenAI, toFile } from "openai";

const [gateway, wave] = process.argv.slice(2);
const options = { apiKey: "none", maxRetries: 0, timeout: 60_000 };
const client = new OpenAI({ baseURL: gateway + "/v1", ...options });
const azure = new AzureOpenAI({ endpoint: gateway, apiVersion: "2025-04-01-preview", ...options });
const file = () => fs.createReadStream(wave);
const picture = () => toFile(Buffer.from("picture"), "a.png", { type: "image/png" });
const words = (text) => text.split(" ").length;

const cases = {
  async transcript() {
    const reply = await client.audio.transcriptions.create({ file: file(), model: "m" });
    return [words(reply.text), reply.usage.type];
  },
  async streamed() {
    const events = [];
    for await (const one of await client.audio.transcriptions.create({ file: file(), model: "m", stream: true })) events.push(one);
    const last = events.pop();
    return [events.length, last.type, last.text === events.map((one) => one.delta).join("")];
  },
  async speech() {
    const reply = await client.audio.speech.create({ model: "m", voice: "alloy", input: "one two three", response_format: "wav" });
    return [(await reply.arrayBuffer()).byteLength, reply.headers.get("content-type")];
  },
  async images() {
    const reply = await client.images.generate({ model: "m", prompt: "a cat", n: 2 });
    return [reply.data.length, reply.usage.output_tokens];
  },
  async drawn() {
    const types = [];
    const stream = await client.images.generate({ model: "m", prompt: "a cat", stream: true, partial_images: 1 });
    for await (const event of stream) types.push(event.type);
    return types;
  },
  async edit() {
    const reply = await client.images.edit({ image: await picture(), prompt: "a hat", model: "m" });
    return [reply.data.length];
  },
  async unknown() {
    try {
      await client.audio.transcriptions.create({ file: file(), model: "nobody" });
    } catch (error) {
      return [error.constructor.name, error.status, error.code];
    }
  },
  async azure() {
    const reply = await azure.audio.transcriptions.create({ file: file(), model: "m" });
    const drawn = await azure.images.generate({ model: "m", prompt: "a cat" });
    return [words(reply.text), drawn.data.length];
  },
};

const found = {};
for (const [name, run] of Object.entries(cases)) found[name] = await run();
console.log(JSON.stringify(found));
