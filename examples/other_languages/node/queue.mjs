#!/usr/bin/env node
// A queue of JSON items: producers and consumers in any language share it.
//
//   node queue.mjs ROOT NAMESPACE NAME push           pushes each line of standard input, which is JSON
//   node queue.mjs ROOT NAMESPACE NAME pop [--drain]  prints each item as a line, which acknowledges it;
//                                                     with --drain it ends once the queue is empty

import { createInterface } from "node:readline";

import { isProgram, openCluster } from "./cluster.mjs";
import { Consumer } from "./consumer.mjs";
import { nameKey, randomDigits } from "./names.mjs";
import { createOnce, stamped } from "./records.mjs";
import { encodeSegment, QueueKeys, segmentName } from "./segments.mjs";
import { ANYTHING } from "./store.mjs";

const QUARANTINE = 60; // the schema's defaults
const MAX_DELIVERIES = 5;
const BATCH = 250; // items that are stored together
const BELL_INTERVAL = 1;
const LATEST = 30; // quarantines after which a push starts again

export class Queue {
  #token = randomDigits(6);
  #last = { at: 0, order: 0 };
  #rungAt = -Infinity;

  constructor({ store, records }, folder, { quarantine = QUARANTINE, max_deliveries = MAX_DELIVERIES }) {
    Object.assign(this, { store, records, quarantine, maxDeliveries: max_deliveries });
    this.keys = new QueueKeys(folder);
  }

  /** Pushes values. They are in the queue once this has returned. */
  async push(values) {
    for (let at = 0; at < values.length; at += BATCH) {
      const items = values.slice(at, at + BATCH).map((value) => Buffer.from(JSON.stringify(value)));
      while (!(await this.#pushed(items)));
    }
    await this.#ring();
  }

  /** Stores a segment; whether it counts: one whose large items took too long may be gone already. */
  async #pushed(items) {
    const at = this.store.now();
    const name = segmentName(...this.#moment(at), this.#token, items.length);
    const { data, large } = encodeSegment(items);
    for (const item of large) await createOnce(this.store, this.keys.large(name, item), items[item]);
    await createOnce(this.store, this.keys.segment(name), data);
    return !large.length || this.store.now() - at < LATEST * this.quarantine;
  }

  /** A time and an order in it that this producer has not used. */
  #moment(seconds) {
    const at = Math.max(Math.round(seconds * 1000), this.#last.at);
    const order = at === this.#last.at ? this.#last.order + 1 : 0;
    this.#last = order < 32 ** 3 ? { at, order } : { at: at + 1, order: 0 };
    return [this.#last.at / 1000, this.#last.order];
  }

  /** Tells those who wait. A hint; where listing costs nothing, everybody lists. */
  async #ring() {
    if (this.store.isLocal || performance.now() < this.#rungAt + BELL_INTERVAL * 1000) return;
    this.#rungAt = performance.now();
    const doorbell = JSON.stringify(stamped({ rung_at: this.store.now() }));
    await this.store.write(this.keys.doorbell, doorbell, ANYTHING).catch(() => {});
  }
}

/** Opens the queue of that name; makes it if there is none. */
export async function openQueue(cluster, namespace, name) {
  const { record } = await taken(cluster, nameKey(namespace, "queue", name));
  const folder = `queues/${namespace}/${name}~${record.incarnation ?? 1}/`;
  const made = await cluster.records.create(`${folder}queue.json`, { created_at: cluster.store.now() });
  if ((made.record.layout ?? 1) !== 1) throw new Error(`${folder}queue.json has an unknown layout`);
  return new Queue(cluster, folder, made.record);
}

/** The record of a name that is held, if need be from now on. */
async function taken({ store, records }, key) {
  const since = store.now();
  const held = await records.change(key, (record) => nameTaken(record, since));
  return held ?? records.create(key, nameTaken(null, since));
}

/** What takes a queue's name now, which needs no job; nothing if it is held. */
export function nameTaken(record, since) {
  if (!record) return { since };
  if (record.state !== "free") return null;
  return { ...record, state: "held", job: "", incarnation: (record.incarnation ?? 1) + 1, attempt: 0, since };
}

async function main([root, namespace, name, action, option]) {
  const queue = await openQueue(await openCluster(root), namespace, name);
  if (action === "push") {
    let values = [];
    for await (const line of createInterface({ input: process.stdin })) {
      values.push(JSON.parse(line));
      if (values.length === BATCH) await queue.push(values.splice(0));
    }
    await queue.push(values);
  } else if (action === "pop") {
    const consumer = new Consumer(queue);
    for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => consumer.stop());
    await consumer.run((item) => console.log(JSON.stringify(item)), { drain: option === "--drain" });
  } else {
    throw new Error(`${action} is none of: push, pop`);
  }
}

if (isProgram(import.meta.url)) await main(process.argv.slice(2));
