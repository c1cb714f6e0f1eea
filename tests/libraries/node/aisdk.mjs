import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

export function connect(url, model) {
  return createOpenAICompatible({ name: "dragoman", baseURL: `${url}/v1`, apiKey: "none" })(model);
}

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
