import ModelClient, { isUnexpected } from "@azure-rest/ai-inference";
import { AzureKeyCredential } from "@azure/core-auth";
import { createSseStream } from "@azure/core-sse";

export function connect(url, model) {
  return ModelClient(`${url}/azure`, new AzureKeyCredential("none"), { allowInsecureConnection: true });
}

// The library raises nothing: its user asks `isUnexpected`, and looks for `error` in a stream.
const named = (name, said) => Object.assign(new Error(said), { name });
const body = (model, prompt, stream) => ({ body: { model, messages: [{ role: "user", content: prompt }], stream } });

export async function whole(client, model, prompt) {
  const reply = await client.path("/chat/completions").post(body(model, prompt, false));
  if (isUnexpected(reply)) throw named("isUnexpected", reply.body.message);
  return reply.body.choices[0].message.content;
}

export async function* streamed(client, model, prompt) {
  const reply = await client.path("/chat/completions").post(body(model, prompt, true)).asNodeStream();
  for await (const event of createSseStream(reply.body)) {
    if (event.data === "[DONE]") return;
    const chunk = JSON.parse(event.data);
    if (chunk.error) throw named("error", chunk.error.message);
    for (const choice of chunk.choices) yield choice.delta.content ?? "";
  }
}
