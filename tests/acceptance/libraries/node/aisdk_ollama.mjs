import { createOllama } from "ollama-ai-provider-v2";

export { streamed, tools, whole } from "./shared/aisdk.mjs";
export const names = { createOllama };

export function connect(url, model) {
  return createOllama({ baseURL: `${url}/api`, headers: { authorization: "Bearer none" } })(model);
}
