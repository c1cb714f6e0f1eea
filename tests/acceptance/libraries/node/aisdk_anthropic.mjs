import { createAnthropic } from "@ai-sdk/anthropic";

export { streamed, tools, whole } from "./shared/aisdk.mjs";
export const names = { createAnthropic };

export function connect(url, model) {
  return createAnthropic({ baseURL: `${url}/v1`, apiKey: "none" })(model);
}
