#!/usr/bin/env node
// An agent: runs jobs of a pool on this host, beside agents in other languages. It takes commands; jobs that are
// Python callables, actors, have a health check or want an accelerator are left to others, and so is the pass.
//
//   node agent.mjs ROOT [--pool NAME] [--cores N] [--memory BYTES] [--disk BYTES] [--folder PATH]
//
// SIGTERM makes it give its jobs back and leave.

import { promises as fs } from "node:fs";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";

import { ring } from "./client.mjs";
import { isProgram, openCluster } from "./cluster.mjs";
import { agentId, agentKey, doorbellKey, jobKey, parsePending, pendingFolder, pendingKey } from "./names.mjs";
import { stamped } from "./records.mjs";
import { ABSENT, insist, sleep } from "./store.mjs";
import { Task } from "./task.mjs";
import { attemptEnded, claim } from "./transitions.mjs";

const TRUST = 3; // intervals for which an applied beat may be relied on
const MARGIN = 10; // seconds that a task may go on unheard of, while the outage grace lasts

const monotonic = () => performance.now() / 1000;

export class Agent {
  #held = new Map(); // by job id: {attempt, phase, task, wants, listed}
  #trustedUntil = 0;
  #seenBell = null;
  #seenSelf = null;
  #lookAt = 0; // when to look for work next, whether the doorbell rings or not
  #beatAt = 0;
  #startFailures = 0;
  #leaving = false;

  /** `capacity`: {cpu, memory, disk}, in thousandths of a core and in bytes; `folder`: where tasks run. */
  constructor(cluster, { pool = "default", capacity, folder }) {
    Object.assign(this, cluster, { pool, capacity, folder, host: os.hostname() });
  }

  /** Serves until `leave` was called and all jobs are given back. `joined(id)` is called at each start under a new id. */
  async serve(joined = () => {}) {
    await this.#join(joined);
    const heart = setInterval(() => this.#keepTasks(), this.settings.poll_interval * 1000);
    const working = this.#every(() => this.#work());
    await this.#every(() => this.#beatIfDue(joined), () => this.#leaving && !this.#held.size);
    await working;
    clearInterval(heart);
    await this.#beat("left");
  }

  /** Gives all jobs back and ends. */
  leave() {
    this.#leaving = true;
    for (const { task } of this.#held.values()) task?.stop("preempted");
  }

  /** Does something each poll interval until the agent leaves; what it throws is told, and it goes on. */
  async #every(act, isEnough = () => this.#leaving) {
    while (!isEnough()) {
      try {
        await act();
      } catch (error) {
        console.error(error);
      }
      await sleep(this.settings.poll_interval);
    }
  }

  // Heartbeat ---------------------------------------------------------------------------------------------------------

  async #join(joined) {
    const now = this.store.now();
    this.id = agentId(this.host, now);
    const sent = monotonic();
    await this.records.create(agentKey(this.id), {
      id: this.id, host: this.host, pool: this.pool, started_at: now, inbound: false, capacity: this.capacity,
      ...this.#promise(),
    });
    this.#beatWasApplied(sent);
    joined(this.id);
  }

  /** What each beat says anew. */
  #promise() {
    const interval = this.#held.size ? this.settings.beat_interval : this.settings.idle_beat_interval;
    const holdings = Object.fromEntries([...this.#held].map(([id, { attempt, phase }]) => [id, { attempt, phase }]));
    const isBroken = this.#startFailures >= this.settings.start_failure_limit;
    return { interval, holdings, free: this.#free(), trouble: isBroken ? "tasks cannot be started here" : undefined };
  }

  /** A beat when it is time, or when somebody put mail into the record. */
  async #beatIfDue(joined) {
    const seen = await this.records.read(agentKey(this.id), this.#seenSelf?.version);
    if (seen?.record) this.#seenSelf = seen;
    const { mail = false, drain = false } = seen ? this.#seenSelf.record : {};
    if (drain) this.leave();
    if (seen && !mail && monotonic() < this.#beatAt) return;
    if (!(await this.#beat())) {
      this.#abandon();
      await this.#join(joined);
    } else if (mail) {
      await this.#readHeld();
    }
  }

  /** Whether the beat was applied: if not, the agent is nobody any more. */
  async #beat(state) {
    const sent = monotonic();
    const listed = [...this.#held.values()];
    const promise = this.#promise();
    const found = await this.records.change(agentKey(this.id), (agent) => {
      if ((agent.state ?? "live") !== "live") return null;
      return { ...agent, ...promise, beat: (agent.beat ?? 0) + 1, mail: undefined, ...(state && { state }) };
    });
    if (!found?.applied) return false;
    this.#beatWasApplied(sent, promise.interval);
    for (const held of listed) held.listed = true;
    return true;
  }

  #beatWasApplied(sent, interval = this.settings.idle_beat_interval) {
    this.#trustedUntil = sent + TRUST * interval;
    this.#beatAt = sent + interval;
  }

  /** Declared dead: the jobs are others' by now. */
  #abandon() {
    for (const { task } of this.#held.values()) task?.kill();
    this.#held.clear();
  }

  /** Tells how long the tasks may go on if this agent is heard of no more. */
  #keepTasks() {
    const now = monotonic();
    const left = mayRunUntil(now, this.#trustedUntil, this.settings.outage_grace) - now;
    for (const { task } of this.#held.values()) left > 0 ? task?.trust(left) : task?.stop("preempted");
  }

  // Work --------------------------------------------------------------------------------------------------------------

  /** Looks for jobs when the doorbell rang or it is time, and takes entries of jobs away that a beat lists. */
  async #work() {
    await this.#readHeldInTime();
    for (const held of this.#held.values()) await this.#removeEntry(held);
    const bell = await this.records.read(doorbellKey(this.pool), this.#seenBell);
    const rang = bell !== null && bell.version !== this.#seenBell;
    if (!rang && monotonic() < this.#lookAt) return;
    this.#seenBell = bell?.version;
    this.#lookAt = monotonic() + this.settings.repair_interval;
    for await (const key of this.store.list(pendingFolder(this.pool))) {
      if (this.#leaving || monotonic() > this.#trustedUntil) return;
      const entry = parsePending(key);
      if (entry && this.#fits(entry)) await this.#claim(entry).catch((error) => console.error(key, error));
    }
  }

  #free() {
    const free = { ...this.capacity };
    for (const { wants } of this.#held.values()) for (const name of Object.keys(free)) free[name] -= wants[name];
    return free;
  }

  #fits({ job, needs }) {
    const isBroken = this.#startFailures >= this.settings.start_failure_limit;
    return !isBroken && !this.#held.has(job) && fits(needs, { free: this.#free(), inbound: false });
  }

  /** Takes the job of a pending entry, if it still waits and may run now. */
  async #claim({ key, job: id, attempt, needs }) {
    const seen = await this.records.read(jobKey(id));
    if (!seen || pendingKey(seen.record) !== key || !canRun(seen.record.spec)) return;
    const parent = seen.record.parent && (await this.records.read(jobKey(seen.record.parent.job)))?.record;
    const held = { attempt, phase: "claiming", wants: needs.amounts, entry: key };
    this.#held.set(id, held); // before the claim is sent: an agent lists whatever it may hold
    const agent = this.id;
    let todo = {};
    const found = await this.records.change(jobKey(id), (job) => {
      todo = claim(job, attempt, parent, { agent, host: this.host, since: this.store.now() }, this.settings);
      return todo.write;
    });
    if (todo.skip) this.#lookAt = Math.min(this.#lookAt, monotonic() + todo.skip - this.store.now());
    if (!found?.applied || todo.write.status !== "running" || this.id !== agent) {
      this.#held.delete(id);
      return;
    }
    held.phase = "running";
    this.#beatAt = 0;
    this.#run(found.record, held).catch((error) => console.error(id, error));
  }

  /** Runs an attempt to its end and writes what came of it. */
  async #run(job, held) {
    const agent = this.id;
    const place = { folder: this.folder, root: this.root, agent };
    held.task = new Task(this.store, job, place, TRUST * this.settings.beat_interval);
    if (this.#leaving) held.task.stop("preempted");
    if (job.stop) held.task.stop("stopped");
    const end = await held.task.done.catch((error) => ({ exit: { kind: "host-failed", message: String(error) } }));
    this.#startFailures = end.exit.kind === "start-failed" ? this.#startFailures + 1 : 0;
    held.phase = "ending";
    if (this.#held.get(job.id) !== held) return; // declared dead meanwhile
    await this.#commit(job.id, { agent, attempt: held.attempt, ...end });
    await this.#removeEntry({ ...held, listed: true });
    this.#held.delete(job.id);
    this.#lookAt = 0;
  }

  async #commit(id, end) {
    const found = await untilKnown(() =>
      this.records.change(jobKey(id), (job) => attemptEnded(job, end, this.store.now(), this.settings)));
    if (!found?.applied || found.record.status !== "pending") return;
    const entry = JSON.stringify(stamped({ job: id, attempt: found.record.attempt }));
    await untilKnown(() => this.store.write(pendingKey(found.record), entry, ABSENT));
    await ring(this.store, this.pool);
  }

  /** Removes the entry of a claimed job, once an applied beat lists it: from then on its holder is known. */
  async #removeEntry(held) {
    if (!held.listed || !held.entry) return;
    await this.store.remove(held.entry);
    held.entry = null;
  }

  // Stops -------------------------------------------------------------------------------------------------------------

  #readHeldAt = 0;

  async #readHeldInTime() {
    if (monotonic() < this.#readHeldAt) return;
    this.#readHeldAt = monotonic() + this.settings.repair_interval;
    await this.#readHeld();
  }

  /** Reads the jobs that run here: who wishes them to end, and whether they are still this agent's. */
  async #readHeld() {
    for (const [id, { attempt, task }] of [...this.#held]) {
      const job = task && (await this.records.read(jobKey(id)))?.record;
      if (!task || !job) continue;
      if (job.stop) task.stop("stopped");
      if (job.lease?.agent !== this.id || (job.attempt ?? 1) !== attempt) task.kill();
    }
  }
}

/** Whether an agent may claim what needs this: its record's `free`, `preemptible` and `inbound` say so. */
export function fits({ amounts, actor, onDemand, device, count }, { free, preemptible = false, inbound = true }) {
  if ((actor && !inbound) || (onDemand && preemptible)) return false;
  const { device: here = "", device_count = 0 } = free;
  if (device && (count > device_count || ![here, here.split("-")[0]].includes(device))) return false;
  return Object.entries(amounts).every(([name, amount]) => amount <= (free[name] ?? 0));
}

/** Until when a task may run if its agent, which trusts its leases until then, is heard of no more from now on. */
export const mayRunUntil = (now, trustedUntil, outageGrace) =>
  now < trustedUntil - MARGIN / 2 ? trustedUntil : Math.min(now + MARGIN, trustedUntil + outageGrace);

/** What this agent knows how to run. */
const canRun = (spec) => spec.entrypoint.command?.length > 0 && !spec.health_check && (spec.replicas ?? 1) === 1;

/** Asks until the store has answered, however long that takes. */
const untilKnown = (ask) => insist(ask, Infinity);

async function main(words) {
  const options = { pool: { type: "string" }, cores: { type: "string" }, memory: { type: "string" },
    disk: { type: "string" }, folder: { type: "string" } };
  const { values, positionals } = parseArgs({ args: words, options, allowPositionals: true });
  const folder = values.folder ?? (await fs.mkdtemp(path.join(os.tmpdir(), "fray-node-")));
  const capacity = {
    cpu: Math.floor(1000 * Number(values.cores ?? os.cpus().length)),
    memory: Number(values.memory ?? os.totalmem()),
    disk: Number(values.disk ?? 10 * 2 ** 30),
  };
  const agent = new Agent(await openCluster(positionals[0]), { pool: values.pool, capacity, folder });
  for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => agent.leave());
  await agent.serve((id) => console.log(id));
}

if (isProgram(import.meta.url)) await main(process.argv.slice(2));
