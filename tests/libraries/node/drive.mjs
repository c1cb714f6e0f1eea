// Runs one driver: `node drive.mjs DRIVER URL`; the outcomes are one line of JSON, as of ../drive.py.
const [name, url] = process.argv.slice(2);
const TEXT = "Grüezi mitenand, 你好";
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

async function collect(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return pieces;
}

const driver = await import(`./${name}.mjs`);
const client = driver.connect(url, "m");
const outcome = {
  whole: await driver.whole(client, "m", script({ text: TEXT })),
  streamed: await collect(driver.streamed(client, "m", script({ text: TEXT }))),
  cut: await failed(() =>
    collect(driver.streamed(client, "m", script({ text: "one two three four five six", fault: "reset@3" })))),
  unknown: await failed(() => driver.whole(driver.connect(url, "nobody"), "nobody", script({ text: TEXT }))),
  strayed: [],
};
console.log(JSON.stringify(outcome));
process.exit(0);
