import { AzureOpenAI } from "openai";

export const names = { AzureOpenAI };
const TOOL = {
  type: "function",
  function: { name: "look", parameters: { type: "object", properties: { at: { type: "string" } } } },
};

export function connect(url, model) {
  return new AzureOpenAI({ endpoint: `${url}`, apiKey: "none", apiVersion: "2024-10-21" });
}

export async function whole(client, model, prompt) {
  const messages = [{ role: "user", content: prompt }];
  return (await client.chat.completions.create({ model, messages })).choices[0].message.content;
}

export async function* streamed(client, model, prompt) {
  const messages = [{ role: "user", content: prompt }];
  const stream = await client.chat.completions.create({ model, messages, stream: true });
  for await (const chunk of stream) yield chunk.choices[0]?.delta?.content ?? "";
}

export async function tools(client, model, prompt, look) {
  const messages = [{ role: "user", content: prompt }];
  for (;;) {
    const said = (await client.chat.completions.create({ model, messages, tools: [TOOL] })).choices[0].message;
    if (!said.tool_calls?.length) return said.content;
    messages.push(said);
    for (const call of said.tool_calls) {
      const content = look(JSON.parse(call.function.arguments).at);
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}
