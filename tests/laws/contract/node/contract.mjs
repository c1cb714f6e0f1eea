// Drives the unmodified `openai` client for Node and prints what it returns or raises, one JSON line a case.
// Usage: node contract.mjs BASE_URL
import OpenAI from "openai";

const baseURL = process.argv[2];
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 10_000 });
const script = (told) => "sim:" + JSON.stringify(told);
const said = (told) => [{ role: "user", content: script(told) }];
const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } }];

const cases = {
  async plain() {
    const reply = await client.chat.completions.create({ model: "alias", messages: said({ text: "Grüezi 👋🏽" }) });
    return [reply.model, reply.choices[0].message.content, reply.choices[0].finish_reason, reply.usage.total_tokens > 0];
  },
  async streamed() {
    let text = "";
    let finish = null;
    const stream = await client.chat.completions.create({ model: "m", messages: said({ text: "a b c" }), stream: true });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      finish = chunk.choices[0]?.finish_reason ?? finish;
    }
    return [text, finish];
  },
  async usage() {
    const usages = [];
    const stream = await client.chat.completions.create({
      model: "m", messages: said({ text: "a" }), stream: true, stream_options: { include_usage: true },
    });
    for await (const chunk of stream) if (chunk.usage) usages.push([chunk.choices.length, chunk.usage.total_tokens > 0]);
    return usages;
  },
  async tools() {
    const runner = client.chat.completions.stream({
      model: "m", tools, messages: said({ tool_calls: [{ name: "weather", arguments: '{"city": "Bern"}' }] }),
    });
    const call = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
    return [call.function.name, call.function.arguments];
  },
  async response() {
    const reply = await client.responses.create({ model: "m", input: script({ text: "Grüezi 👋🏽" }) });
    return [reply.output_text, reply.status, reply.usage.total_tokens > 0];
  },
  async response_stream() {
    const runner = client.responses.stream({
      model: "m", input: script({ reasoning: "hm", text: "a b c", tool_calls: [{ name: "weather", arguments: '{"city": "Bern"}' }] }),
      tools: [{ type: "function", name: "weather", parameters: { type: "object", properties: {} }, strict: false }],
    });
    const reply = await runner.finalResponse();
    return [reply.output_text, reply.output.map((item) => item.type), reply.output[2].arguments];
  },
  async response_unknown_model() {
    await client.responses.create({ model: "nobody", input: "a" });
  },
  async response_reset_mid_stream() {
    const stream = await client.responses.create({
      model: "m", input: script({ text: "one two three four", fault: "reset@2" }), stream: true,
    });
    for await (const event of stream) if (event.type === "response.completed") return "completed";
    return "ended";
  },
  async completions() {
    const reply = await client.completions.create({ model: "m", prompt: [5, 6, 7], max_tokens: 4 });
    return [reply.choices.length, typeof reply.choices[0].text];
  },
  async embeddings() {
    const reply = await client.embeddings.create({ model: "m", input: ["a", "b"] });
    return [reply.data.length, typeof reply.data[0].embedding[0]];
  },
  async models() {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    return names.sort();
  },
  async unknown_model() {
    await client.chat.completions.create({ model: "nobody", messages: said({ text: "a" }) });
  },
  async bad_parameter() {
    await client.chat.completions.create({ model: "m", messages: said({ text: "a" }), temperature: 9 });
  },
  async worker_failed() {
    await client.chat.completions.create({ model: "m", messages: said({ text: "a", fault: "status:500" }) });
  },
  async error_frame_mid_stream() {
    return drain("error-frame@2");
  },
  async reset_mid_stream() {
    return drain("reset@2");
  },
  async cancelled() {
    const stream = await client.chat.completions.create({
      model: "m", messages: said({ text: "a b c", fault: "stall@2" }), stream: true,
    });
    for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
    return "left";
  },
};

async function drain(fault) {
  const stream = await client.chat.completions.create({
    model: "m", messages: said({ text: "one two three four", fault }), stream: true,
  });
  for await (const chunk of stream) if (chunk.choices[0].finish_reason) return "finished";
  return "ended";
}

for (const [name, run] of Object.entries(cases)) {
  let outcome;
  try {
    outcome = { returned: await run() };
  } catch (error) {
    outcome = { raised: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  console.log(JSON.stringify({ name, ...outcome }));
}
