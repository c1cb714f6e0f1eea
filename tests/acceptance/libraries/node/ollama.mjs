import { Ollama } from "ollama";

export const names = { Ollama };
const TOOL = {
  type: "function",
  function: { name: "look", parameters: { type: "object", properties: { at: { type: "string" } } } },
};

export function connect(url, model) {
  return new Ollama({ host: `${url}`, headers: { authorization: "Bearer none" } });
}

export async function whole(client, model, prompt) {
  return (await client.chat({ model, messages: [{ role: "user", content: prompt }] })).message.content;
}

export async function* streamed(client, model, prompt) {
  const messages = [{ role: "user", content: prompt }];
  for await (const chunk of await client.chat({ model, messages, stream: true })) yield chunk.message.content;
}

export async function tools(client, model, prompt, look) {
  const messages = [{ role: "user", content: prompt }];
  for (;;) {
    const said = (await client.chat({ model, messages, tools: [TOOL] })).message;
    if (!said.tool_calls?.length) return said.content;
    messages.push(said);
    for (const call of said.tool_calls) {
      messages.push({ role: "tool", tool_name: "look", content: look(call.function.arguments.at) });
    }
  }
}
