// Consumer: takes one segment of a queue at a time, hands its items out one by one, and removes finished segments.

import os from "node:os";

import * as leases from "./leases.mjs";
import { randomDigits, timeOfName } from "./names.mjs";
import { createOnce } from "./records.mjs";
import { decodeSegment, encodeSegment, letterName, parseSegmentName, QueueKeys } from "./segments.mjs";
import { insist, sleep } from "./store.mjs";

const FRESH = 0.6; // share of its lease's time-out in which an item may be handed out
const POLL = { local: 0.1, bucket: 1 }; // seconds between polls of a queue that was empty
const LIST_AT_LEAST = 30; // seconds between listings, even if the doorbell does not ring
const LATEST = 30; // quarantines for which a dead letter's name may be used

const monotonic = () => performance.now() / 1000;

export class Consumer {
  #seen = new Map(); // by segment: {version, since} of a lease that another holds
  #lone = new Map(); // by segment: since when only its lease was seen
  #foreign = new Set(); // segments with items that are not JSON
  #finished = []; // {name, at}: segments that this consumer finished, and when their leases may be removed
  #doorbell = null;
  #listedAt = -Infinity;
  #isStopping = false;

  /** `timeout`: seconds after which others take over what a consumer that died had; it renews while it lives. */
  constructor(queue, timeout = leases.TIMEOUT) {
    Object.assign(this, { queue, timeout, store: queue.store, records: queue.records, keys: queue.keys });
    this.holder = `${os.hostname()} ${process.pid}`;
    this.digits = randomDigits(8); // the owners of all its claims begin with them
  }

  /** Ends `run` after the item that is out. */
  stop() {
    this.#isStopping = true;
  }

  /**
   * Calls `handle(item)` for each item; it is acknowledged when that returns, and comes back when it throws, until it
   * has failed too often and is a dead letter. With `drain`, ends once the queue holds nothing.
   */
  async run(handle, { drain = false } = {}) {
    while (!this.#isStopping) {
      const { held, left } = await this.#takeNext();
      if (held) await this.#consume(held, handle);
      else if (drain && !left) return;
      else await this.#wait(left);
      await this.#collect();
    }
  }

  /** Waits for something to come; `left`: others hold something that may come back. */
  async #wait(left) {
    await sleep(this.store.isLocal ? POLL.local : POLL.bucket);
    if (this.store.isLocal) return;
    while (!this.#isStopping && !left && monotonic() < this.#listedAt + LIST_AT_LEAST) {
      const doorbell = await this.records.read(this.keys.doorbell, this.#doorbell);
      if (doorbell && doorbell.version !== this.#doorbell) {
        this.#doorbell = doorbell.version;
        return;
      }
      await sleep(POLL.bucket);
    }
  }

  // Taking ------------------------------------------------------------------------------------------------------------

  /** {held}: a segment that is this consumer's now; or {left}: how many segments the queue holds for others. */
  async #takeNext() {
    const { segments, leased } = await this.#list();
    for (const name of segments) {
      if (this.#foreign.has(name)) continue;
      const lease = leased.has(name) ? await this.#takeOver(name) : await this.#claim(name);
      const held = lease && (await this.#open(name, lease));
      if (held) return { held };
    }
    return { left: segments.length };
  }

  /** The queue's segments in order, and which have a lease. */
  async #list() {
    this.#listedAt = monotonic();
    const segments = [];
    const leased = new Set();
    for await (const key of this.store.list(this.keys.segments)) {
      const found = this.keys.parse(key);
      if (found?.isLease) leased.add(found.name);
      else if (found) segments.push(found.name);
    }
    this.#noteLone([...leased].filter((name) => !segments.includes(name)));
    return { segments, leased };
  }

  #fresh() {
    return { owner: this.digits + randomDigits(16), holder: this.holder, timeout: this.timeout };
  }

  async #claim(name) {
    const sent = monotonic();
    const made = await this.records.create(this.keys.lease(name), this.#fresh());
    return made.applied ? { ...made, sent } : null;
  }

  /** Takes a lease that was released or has run out, by its version standing still or by the storage's clock. */
  async #takeOver(name) {
    const key = this.keys.lease(name);
    const found = await insist(() => this.store.read(key));
    if (!found) return null;
    const lease = leases.parsed(found.data);
    if (!lease || lease.problem) return null;
    const { version } = found;
    if (this.#seen.get(name)?.version !== version) this.#seen.set(name, { version, since: monotonic() });
    const unchangedFor = monotonic() - this.#seen.get(name).since;
    if (!leases.isFree(lease, unchangedFor, found.updated, this.store.now())) return null;
    const isFinished = lease.owner && (await this.#hasReceipt(name, lease.owner));
    const sent = monotonic();
    const fresh = this.#fresh();
    const next = (now) => (isFinished ? leases.closed(now, fresh, parseSegmentName(name).items) : leases.taken(now, fresh));
    const made = await this.records.change(key, (now) => (now.op === lease.op ? next(now) : null));
    if (isFinished) return null;
    return made?.applied ? { ...made, sent } : null;
  }

  /** Whether a receipt says that this claim has done the segment. Asked once its lease has run out. */
  async #hasReceipt(name, owner) {
    for await (const key of this.store.list(this.keys.receiptsOf(owner))) {
      const receipt = await this.records.read(key);
      if (receipt?.record.done?.[owner]?.includes(name)) return true;
    }
    return false;
  }

  /** Reads a segment whose lease was just taken; null if there is nothing to hand out. */
  async #open(name, { record: lease, version, sent }) {
    this.#seen.delete(name);
    const held = { name, lease, owner: lease.owner, sent, done: new Set() };
    const found = await insist(() => this.store.read(this.keys.segment(name)));
    if (!found || (await this.#landedAgain(name, found))) {
      await this.store.remove(this.keys.lease(name), version);
      return null;
    }
    try {
      Object.assign(held, decodeSegment(name, found.data));
    } catch (error) {
      await this.#change(held, leases.setAside(held.owner, String(error.message)));
      return null;
    }
    if (held.encoding === "json") return held;
    this.#foreign.add(name);
    await this.#change(held, leases.released(held.owner));
    return null;
  }

  /** Whether a write that was under way for long made a finished segment anew; then it is deleted. */
  async #landedAgain(name, { version, updated }) {
    const { at } = parseSegmentName(name);
    if (!leases.looksLate(at, updated, this.queue.quarantine)) return false;
    for await (const key of this.store.list(this.keys.finished, this.keys.finishedAt(at).slice(0, -6))) {
      const list = await this.records.read(key);
      if (!list?.record.segments.includes(name)) continue;
      await this.store.remove(this.keys.segment(name), version);
      return true;
    }
    return false;
  }

  // Handing out -------------------------------------------------------------------------------------------------------

  /** Hands out what is left of a segment; gives it back if something failed or was not handed out. */
  async #consume(held, handle) {
    const renewal = setInterval(() => this.#renew(held).catch(() => {}), (this.timeout / 3) * 1000);
    try {
      for (const item of held.items.keys()) {
        if (this.#isStopping || !held.lease) break;
        if (!leases.isDone(held.lease, item)) await this.#deliver(held, item, handle);
      }
    } finally {
      clearInterval(renewal);
      await this.#complete(held);
    }
    const isFinished = held.lease && leases.isFinished(held.lease, held.items.length);
    if (isFinished) await this.#finish(held.name);
    else if (held.lease) await this.#change(held, leases.released(held.owner));
  }

  async #deliver(held, item, handle) {
    const { maxDeliveries } = this.queue;
    if (leases.isSpent(held.lease, item, maxDeliveries)) return this.#deadLetter(held, item, "its deliveries failed");
    if (held.lease.suspect) await this.#change(held, leases.counted(held.owner, item));
    else if (monotonic() > held.sent + FRESH * this.timeout) await this.#renew(held);
    if (!held.lease) return;
    const bytes = await this.#bytes(held, item);
    try {
      await handle(JSON.parse(bytes.toString()));
    } catch (error) {
      if (!held.lease.suspect) await this.#change(held, leases.counted(held.owner, item));
      if (held.lease && leases.isSpent(held.lease, item, maxDeliveries)) await this.#deadLetter(held, item, String(error));
      return;
    }
    held.done.add(item);
    if (held.lease?.suspect) await this.#complete(held);
  }

  async #bytes(held, item) {
    if (held.items[item]) return held.items[item];
    const key = this.keys.large(held.name, item);
    const found = await insist(() => this.store.read(key));
    if (!found) throw new Error(`${key}, a large item, is missing`);
    return found.data;
  }

  #renew(held) {
    return held.done.size ? this.#complete(held) : this.#change(held, leases.renewed(held.owner));
  }

  /** Acknowledges what was done since the last time. */
  async #complete(held) {
    const done = [...held.done];
    if (!done.length || !held.lease) return;
    await this.#change(held, leases.completed(held.owner, done));
    for (const item of done) held.done.delete(item);
  }

  /** Changes the lease; `held.lease` is null from the moment that it is another's. */
  async #change(held, decide) {
    const sent = monotonic();
    const made = await this.records.change(this.keys.lease(held.name), decide);
    held.lease = made?.applied && made.record.owner === held.owner ? made.record : null;
    if (held.lease) held.sent = sent;
  }

  /** Makes an item a dead letter, and completes it. */
  async #deadLetter(held, item, reason) {
    const now = this.store.now();
    await this.#change(held, leases.deadLettered(held.owner, item, now, now - LATEST * this.queue.quarantine));
    if (!held.lease) return;
    const dead = new QueueKeys(`${this.keys.folder}dead-letters/`);
    await this.records.create(dead.queue, { quarantine: this.queue.quarantine, max_deliveries: 0, created_at: now });
    const name = letterName(held.name, item, held.lease.dead_lettered_at[item]);
    const bytes = await this.#bytes(held, item);
    const letter = { reason, segment: held.name, item, deliveries: leases.failuresOf(held.lease, item) };
    const { data, large } = encodeSegment([bytes], letter);
    for (const number of large) await createOnce(this.store, dead.large(name, number), bytes);
    await createOnce(this.store, dead.segment(name), data);
    held.done.add(item);
    await this.#complete(held);
  }

  // Tidying up --------------------------------------------------------------------------------------------------------

  /** Removes a segment all of whose items are done. Its lease stays until no late write can bring the segment back. */
  async #finish(name) {
    const found = await insist(() => this.store.read(this.keys.segment(name)));
    const items = found ? decodeSegment(name, found.data).items : [];
    for (const [item, bytes] of items.entries()) if (!bytes) await this.store.remove(this.keys.large(name, item));
    if (found) await this.store.remove(this.keys.segment(name), found.version);
    this.#finished.push({ name, at: leases.collectableAt(parseSegmentName(name).at, this.queue.quarantine) });
  }

  /** A lease without a segment is of a claim that found nothing, or finished by one who did not live to remove it. */
  #noteLone(names) {
    const before = this.#lone;
    this.#lone = new Map(names.map((name) => [name, before.get(name) ?? monotonic()]));
    const isKnown = new Set(this.#finished.map(({ name }) => name));
    for (const [name, since] of this.#lone) {
      const at = leases.collectableByAllAt(parseSegmentName(name).at, this.queue.quarantine);
      if (!isKnown.has(name) && monotonic() - since > this.queue.quarantine) this.#finished.push({ name, at });
    }
  }

  /** Removes the leases of finished segments, after their names were written down. */
  async #collect() {
    const now = this.store.now();
    const due = this.#finished.filter(({ at }) => at <= now);
    if (!due.length) return;
    this.#finished = this.#finished.filter(({ at }) => at > now);
    const leasesRead = await Promise.all(due.map(({ name }) => this.records.read(this.keys.lease(name))));
    const segments = due.map(({ name }) => name);
    const done = [];
    for (const [index, name] of segments.entries()) {
      const lease = leasesRead[index]?.record;
      if (!lease) continue;
      const isFinished = leases.isFinished(lease, parseSegmentName(name).items);
      if (isFinished || (lease.owner && (await this.#hasReceipt(name, lease.owner)))) done.push(name);
    }
    if (done.length) await this.#note(done, now);
    for (const [index, name] of segments.entries()) {
      if (done.includes(name)) await this.store.remove(this.keys.segment(name));
      else if (await insist(() => this.store.read(this.keys.segment(name)))) continue;
      if (leasesRead[index]) await this.store.remove(this.keys.lease(name), leasesRead[index].version);
    }
  }

  /** Writes the names of finished segments down, and forgets those that are long past. */
  async #note(segments, now) {
    await createOnce(this.store, this.keys.finishedAt(now), JSON.stringify({ segments }));
    for await (const key of this.store.list(this.keys.finished)) {
      if (leases.forgettableAt(timeOfName(key.slice(this.keys.finished.length)), this.queue.quarantine) > now) return;
      await this.store.remove(key);
    }
  }
}
