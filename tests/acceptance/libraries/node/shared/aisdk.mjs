// What the drivers of the AI SDK share: it is one library, whatever the provider.
import { generateText, isStepCount, jsonSchema, streamText, tool } from "ai";

export async function whole(client, model, prompt) {
  return (await generateText({ model: client, prompt })).text;
}

export async function* streamed(client, model, prompt) {
  // Errors come as parts of the stream.
  for await (const part of streamText({ model: client, prompt, onError() {} }).fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") yield part.text;
  }
}

export async function tools(client, model, prompt, look) {
  const parameters = jsonSchema({ type: "object", properties: { at: { type: "string" } } });
  const looking = tool({ description: "Looks.", inputSchema: parameters, execute: async ({ at }) => look(at) });
  const reply = await generateText({ model: client, prompt, tools: { look: looking }, stopWhen: isStepCount(5) });
  return reply.text;
}
