import { createOpenAI } from "@ai-sdk/openai";

export { streamed, tools, whole } from "./shared/aisdk.mjs";
export const names = { createOpenAI };

export function connect(url, model) {
  return createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" })(model);
}
