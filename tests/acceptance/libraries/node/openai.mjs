import OpenAI from "openai";

export function connect(url, model) {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
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
