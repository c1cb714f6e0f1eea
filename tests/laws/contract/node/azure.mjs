// Drives the unmodified `@azure-rest/ai-inference` and its `@azure/core-sse`; prints a JSON line a case.
// Usage: node azure.mjs ENDPOINT LIMITED_ENDPOINT: behind the second, one request is allowed.
import ModelClient, { isUnexpected } from "@azure-rest/ai-inference";
import { AzureKeyCredential } from "@azure/core-auth";
import { createSseStream } from "@azure/core-sse";

const open = (endpoint) =>
  ModelClient(endpoint, new AzureKeyCredential("K"), { allowInsecureConnection: true, retryOptions: { maxRetries: 0 } });
const client = open(process.argv[2]);
const said = (script) => [{ role: "user", content: "sim:" + JSON.stringify(script) }];
const post = (body, path = "/chat/completions", via = client) => via.path(path).post({ body });
const tool = { type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } };

class Unexpected extends Error {
  constructor(response) {
    super(response.body.message);
    this.told = [Number(response.status), response.headers["x-ms-error-code"], response.body.error, response.body.detail?.loc];
  }
}

async function whole(body, path, via) {
  const response = await post(body, path, via);
  if (isUnexpected(response)) throw new Unexpected(response);
  return response.body;
}

async function* streamed(body, via) {
  const response = await post({ ...body, stream: true }, undefined, via).asNodeStream();
  if (response.status !== "200") return void (yield [response.status, response.headers["x-ms-error-code"]]);
  for await (const event of createSseStream(response.body)) {
    if (event.data === "[DONE]") return;
    yield JSON.parse(event.data);
  }
  yield "no [DONE]";
}

async function text(body, via) {
  let found = "";
  let finish = null;
  for await (const chunk of streamed(body, via)) {
    if (chunk.error) return [found, chunk.error.code];
    if (!chunk.choices) return chunk;
    found += chunk.choices[0]?.delta.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
  }
  return [found, finish];
}

const cases = {
  async plain() {
    const reply = await whole({ messages: said({ text: "Grüezi 👋🏽" }) });
    return [reply.model, reply.choices[0].message.content, reply.choices[0].finish_reason, reply.usage.total_tokens > 0];
  },
  streamed: () => text({ messages: said({ pieces: ["a", "\u2028b"] }) }),
  async tools() {
    const messages = said({ tool_calls: [{ name: "weather", arguments: '{"city": "Bern"}' }] });
    const reply = await whole({ messages, tools: [tool] });
    const call = reply.choices[0].message.tool_calls[0];
    return [reply.choices[0].finish_reason, call.function.name, call.function.arguments];
  },
  async embeddings() {
    const reply = await whole({ input: ["x", "y"], dimensions: 4 }, "/embeddings");
    return [reply.data.length, reply.data[0].embedding.length, reply.usage.prompt_tokens > 0];
  },
  async info() {
    const response = await client.path("/info").get();
    return [response.body.model_name, response.body.model_type];
  },
  unknown_model: () => whole({ model: "nobody", messages: said({ text: "a" }) }),
  bad_parameter: () => whole({ messages: said({ text: "a" }), temperature: 3 }),
  no_messages: () => whole({ messages: [] }),
  worker_failed: () => whole({ messages: said({ text: "a", fault: "status:500" }) }),
  async limited() {
    const via = open(process.argv[3]);
    await whole({ messages: said({ text: "a" }) }, undefined, via);
    return whole({ messages: said({ text: "a" }) }, undefined, via);
  },
  error_frame_first: () => text({ messages: said({ text: "a", fault: "error-frame" }) }),
  error_frame_mid_stream: () => text({ messages: said({ pieces: ["a", "b", "c"], fault: "error-frame@2" }) }),
  async reset_mid_stream() {
    let found = "";
    try {
      for await (const chunk of streamed({ messages: said({ pieces: ["a", "b", "c"], fault: "reset@2" }) }))
        found += chunk.choices?.[0]?.delta.content ?? "";
    } catch (error) {
      return [found, error.name];
    }
    return [found, "ended"];
  },
  async keepalives() {
    return text({ messages: said({ pieces: ["a", "b"], fault: "stall:0.3@1" }) }, open(process.argv[4]));
  },
};

for (const [name, run] of Object.entries(cases)) {
  let outcome;
  try {
    outcome = { returned: await run() };
  } catch (error) {
    outcome = { raised: error.told ?? error.message };
  }
  console.log(JSON.stringify({ name, ...outcome }));
}
process.exit(0); // the client keeps connections open, and a cut reply's
