import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

export { streamed, whole } from "./shared/aisdk.mjs";

export function connect(url, model) {
  return createOpenAICompatible({ name: "dragoman", baseURL: `${url}/v1`, apiKey: "none" })(model);
}
