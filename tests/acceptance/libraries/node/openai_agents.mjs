import { Agent, OpenAIProvider, Runner, tool } from "@openai/agents";

export const names = { OpenAIProvider, Runner };

export function connect(url, model) {
  return new Runner({ model, modelProvider: new OpenAIProvider({ baseURL: `${url}/v1`, apiKey: "none" }), tracingDisabled: true });
}

const agent = new Agent({ name: "tested" });

export async function whole(client, model, prompt) {
  return (await client.run(agent, prompt)).finalOutput;
}

export async function* streamed(client, model, prompt) {
  const stream = await client.run(agent, prompt, { stream: true });
  for await (const event of stream) {
    if (event.type === "raw_model_stream_event" && event.data.type === "output_text_delta") yield event.data.delta;
  }
  await stream.completed;
}

export async function tools(client, model, prompt, look) {
  const parameters = { type: "object", properties: { at: { type: "string" } }, required: ["at"], additionalProperties: false };
  const looking = tool({ name: "look", description: "Looks.", parameters, execute: async ({ at }) => look(at) });
  return (await client.run(new Agent({ name: "tested", tools: [looking] }), prompt)).finalOutput;
}
