// Runs one driver: `node drive.mjs DRIVER URL [GIVEN]`; the outcomes are one line of JSON, as of ../drive.py. `names` of a
// driver are what a line of the README needs.
const [name, url, more] = process.argv.slice(2);
const given = JSON.parse(more ?? "null");
const TEXT = "Grüezi mitenand, 你好";
const AT = ["a", "b"];
const MOST = 12;
const script = (said) => "sim:" + JSON.stringify(said);

async function failed(call) {
  try {
    await call();
  } catch (error) {
    const raised = [];
    for (let kind = error?.constructor; kind?.name; kind = Object.getPrototypeOf(kind)) raised.push(kind.name);
    if (error?.name && !raised.includes(error.name)) raised.unshift(error.name);
    return { raised, said: String(error?.message ?? error) };
  }
  return { raised: [], said: "" };
}

async function collect(stream, most = Infinity) {
  const pieces = [];
  for await (const piece of stream) if (pieces.push(piece) >= most) break;
  return pieces;
}

const driver = await import(`./${name}.mjs`);

function connect(model, key = "none") {
  if (!given) return driver.connect(url, model);
  const told = given.line
    .replaceAll("http://127.0.0.1:8080", url)
    .replaceAll('"smollm2"', JSON.stringify(model))
    .replaceAll(/\bnone\b/g, key);
  return new Function(...Object.keys(driver.names), `return ${told}`)(...Object.values(driver.names));
}

async function triedFurther(client) {
  const found = { tools: null };
  if (driver.tools) {
    const seen = [];
    const look = (at) => {
      seen.push(at);
      return `seen ${at}`;
    };
    const calls = AT.map((at) => ({ name: "look", arguments: { at } }));
    const prompt = `Go on. ${script({ rounds: [{ text: "Let me look.", tool_calls: calls }, { text: TEXT }] })}`;
    const last = await driver.tools(client, "m", prompt, look);
    found.tools = [seen, last];
  }
  found.before = await failed(() => collect(driver.streamed(client, "m", script({ fault: "status:500" }))));
  found.expired = await failed(() => driver.whole(connect("m", given.keys.expired), "m", script({ text: TEXT })));
  found.limited = await failed(() => driver.whole(connect("m", given.keys.busy), "m", script({ text: TEXT })));
  return found;
}

if (given?.prompt) {
  const answer = driver.streamed(connect("smollm2"), "smollm2", given.prompt);
  console.log(JSON.stringify({ streamed: await collect(answer, MOST), strayed: [] }));
  process.exit(0);
}
const good = given?.keys.good;
const client = connect("m", good);
const outcome = {
  whole: await driver.whole(client, "m", script({ text: TEXT })),
  streamed: await collect(driver.streamed(client, "m", script({ text: TEXT }))),
  cut: await failed(() =>
    collect(driver.streamed(client, "m", script({ text: "one two three four five six", fault: "reset@3" })))),
  unknown: await failed(() => driver.whole(connect("nobody", good), "nobody", script({ text: TEXT }))),
  ...(given ? await triedFurther(client) : {}),
  strayed: [],
};
console.log(JSON.stringify(outcome));
process.exit(0);
