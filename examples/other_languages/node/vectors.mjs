#!/usr/bin/env node
// Checks these modules with the contract's test vectors, and prints which vectors they do not support.
//
//   node vectors.mjs LAYOUTS     the folder that has `vectors` and `schemas`

import { readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { isDeepStrictEqual } from "node:util";

import { fits, isWhere } from "./agent.mjs";
import { printed } from "./client.mjs";
import { mayRunUntil, promised } from "./heartbeat.mjs";
import * as leases from "./leases.mjs";
import * as names from "./names.mjs";
import { nameTaken } from "./queue.mjs";
import { outcome, stamped } from "./records.mjs";
import { encodeSegment, letterName, QueueKeys, segmentName } from "./segments.mjs";
import { directionKey, joined, seal } from "./session.mjs";
import { ABSENT, ANYTHING } from "./store.mjs";
import { lockOf, versionOf } from "./store_local.mjs";
import { attemptEnded, claim, stopRequested } from "./transitions.mjs";

const SETTINGS = {
  beat_interval: 5, idle_beat_interval: 60, repair_interval: 60, outage_grace: 900, requeue_backoff: 1,
  requeue_backoff_max: 60,
};
const NOT_HERE = Symbol("these modules do not do that");

const [, , layouts] = process.argv;

/** What these modules make of an input, by the file that it is in. */
const MADE = {
  "times": names.timeInName,
  "job-ids": (input) => ("id" in input ? names.jobId(input) : NOT_HERE),
  "pending-entries": names.pendingKey,
  "pending-keys": (key) => names.parsePending(key) !== null,
  "keys": keyOf,
  "local-files": ({ base64, key }) => (key ? lockOf(key) : versionOf(Buffer.from(base64, "base64"))),
  "successors": ({ previous, op, changes }) => plain(stamped({ ...previous, ...changes }, previous, op), "name"),
  "outcomes": outcomeOf,
  "logs": (pieces) => Buffer.concat([...printed(chunkOf(pieces))].map(([, bytes]) => bytes)).toString("base64"),
  "claims": ({ job, attempt, parent, lease }) => plain(claim(job, attempt, parent, lease, SETTINGS), "job"),
  "stops": ({ job, reason, now }) => plain(stopRequested(job, reason, now), "job"),
  "ends": endOf,
  "budgets": budgetsOf,
  "fits": fitsOf,
  "deadlines": ({ now, trusted_until, actor }) => (actor ? NOT_HERE : mayRunUntil(now, trusted_until, SETTINGS)),
  "beats": beatOf,
  "sessions": sessionOf,
  "seals": sealOf,
  "names": ({ name, job, for: owner, now }) => (job || owner || now ? NOT_HERE : nameTaken(name, now)),
  "segments": segmentOf,
  "queue-leases": leaseOf,
  "queue-expiry": (seen) => leases.isFree({ ...seen, owner: "x" }, seen.unchanged_for, seen.updated, seen.now),
  "queue-deliveries": ({ failures, max_deliveries }) => leases.isSpent({ failures: { 0: failures } }, 0, max_deliveries),
  "queue-collecting": collectingOf,
  "dead-letters": ({ segment, item, time }) => letterName(segment, item, time),
};

const WORDS = {
  applied: "applied", superseded: "superseded", rejected: "rejected",
  unsent: "send the same bytes on the same condition again",
};

const conditionOf = (text) => ({ absent: ABSENT, any: ANYTHING })[text] ?? { version: text };
const TIME = Buffer.from("2026-01-01T00:00:00.000000Z ");
const chunkOf = (pieces) => Buffer.concat(pieces.flatMap((text) => [TIME, Buffer.from(text, "base64")]));

function outcomeOf({ op, condition, found, version }) {
  return WORDS[outcome(op, conditionOf(condition), found && { record: found, version })];
}

function segmentOf(items) {
  if (items.includes(null)) return NOT_HERE; // here an item's size says whether it is large
  return encodeSegment(items.map((item) => Buffer.from(item))).data.toString("base64");
}

function keyOf(input) {
  const { job, attempt, number, parent, child, actor, actor_id, namespace, kind, name, host, time, six } = input;
  const queue = new QueueKeys(input.below ?? `queues/${namespace}/${name}~${input.incarnation}/`);
  if (host) return names.agentId(host, time, six);
  if (child) return names.childKey(parent, attempt, child);
  if (kind) return names.nameKey(namespace, kind, name);
  if (actor || actor_id || "part" in input || input.content || input.kept || input.key || input.below?.startsWith("tasks/")) return NOT_HERE;
  if (input.archived) return names.archiveKey(input.archived);
  if (job) return number ? names.logKey(job, attempt, number) : names.resultKey(job, attempt);
  if (input.incarnation) return queue.queue;
  if (input.token) return queue.segment(segmentName(time, input.order, input.token, input.items));
  if (input.segment) return "item" in input ? queue.large(input.segment, input.item) : queue.lease(input.segment);
  return input.receipt ? queue.receiptAt(input.receipt, time, six) : queue.finishedAt(time, six);
}

function fitsOf({ spec, shape = names.shape(spec), ...agent }) {
  if (spec?.environment?.python) return NOT_HERE;
  return fits(names.parseShape(shape), agent) && isWhere(spec ?? {}, agent);
}

function beatOf({ busy, live_agents }) {
  const interval = promised(busy, live_agents, SETTINGS);
  return { interval, trusted_for: 3 * interval, declared_dead_after: 5 * interval };
}

function sessionOf(input) {
  const [up, down] = ["up", "down"].map((direction) => sessionKey(direction, input));
  return {
    key_to_server: up.toString("hex"), key_to_client: down.toString("hex"), proof_of_server: seal(down, 0, "proof"),
    proof_of_client: seal(up, 0, "proof"), proof_of_client_for_json: seal(up, 0, "json"),
  };
}

function sealOf({ direction, position, path: place, body, ...input }) {
  return seal(sessionKey({ to_server: "up", to_client: "down" }[direction], input), position, joined(place, body));
}

const sessionKey = (direction, { secret, client_nonce, server_nonce, identity, fingerprint = "" }) =>
  directionKey(Buffer.from(secret, "base64"), direction, client_nonce, server_nonce, identity, fingerprint);

function endOf({ job, ended_before_sigterm, restarts, now, ...end }) {
  if (restarts || job.spec.actor) return NOT_HERE;
  const write = attemptEnded(job, { ...end, byRequest: !ended_before_sigterm }, now, SETTINGS);
  return write ? plain({ write }, "job") : { discard: true };
}

function budgetsOf({ spec, ends }) {
  if (ends.some(({ kind }) => kind === "lost")) return NOT_HERE; // only the reconciler's pass writes that
  let job = { id: "a-1", spec: { name: "a", ...spec }, status: "pending" };
  return ends.map(({ kind, host }, index) => {
    const now = 1767225600 + 100 * index;
    const lease = { agent: "h-1", host, since: now };
    const running = { ...job, status: "running", lease, started_at: now };
    job = attemptEnded(running, { agent: "h-1", attempt: job.attempt ?? 1, exit: { kind } }, now, SETTINGS);
    const { status, attempt, failures = 0, preemptions = 0, agent_deaths = 0, start_failures = 0, avoid_hosts = [] } = job;
    const counted = { status, attempt, failures, preemptions, agent_deaths, start_failures, avoid_hosts };
    return status === "pending" ? { ...counted, wait: job.not_before - now } : counted;
  });
}

function leaseOf({ lease, do: action, item, items, time, problem }) {
  const claimed = { owner: "second", holder: "h/2", timeout: 10 };
  const made = {
    "claim": () => claimed,
    "take": () => leases.taken(lease, claimed),
    "complete": () => leases.completed("first", items)(lease),
    "count": () => leases.counted("first", item)(lease),
    "cancel": () => leases.released("first")(leases.completed("first", items)(lease)),
    "release": () => leases.released(lease.owner)(lease),
    "dead letter": () => leases.deadLettered("first", item, time, 0)(lease),
    "set aside": () => leases.setAside("first", problem)(lease),
  };
  return plain(made[action](), "queue-lease");
}

function collectingOf({ named, now, quarantine }) {
  return {
    landed_now_looks_late: leases.looksLate(named, now, quarantine),
    whoever_finished_it_may_collect_its_lease: now >= leases.collectableAt(named, quarantine),
    anybody_may: now >= leases.collectableByAllAt(named, quarantine),
    what_was_noted_then_may_go: now >= leases.forgettableAt(named, quarantine),
  };
}

/** A record as vectors have it: fields that have their default are left out, at every depth. */
function plain(value, schema) {
  const { $defs, $ref } = JSON.parse(readFileSync(path.join(layouts, "schemas", `${schema}.json`), "utf8"));
  const definition = (node) => {
    if (node?.$ref) return $defs[node.$ref.split("/").pop()];
    return node?.anyOf ? definition(node.anyOf[0]) : node;
  };
  const strip = (item, node) => {
    const { properties = {}, items, additionalProperties } = definition(node) ?? {};
    if (Array.isArray(item)) return item.map((element) => strip(element, items));
    if (item === null || typeof item !== "object") return item;
    const isKept = ([name, field]) => field !== undefined && !isDefault(field, properties[name]);
    const kept = Object.entries(item).filter(isKept);
    const stripped = kept.map(([name, field]) => [name, strip(field, properties[name] ?? additionalProperties)]);
    return Object.fromEntries(stripped);
  };
  return value && ("write" in value ? { write: strip(value.write, { $ref }) } : strip(value, { $ref }));
}

/** Texts for people may be in other words: where the vectors leave them out, so are ours. */
function withoutWords(made, expected) {
  const [ours, theirs] = [made?.write ?? made, expected?.write ?? expected];
  for (const [part, words] of [["exit", "message"], ["stop", "reason"]]) {
    if (ours?.[part] && theirs?.[part] && !(words in theirs[part])) delete ours[part][words];
  }
  return made;
}

const isDefault = (field, node) => node !== undefined && "default" in node && isDeepStrictEqual(field, node.default);

let wrong = 0;
const counts = { agree: 0, "not here": 0 };
for (const file of readdirSync(path.join(layouts, "vectors")).sort()) {
  const about = path.basename(file, ".json");
  const { cases } = JSON.parse(readFileSync(path.join(layouts, "vectors", file), "utf8"));
  for (const { case: title, input, expected } of cases) {
    const made = MADE[about] ? MADE[about](input) : NOT_HERE;
    if (made === NOT_HERE) counts["not here"] += 1;
    else if (isDeepStrictEqual(withoutWords(made, expected), expected)) counts.agree += 1;
    else {
      wrong += 1;
      console.log(`${about}, ${title}:\n  expected ${JSON.stringify(expected)}\n  made     ${JSON.stringify(made)}`);
    }
  }
}
console.log(JSON.stringify({ wrong, ...counts }));
process.exitCode = wrong ? 1 : 0;
