import * as runtime from "@aws-sdk/client-sagemaker-runtime";

export function connect(url, model) {
  return new runtime.SageMakerRuntimeClient({ endpoint: `${url}/sagemaker` });
}

const asked = (model, prompt, stream) => ({
  EndpointName: model,
  ContentType: "application/json",
  Body: JSON.stringify({ messages: [{ role: "user", content: prompt }], stream }),
});

export async function whole(client, model, prompt) {
  const reply = await client.send(new runtime.InvokeEndpointCommand(asked(model, prompt, false)));
  return JSON.parse(new TextDecoder().decode(reply.Body)).choices[0].message.content;
}

export async function* streamed(client, model, prompt) {
  const command = new runtime.InvokeEndpointWithResponseStreamCommand(asked(model, prompt, true));
  for await (const event of (await client.send(command)).Body) {
    for (const line of new TextDecoder().decode(event.PayloadPart.Bytes).split("\n")) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6)).choices[0].delta.content ?? "";
    }
  }
}
