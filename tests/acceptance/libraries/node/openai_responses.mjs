import OpenAI from "openai";

export const names = { OpenAI };
const TOOL = {
  type: "function",
  name: "look",
  parameters: { type: "object", properties: { at: { type: "string" } } },
  strict: false,
};

export function connect(url, model) {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
}

export async function whole(client, model, prompt) {
  return (await client.responses.create({ model, input: prompt })).output_text;
}

export async function* streamed(client, model, prompt) {
  for await (const event of await client.responses.create({ model, input: prompt, stream: true })) {
    if (event.type === "response.output_text.delta") yield event.delta;
  }
}

export async function tools(client, model, prompt, look) {
  const input = [{ role: "user", content: prompt }];
  for (;;) {
    const reply = await client.responses.stream({ model, input, tools: [TOOL] }).finalResponse();
    const calls = reply.output.filter((item) => item.type === "function_call");
    if (!calls.length) return reply.output_text;
    input.push(...reply.output);
    for (const call of calls) {
      const output = look(JSON.parse(call.arguments).at);
      input.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
}
