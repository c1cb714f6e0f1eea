import Anthropic from "@anthropic-ai/sdk";

export const names = { Anthropic };
const TOOL = { name: "look", input_schema: { type: "object", properties: { at: { type: "string" } } } };

export function connect(url, model) {
  return new Anthropic({ baseURL: `${url}`, apiKey: "none" });
}

export async function whole(client, model, prompt) {
  const messages = [{ role: "user", content: prompt }];
  return (await client.messages.create({ model, max_tokens: 100, messages })).content[0].text;
}

export async function* streamed(client, model, prompt) {
  const messages = [{ role: "user", content: prompt }];
  for await (const event of client.messages.stream({ model, max_tokens: 100, messages })) {
    if (event.type === "content_block_delta" && event.delta.type === "text_delta") yield event.delta.text;
  }
}

export async function tools(client, model, prompt, look) {
  const messages = [{ role: "user", content: prompt }];
  for (;;) {
    const reply = await client.messages.stream({ model, max_tokens: 100, messages, tools: [TOOL] }).finalMessage();
    if (reply.stop_reason !== "tool_use") return reply.content[0].text;
    const calls = reply.content.filter((block) => block.type === "tool_use");
    const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: look(call.input.at) }));
    messages.push({ role: "assistant", content: reply.content }, { role: "user", content: results });
  }
}
