// LangGraph's own JavaScript client, unmodified, against perdure servers: `node client.mjs sqlite=http://…`.
// Each check prints one line of JSON; a server is killed and started again by whoever reads them.
import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Client } from "@langchain/langgraph-sdk";
import { useStream } from "@langchain/langgraph-sdk/react";
import React from "react";
import TestRenderer, { act } from "react-test-renderer";

const STEPS = ["one", "two", "three"];
const NO_UUID = "00000000-0000-4000-8000-000000000000";
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const collect = async (stream) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
};
const events = (parts) => parts.map((part) => part.event);
const data = (parts, event) => parts.filter((part) => part.event === event).map((part) => part.data);
const fails = (status) => (error) => error.status === status || String(error).includes(String(status));
const newThread = async (client) => (await client.threads.create()).thread_id;

// A page with one hook, without a browser; `until` lets time pass until the page shows something.
globalThis.IS_REACT_ACT_ENVIRONMENT = true;
console.error = () => {};
const page = async (options) => {
  const shown = {};
  const Page = () => {
    shown.stream = useStream({ ...options, onError: (error) => (shown.error = error) });
    return null;
  };
  let root;
  await act(async () => (root = TestRenderer.create(React.createElement(Page))));
  const until = async (test) => {
    const deadline = performance.now() + 30_000;
    while (shown.stream.isLoading || !test(shown.stream)) {
      if (shown.error) throw shown.error;
      if (performance.now() > deadline) throw new Error("the page never showed it");
      await act(() => new Promise((resolve) => setTimeout(resolve, 10)));
    }
    return shown.stream;
  };
  const submit = (...given) => act(async () => void shown.stream.submit(...given));
  return { submit, until, close: () => act(async () => root.unmount()) };
};

const checks = {
  "a thread is created, read, changed, searched for and deleted": async ({ client }) => {
    const mark = crypto.randomUUID();
    const thread = await client.threads.create({ metadata: { mark } });
    await client.threads.update(thread.thread_id, { metadata: { more: 1 } });
    const [found] = await client.threads.search({ metadata: { mark } });
    assert.deepEqual(found.metadata, { mark, more: 1 });
    await client.threads.delete(thread.thread_id);
    await assert.rejects(client.threads.get(thread.thread_id), fails(404));
  },
  "assistants are found": async ({ client }) => {
    const [system] = await client.assistants.search({ graphId: "steps", limit: 1 });
    assert.equal(system.graph_id, "steps");
    assert.equal((await client.assistants.get(system.assistant_id)).assistant_id, system.assistant_id);
  },
  "a run is created and joined": async ({ client }) => {
    const threadId = await newThread(client);
    let made;
    const run = await client.runs.create(threadId, "steps", {
      input: { n: 0 },
      onRunCreated: (found) => (made = found),
    });
    assert.deepEqual(made, { run_id: run.run_id, thread_id: threadId });
    assert.deepEqual(await client.runs.join(threadId, run.run_id), { n: 3, log: STEPS });
    assert.equal((await client.runs.get(threadId, run.run_id)).status, "success");
    assert.deepEqual(await client.runs.list(threadId, { select: ["run_id"] }), [{ run_id: run.run_id }]);
  },
  "a run is awaited, on a thread and without one": async ({ client }) => {
    const threadId = await newThread(client);
    assert.deepEqual(await client.runs.wait(threadId, "steps", { input: { n: 0 } }), { n: 3, log: STEPS });
    assert.deepEqual(await client.runs.wait(null, "steps", { input: { n: 1 } }), { n: 4, log: STEPS });
    await assert.rejects(client.runs.wait(null, "failing", { input: { n: 0 } }), /ValueError/);
  },
  "a run is streamed": async ({ client }) => {
    const threadId = await newThread(client);
    const parts = await collect(
      client.runs.stream(threadId, "steps", { input: { n: 0 }, streamMode: ["values", "updates"] }),
    );
    const wanted = ["metadata", "values"].concat(...STEPS.map(() => ["updates", "values"]));
    assert.deepEqual(events(parts), wanted);
    assert.deepEqual(data(parts, "updates").map(Object.keys), STEPS.map((name) => [name]));
    const told = await collect(
      client.runs.stream(null, "telling", { input: { n: 500 }, streamMode: "custom" }),
    );
    assert.deepEqual(data(told, "custom").map((each) => each.number), [...Array(500).keys()]);
  },
  "messages are streamed in pieces": async ({ client }) => {
    const input = { messages: [{ role: "user", content: "hi" }] };
    const parts = await collect(client.runs.stream(null, "chat", { input, streamMode: "messages-tuple" }));
    const said = data(parts, "messages").map(([chunk]) => chunk.content);
    assert.equal(said.join(""), "hello there friend");
  },
  "a failure is told last": async ({ client }) => {
    const parts = await collect(client.runs.stream(null, "failing", { input: { n: 0 } }));
    assert.equal(parts.at(-1).event, "error");
    assert.equal(parts.at(-1).data.error, "ValueError");
  },
  "a stream is joined, resumed and filtered": async ({ client }) => {
    const threadId = await newThread(client);
    const run = await client.runs.create(threadId, "steps", {
      input: { n: 0 },
      streamMode: ["values", "updates"],
      streamResumable: true,
    });
    const joined = (options) => collect(client.runs.joinStream(threadId, run.run_id, options));
    const parts = await joined({ lastEventId: "-1" });
    assert.equal(new Set(parts.map((part) => part.id)).size, parts.length);
    assert.deepEqual(await joined({ lastEventId: parts[3].id }), parts.slice(4));
    const updates = await joined({ lastEventId: "-1", streamMode: ["updates"] });
    assert.deepEqual(events(updates), ["updates", "updates", "updates"]);
    assert.deepEqual(await joined(), []);
  },
  "a thread's stream tells of its runs": async ({ client }) => {
    const threadId = await newThread(client);
    const run = await client.runs.create(threadId, "steps", { input: { n: 0 } });
    await client.runs.join(threadId, run.run_id);
    const parts = [];
    const leaving = new AbortController();
    const options = { lastEventId: "-1", streamMode: ["lifecycle"], signal: leaving.signal };
    for await (const part of client.threads.joinStream(threadId, options)) {
      parts.push(part.data);
      if (part.data.status === "run_done") break;
    }
    leaving.abort();
    assert.deepEqual(parts.at(-1), { status: "run_done", run_id: run.run_id });
  },
  "a question is answered": async ({ client }) => {
    const threadId = await newThread(client);
    const asked = await client.runs.wait(threadId, "approval", { input: { n: 0 } });
    assert.deepEqual(asked.__interrupt__[0].value, { question: "go on?" });
    const state = await client.threads.getState(threadId);
    assert.deepEqual(state.next, ["ask"]);
    const answered = await client.runs.wait(threadId, "approval", { command: { resume: "yes" } });
    assert.deepEqual(answered.log, ["before", "approved: yes", "after"]);
  },
  "an earlier state is gone on from": async ({ client }) => {
    const threadId = await newThread(client);
    await client.runs.wait(threadId, "steps", { input: { n: 0 } });
    const history = await client.threads.getHistory(threadId);
    const earlier = history.find((state) => state.next[0] === "three");
    const values = await client.runs.wait(threadId, "steps", { checkpoint: earlier.checkpoint });
    assert.deepEqual(values, { n: 3, log: STEPS });
  },
  "a run is cancelled": async ({ client, folder }) => {
    const threadId = await newThread(client);
    const input = { n: 0, until: join(folder, "never") };
    const run = await client.runs.create(threadId, "slow", { input, streamMode: ["updates"] });
    for await (const part of client.runs.joinStream(threadId, run.run_id, { lastEventId: "-1" }))
      if (part.event === "updates") break;
    await client.runs.cancel(threadId, run.run_id, true);
    assert.equal((await client.runs.get(threadId, run.run_id)).status, "interrupted");
    await assert.rejects(client.runs.cancel(threadId, run.run_id), fails(404));
    await client.runs.delete(threadId, run.run_id);
  },
  "what is wrong is refused": async ({ client }) => {
    const threadId = await newThread(client);
    await assert.rejects(client.runs.create(NO_UUID, "steps"), fails(404));
    await assert.rejects(client.runs.create(threadId, "nobody"), fails(422));
    await assert.rejects(client.runs.create(threadId, "steps", { streamMode: "nonsense" }), fails(422));
    await client.runs.create(threadId, "steps", { input: { n: 0 }, afterSeconds: 3600 });
    const strategy = { input: { n: 0 }, multitaskStrategy: "reject" };
    await assert.rejects(client.runs.create(threadId, "steps", strategy), fails(409));
  },
  "a batch is created": async ({ client }) => {
    const runs = await client.runs.createBatch([0, 1].map((n) => ({ assistantId: "steps", input: { n } })));
    const values = await Promise.all(runs.map((run) => client.runs.join(run.thread_id, run.run_id)));
    assert.deepEqual(values.map((each) => each.n), [3, 4]);
  },
  "useStream shows messages as they come": async ({ url }) => {
    const chat = await page({ apiUrl: url, apiKey: key, assistantId: "chat" });
    await chat.submit({ messages: [{ type: "human", content: "hi" }] });
    const { messages } = await chat.until((stream) => stream.messages.length === 2);
    assert.deepEqual(messages.map((each) => each.type), ["human", "ai"]);
    assert.equal(messages[1].content, "hello there friend");
    await chat.close();
  },
  "useStream shows a question and sends its answer": async ({ url }) => {
    const approval = await page({ apiUrl: url, apiKey: key, assistantId: "approval" });
    await approval.submit({ n: 0 });
    const { interrupt } = await approval.until((stream) => stream.interrupt);
    assert.deepEqual(interrupt.value, { question: "go on?" });
    await approval.submit(undefined, { command: { resume: "yes" } });
    const { values } = await approval.until((stream) => stream.values.log?.length === 3);
    assert.deepEqual(values.log, ["before", "approved: yes", "after"]);
    await approval.close();
  },
  "a stream goes on over the death of its server": async ({ client, folder, engine }) => {
    const threadId = await newThread(client);
    const gate = join(folder, "gate");
    const input = { n: 0, top: 30, stop_at: 15, trace: join(folder, "trace"), gate };
    const parts = [];
    const stream = client.runs.stream(threadId, "stairs", {
      input,
      streamMode: ["custom"],
      streamResumable: true,
      durability: "sync",
      config: { recursion_limit: 100 },
    });
    for await (const part of stream) {
      parts.push(part);
      if (part.data.step !== 14) continue;
      console.log(JSON.stringify({ kill: engine }));
      await answers.next();
      writeFileSync(gate, "");
    }
    const ids = parts.map((part) => part.id);
    assert.equal(new Set(ids).size, ids.length);
    assert.deepEqual(data(parts, "custom").map((each) => each.step), [...Array(30).keys()].map((n) => n + 1));
    assert.deepEqual(data(parts, "metadata").map((each) => each.attempt), [1, 2]);
  },
};

const key = process.env.PERDURE_CONFORMANCE_KEY;
for (const target of process.argv.slice(2)) {
  const [engine, url] = target.split(/=(.*)/s);
  for (const [check, action] of Object.entries(checks)) {
    const client = new Client({ apiUrl: url, apiKey: key });
    const folder = mkdtempSync(join(tmpdir(), "perdure-javascript-"));
    const began = performance.now();
    let error = null;
    try {
      await action({ client, folder, engine, url });
    } catch (caught) {
      error = caught.stack ?? String(caught);
    }
    const seconds = (performance.now() - began) / 1000;
    console.log(JSON.stringify({ engine, check, seconds, error }));
  }
}
process.exit(0);
