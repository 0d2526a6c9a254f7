// The official client for Node, unmodified, against a running `weir up examples/quickstart` (WEIR_URL). WEIR_NODE is a folder with the package.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import test from "node:test";

const require = createRequire(`${process.env.WEIR_NODE}/`);
const OpenAI = require("openai");
const { toFile } = OpenAI;
const client = new OpenAI({ baseURL: `${process.env.WEIR_URL}/v1`, apiKey: "acme-dev-key", maxRetries: 0 });
const model = "tiny-chat";

test("a chat answers whole and streamed", async () => {
  const body = { model, messages: [{ role: "user", content: "Name a primary colour." }], temperature: 0 };
  const whole = await client.chat.completions.create(body);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
});

test("a response is streamed, resumed anywhere, shown and cancelled", async () => {
  const events = [];
  const body = { model, input: "Spell the word house.", temperature: 0, background: true };
  for await (const event of await client.responses.create({ ...body, stream: true })) events.push(event);
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, place) => place));
  assert.equal(events.at(-1).type, "response.completed");
  const id = events[0].response.id;
  for (const after of [0, 3, events.length - 2]) {
    const rest = [];
    const query = { stream: true, starting_after: after };
    for await (const event of await client.responses.retrieve(id, query)) rest.push(event);
    assert.deepEqual(rest, events.slice(after + 1));
  }
  const shown = await client.responses.retrieve(id);
  assert.equal(shown.output_text, events.at(-1).response.output[0].content[0].text);
  assert.equal((await client.responses.cancel(id)).status, "completed");
});

test("a batch has a result for each line", async () => {
  const line = (name) =>
    JSON.stringify({
      custom_id: name, method: "POST", url: "/v1/responses",
      body: { model, input: "Say hello.", max_output_tokens: 4, temperature: 0 },
    });
  const text = ["a", "b", "c"].map(line).join("\n");
  const file = await client.files.create({ file: await toFile(Buffer.from(text), "in.jsonl"), purpose: "batch" });
  let batch = await client.batches.create({ input_file_id: file.id, endpoint: "/v1/responses", completion_window: "24h" });
  for (let look = 0; look < 600 && batch.status !== "completed"; look++) {
    await new Promise((done) => setTimeout(done, 100));
    batch = await client.batches.retrieve(batch.id);
  }
  assert.equal(batch.status, "completed");
  const output = await (await client.files.content(batch.output_file_id)).text();
  const names = output.trim().split("\n").map((record) => JSON.parse(record).custom_id);
  assert.deepEqual(names, ["a", "b", "c"]);
});

test("what is not here is refused with its own code", async () => {
  await assert.rejects(client.embeddings.create({ model, input: "x" }), (error) => {
    assert.equal(error.status, 404);
    assert.equal(error.code, "unsupported_endpoint");
    return true;
  });
});
