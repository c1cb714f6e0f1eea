import { GoogleGenAI } from "@google/genai";

export const names = { GoogleGenAI };
const LOOK = {
  name: "look",
  parametersJsonSchema: { type: "object", properties: { at: { type: "string" } }, required: ["at"] },
};

export function connect(url, model) {
  return new GoogleGenAI({ apiKey: "none", httpOptions: { baseUrl: `${url}` } });
}

export async function whole(client, model, prompt) {
  return (await client.models.generateContent({ model, contents: prompt })).text;
}

export async function* streamed(client, model, prompt) {
  for await (const chunk of await client.models.generateContentStream({ model, contents: prompt })) yield chunk.text ?? "";
}

export async function tools(client, model, prompt, look) {
  const contents = [{ role: "user", parts: [{ text: prompt }] }];
  for (;;) {
    const config = { tools: [{ functionDeclarations: [LOOK] }] };
    const reply = await client.models.generateContent({ model, contents, config });
    if (!reply.functionCalls?.length) return reply.text;
    contents.push(reply.candidates[0].content);
    const parts = reply.functionCalls.map(({ id, name, args }) => ({
      functionResponse: { id, name, response: { output: look(args.at) } },
    }));
    contents.push({ role: "user", parts });
  }
}
