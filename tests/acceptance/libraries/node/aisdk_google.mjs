import { createGoogleGenerativeAI } from "@ai-sdk/google";

export { streamed, tools, whole } from "./shared/aisdk.mjs";
export const names = { createGoogleGenerativeAI };

export function connect(url, model) {
  return createGoogleGenerativeAI({ baseURL: `${url}/v1beta`, apiKey: "none" })(model);
}
