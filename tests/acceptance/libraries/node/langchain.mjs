import { ChatOpenAI } from "@langchain/openai";

export function connect(url, model) {
  return new ChatOpenAI({ model, apiKey: "none", configuration: { baseURL: `${url}/v1` } });
}

export async function whole(client, model, prompt) {
  return (await client.invoke(prompt)).content;
}

export async function* streamed(client, model, prompt) {
  for await (const chunk of await client.stream(prompt)) yield chunk.content;
}
