#!/usr/bin/env node
// A client: submits jobs, follows them, stops them, and reads their results.
//
//   node client.mjs ROOT submit [SPEC.json]   submits the spec in the file, or on standard input; prints the job's id
//   node client.mjs ROOT follow JOB           prints the output until the job has ended; fails unless it succeeded
//   node client.mjs ROOT stop JOB [REASON]
//   node client.mjs ROOT result JOB           prints the result: JSON as text, anything else as its bytes

import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";

import { confirmRoot, isProgram, openCluster } from "./cluster.mjs";
import {
  agentKey, ancestorsOfChild, archiveKey, childKey, doorbellKey, jobId, jobKey, logKey, pendingKey,
} from "./names.mjs";
import { stamped } from "./records.mjs";
import { ABSENT, ANYTHING, insist, sleep } from "./store.mjs";
import { hasEnded, stopRequested } from "./transitions.mjs";

/** Submits a spec. Gives the id of its job, which is an earlier one if the spec has an `id` and that was submitted. */
export async function submit(cluster, given) {
  const { store, records, settings } = cluster;
  const parent = given.parent ? await runningParent(records, given.parent) : null;
  const namespace = given.namespace || parent?.spec.namespace;
  const at = store.now();
  const id = jobId({ ...given, namespace }, at);
  const spec = { ...given, namespace: namespace || id };
  const job = { id, spec, status: "pending", submitted_at: at };
  if (parent) {
    job.ancestors = ancestorsOfChild(parent);
    job.parent = { job: parent.id, attempt: parent.attempt ?? 1, detached: spec.detached ?? false };
    if (!spec.detached) await records.create(childKey(parent.id, job.parent.attempt, job.id), { child: job.id });
  }
  const earlier = given.id ? await readJob(records, id) : null;
  if (earlier) return sameJob(id, earlier.record, spec);
  const entry = [pendingKey(job), JSON.stringify(stamped({ job: job.id, attempt: 1 }))];
  await insist(() => store.write(...entry, ABSENT), 3600);
  const { record, applied } = await records.create(jobKey(job.id), job);
  if (!applied) sameJob(id, record, spec);
  if (applied && store.now() - at > settings.quarantine / 2) await insist(() => store.write(...entry, ANYTHING));
  await confirmRoot(cluster); // nobody is told of a job that was written into another cluster
  if (applied) await ring({ store, settings }, spec.pool);
  return job.id;
}

/** The record of a job, unless it has that version still; null if there is none. */
async function readJob(records, id, unless) {
  return (await records.read(jobKey(id), unless)) ?? (await records.read(archiveKey(id)));
}

function sameJob(id, earlier, spec) {
  if (!runsTheSame(earlier.spec, spec)) throw new Error(`${id} exists and runs something else`);
  return id;
}

async function runningParent(records, id) {
  const found = await records.read(jobKey(id));
  if (found?.record.status !== "running") throw new Error(`the parent ${id} does not run`);
  return found.record;
}

function runsTheSame(one, other) {
  const work = ({ parent, detached, user, ...rest }) => rest.entrypoint.callable ? { ...rest, entrypoint: "callable" } : rest;
  return isDeepStrictEqual(work(one), work(other));
}

/** Tells a pool's agents that something waits. A hint: a ring that fails costs time only. */
export async function ring({ store, settings }, pool = "default") {
  const body = JSON.stringify(stamped({ rung_at: store.now(), cluster: settings.cluster_id }));
  await store.write(doorbellKey(pool), body, ANYTHING).catch(() => {});
}

/** Asks that a job end. Gives its record; one that runs ends as soon as its holder has read the wish. */
export async function stop({ store, records }, id, reason = "stopped by a client in Node", by = "user") {
  const found = await records.change(jobKey(id), (job) => stopRequested(job, reason, store.now(), by));
  const job = found?.record ?? (await readJob(records, id))?.record;
  if (!job) throw new Error(`there is no job ${id}`);
  if (job.status === "stopped" && found?.applied) await store.remove(pendingKey(job)).catch(() => {});
  if (job.status === "running") await records.change(agentKey(job.lease.agent), sendMail);
  return job;
}

const ended = (agent) => ["dead", "left"].includes(agent.state);
const sendMail = (agent) => (ended(agent) || agent.mail ? null : { ...agent, mail: true });

/** Waits until a job has ended; `print(stream, bytes)` gets what it writes meanwhile. Gives its record. */
export async function follow({ store, records, settings }, id, print = () => {}) {
  let seen = null;
  for (let next = { attempt: 1, number: 1 }; ; await sleep(settings.poll_interval)) {
    const found = await readJob(records, id, seen?.version);
    if (!found) throw new Error(seen ? `${id} ended and was removed` : `there is no job ${id}`);
    if (found.record) seen = found;
    next = await printNew(store, seen.record, next, print);
    if (hasEnded(seen.record)) return seen.record;
  }
}

/** Prints the chunks of log that are there and not printed yet; gives the place of the next. */
async function printNew(store, job, { attempt, number }, print) {
  for (;;) {
    const key = logKey(job.id, attempt, number);
    const chunk = await insist(() => store.read(key));
    if (!chunk && number <= lastChunk(job, attempt)) {
      // The log is above the job's log_limit: chunks of its middle are not kept.
      print("stderr", Buffer.from("(a part of the log is left out here: it is above its limit)\n"));
      number = await insist(() => nextChunk(store, key));
      continue;
    }
    if (chunk) {
      for (const [stream, bytes] of printed(chunk.data)) print(stream, bytes);
      number += 1;
    } else if (attempt < (job.attempt ?? 1)) {
      [attempt, number] = [attempt + 1, 1];
    } else {
      return { attempt, number };
    }
  }
}

/** The number of the first chunk after the one with this key. */
async function nextChunk(store, key) {
  for await (const later of store.list(key.replace(/\d+$/, ""), key)) return Number(later.match(/\d+$/)[0]);
  return Infinity;
}

/** The pieces of output in a chunk: [stream, bytes], in order. */
export function* printed(chunk) {
  for (let at = 0, end; (end = chunk.indexOf("\n", at)) >= 0; at = end + 1) {
    const line = chunk.subarray(at, end);
    const [, stream, tag] = line.subarray(0, 64).toString("latin1").split(" ");
    const content = line.subarray(line.indexOf(` ${tag} `) + 3);
    if (tag === "L") {
      const start = end + 1;
      end += Number(content.toString());
      yield [stream, chunk.subarray(start, end + 1)];
      continue;
    }
    yield [stream, content];
    if (tag === "F") yield [stream, Buffer.from("\n")];
  }
}

/** The number of an attempt's last chunk, once it has ended; before that 0. */
const lastChunk = (job, attempt) =>
  [...(job.history ?? []), job].find((one) => one.attempt === attempt)?.exit?.log_chunks ?? 0;

/** What a job that succeeded left: a value if it is JSON, else its bytes. Whole numbers above 2^53 are rounded. */
export async function resultOf({ store }, job) {
  const { encoding, value = null, data = "", key } = job.result ?? { encoding: "json" };
  const bytes = key ? (await insist(() => store.read(key))).data : Buffer.from(data, "base64");
  if (encoding !== "json") return bytes;
  return key ? JSON.parse(bytes.toString()) : value;
}

async function main([root, action, ...words]) {
  const cluster = await openCluster(root);
  if (action === "submit") {
    console.log(await submit(cluster, JSON.parse(readFileSync(words[0] ?? 0, "utf8"))));
  } else if (action === "follow") {
    const job = await follow(cluster, words[0], (stream, bytes) => process[stream].write(bytes));
    console.error(`${job.id} ${job.status}: ${job.exit.kind} ${job.exit.message ?? ""}`);
    process.exitCode = job.status === "succeeded" ? 0 : 1;
  } else if (action === "stop") {
    await stop(cluster, ...words);
  } else if (action === "result") {
    const result = await resultOf(cluster, await follow(cluster, words[0]));
    process.stdout.write(Buffer.isBuffer(result) ? result : `${JSON.stringify(result)}\n`);
  } else {
    throw new Error(`${action} is none of: submit, follow, stop, result`);
  }
}

if (isProgram(import.meta.url)) await main(process.argv.slice(2));
