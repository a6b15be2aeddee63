#!/usr/bin/env node
// An agent: runs jobs of a pool on this host, beside agents in other languages. It runs commands. It leaves
// Python callables, actors, jobs with ports, outputs, a health check or an accelerator, jobs that ask for a place, a
// version of Python or code of their own, and the reconciler's pass to other agents.
//
//   node agent.mjs ROOT [--pool NAME] [--cores N] [--memory BYTES] [--disk BYTES] [--folder PATH]
//
// On SIGTERM it requeues its jobs and leaves.

import { promises as fs } from "node:fs";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";

import { ring, stop } from "./client.mjs";
import { confirmRoot, isProgram, openCluster } from "./cluster.mjs";
import { Heartbeat, monotonic } from "./heartbeat.mjs";
import { agentKey, childFolder, doorbellKey, jobKey, parsePending, pendingFolder, pendingKey } from "./names.mjs";
import { stamped } from "./records.mjs";
import { ABSENT, sleep, waitOut } from "./store.mjs";
import { Task } from "./task.mjs";
import { attemptEnded, claim } from "./transitions.mjs";

export class Agent {
  #held = new Map(); // by job id: {attempt, phase, task, amounts, entry, isListed}
  #seen = { self: null, doorbell: null }; // versions
  #lookAt = 0; // when to look for work next, even if the doorbell does not ring
  #repairAt = 0; // when to read the held jobs next, even if no mail comes
  #startFailures = 0;
  #isLeaving = false;

  /** `capacity`: {cpu, memory, disk}, in thousandths of a core and in bytes; `folder`: where tasks run. */
  constructor(cluster, { pool = "default", capacity, folder }) {
    Object.assign(this, cluster, { cluster, pool, capacity, folder, host: os.hostname() });
    this.heartbeat = new Heartbeat(cluster, { host: this.host, pool, capacity, inbound: false });
  }

  /** Serves until `leave` was called and all jobs are given back. `joined(id)` hears each id that it serves under. */
  async serve(joined = () => {}) {
    await this.#join(joined);
    const keeper = setInterval(() => this.#keepTasks(), this.settings.poll_interval * 1000);
    const working = this.#repeat(() => this.#work(), () => this.#isLeaving);
    await this.#repeat(() => this.#live(joined), () => this.#isLeaving && !this.#held.size);
    await working;
    clearInterval(keeper);
    await this.#beat("left");
  }

  /** Gives all jobs back and ends. */
  leave() {
    this.#isLeaving = true;
    for (const { task } of this.#held.values()) task?.stop("preempted");
  }

  /** Does something each poll interval until it is enough; what it throws is printed, and it goes on. */
  async #repeat(act, isEnough) {
    while (!isEnough()) {
      await act().catch((error) => console.error(error));
      await sleep(this.settings.poll_interval);
    }
  }

  // Living ------------------------------------------------------------------------------------------------------------

  async #join(joined) {
    await this.heartbeat.join(this.#free());
    this.#seen.self = null;
    joined(this.heartbeat.id);
  }

  /** Reads what others wrote into the agent's record, and writes a heartbeat when it is due; given up, it joins again. */
  async #live(joined) {
    const found = await this.records.read(agentKey(this.heartbeat.id), this.#seen.self);
    this.#seen.self = found?.version;
    if (found?.record?.drain) this.#isLeaving = true;
    if (found && !found.record?.mail && !this.heartbeat.isDue) return;
    const { isApplied, hadMail } = await this.#beat();
    if (hadMail) await this.#readHeld();
    if (isApplied) return;
    await confirmRoot(this.cluster);
    for (const { task } of this.#held.values()) task?.kill();
    this.#held.clear();
    await this.#join(joined);
  }

  /** A heartbeat that lists what is held; the entries of jobs that it lists as running may then go. */
  async #beat(state) {
    const listed = [...this.#held.values()].filter(({ phase }) => phase !== "claiming");
    const holdings = Object.fromEntries([...this.#held].map(([id, { attempt, phase }]) => [id, { attempt, phase }]));
    const problem = this.#isBroken ? "tasks cannot be started here; nothing more is claimed" : undefined;
    const done = await this.heartbeat.beat({ holdings, free: this.#free(), problem, state });
    if (done.isApplied) for (const held of listed) held.isListed = true;
    return done;
  }

  /** Tells the tasks for how long they may go on if this process is heard of no more. */
  #keepTasks() {
    const seconds = this.heartbeat.taskSeconds;
    for (const { task } of this.#held.values()) seconds ? task?.trust(seconds) : task?.stop("preempted");
  }

  /** Reads the jobs that run here: who wishes them to end, and whether they are still this agent's. */
  async #readHeld() {
    for (const [id, { attempt, task }] of [...this.#held]) {
      const job = task && (await this.records.read(jobKey(id)))?.record;
      if (!job) continue;
      if (job.stop) task.stop("stopped");
      if (job.lease?.agent !== this.heartbeat.id || (job.attempt ?? 1) !== attempt) task.kill();
    }
  }

  // Claiming ----------------------------------------------------------------------------------------------------------

  /** Looks for jobs when the doorbell rang or it is time. */
  async #work() {
    for (const held of this.#held.values()) if (held.isListed) await this.#removeEntry(held);
    const now = monotonic();
    if (now >= this.#repairAt) await this.#repair(now);
    const doorbell = await this.records.read(doorbellKey(this.pool), this.#seen.doorbell);
    const rang = doorbell !== null && doorbell.version !== this.#seen.doorbell;
    if (rang && doorbell.record?.cluster !== this.settings.cluster_id) await confirmRoot(this.cluster);
    if (!rang && now < this.#lookAt) return;
    this.#seen.doorbell = doorbell?.version;
    this.#lookAt = this.#repairAt;
    for await (const key of this.store.list(pendingFolder(this.pool))) {
      if (this.#isLeaving || !this.heartbeat.isTrusted) return;
      const entry = parsePending(key);
      if (entry && this.#hasRoom(entry)) await this.#claim(entry).catch((error) => console.error(key, error));
    }
  }

  async #repair(now) {
    this.#repairAt = now + this.settings.repair_interval;
    await this.heartbeat.countAgents();
    await this.#readHeld();
  }

  get #isBroken() {
    return this.#startFailures >= this.settings.start_failure_limit;
  }

  #free() {
    const free = { ...this.capacity };
    for (const { amounts } of this.#held.values()) for (const name of Object.keys(free)) free[name] -= amounts[name];
    return free;
  }

  #hasRoom({ job, needs }) {
    return !this.#isBroken && !this.#held.has(job) && fits(needs, { free: this.#free(), inbound: false });
  }

  /** Takes the job of a pending entry, if it still waits and may run now. */
  async #claim({ key, job: id, attempt, needs }) {
    const seen = (await this.records.read(jobKey(id)))?.record;
    if (!seen || pendingKey(seen) !== key || !canRun(seen.spec) || !isWhere(seen.spec, this.heartbeat.about)) return;
    const parent = seen.parent && (await this.records.read(jobKey(seen.parent.job)))?.record;
    const held = { attempt, phase: "claiming", amounts: needs.amounts, entry: key };
    this.#held.set(id, held); // before the claim is sent, because an agent lists every job that it may hold
    while (!this.heartbeat.promisesForJobs) {
      this.heartbeat.hurry();
      await sleep(this.settings.poll_interval / 10);
    }
    if (this.#held.get(id) !== held) return; // the agent was given up meanwhile
    const agent = this.heartbeat.id;
    const found = await waitOut(() => this.records.change(jobKey(id), (job) => this.#decide(job, held, parent, agent)));
    const { status, lease, attempt: current = 1 } = found?.record ?? {};
    const isOurs = status === "running" && lease?.agent === agent && current === attempt; // whichever write did it
    if (isOurs && this.#held.get(id) === held) {
      held.phase = "running";
      this.#run(found.record, held);
    } else {
      if (found?.applied && status === "stopped") await this.#removeEntry(held);
      if (this.#held.get(id) === held) this.#held.delete(id);
    }
  }

  /** What a claim makes of a job of this cluster; nothing, and a later poll, if it may not run yet. */
  async #decide(job, { attempt }, parent, agent) {
    await confirmRoot(this.cluster); // after the read: a version that was read in another cluster is not written on
    const lease = { agent, host: this.host, since: this.store.now() };
    const { write, skip } = claim(job, attempt, parent, lease, this.settings);
    if (skip) this.#lookAt = Math.min(this.#lookAt, monotonic() + skip - lease.since);
    return write;
  }

  // Running -----------------------------------------------------------------------------------------------------------

  /** Runs an attempt to its end and writes what came of it; the job is listed until then. */
  async #run(job, held) {
    const agent = this.heartbeat.id;
    const end = await this.#attempt(job, held, agent);
    this.#startFailures = end.exit.kind === "start-failed" ? this.#startFailures + 1 : 0;
    held.phase = "ending";
    if (this.#held.get(job.id) !== held) return; // given up meanwhile: another agent has the job
    await waitOut(() => this.#commit(job, { agent, attempt: held.attempt, ...end }));
    await waitOut(() => this.#removeEntry(held));
    await this.#tidy(job, held.attempt, end.left).catch((error) => console.error(job.id, error)); // otherwise the repair tidies up
    this.#held.delete(job.id);
    this.#lookAt = 0;
  }

  async #attempt(job, held, agent) {
    try {
      for (let earlier = 1; earlier < held.attempt; earlier++) {
        await this.#stopChildren(job, earlier, "adoptable stay").catch((error) => console.error(job.id, error));
      }
      const place = { folder: this.folder, root: this.root, agent };
      held.task = new Task(this.store, job, place, this.heartbeat.taskSeconds);
      if (this.#isLeaving) held.task.stop("preempted");
      if (job.stop) held.task.stop("stopped");
      return await held.task.done;
    } catch (error) {
      return { exit: { kind: "host-failed", message: String(error) } };
    }
  }

  /** Writes the end of an attempt, and the entry of the next one if there is to be one. */
  async #commit({ id }, end) {
    const ended = (job) => attemptEnded(job, end, this.store.now(), this.settings);
    const found = await this.records.change(jobKey(id), ended);
    if (found?.record.status !== "pending" || found.record.attempt !== end.attempt + 1) return;
    const entry = JSON.stringify(stamped({ job: id, attempt: found.record.attempt }));
    await this.store.write(pendingKey(found.record), entry, ABSENT);
    await ring(this.cluster, this.pool);
  }

  async #removeEntry(held) {
    if (held.entry) await this.store.remove(held.entry);
    held.entry = null;
  }

  /** What a task left to its agent: children that end with it, endpoints that nobody serves any more. */
  async #tidy(job, attempt, { madeChildren = false, endpoints = [] } = {}) {
    if (madeChildren) await this.#stopChildren(job, attempt);
    for (const key of endpoints) await this.store.remove(key);
  }

  async #stopChildren({ id }, attempt, adoptableStay = "") {
    const folder = childFolder(id, attempt);
    for await (const key of this.store.list(folder)) {
      const child = key.slice(folder.length);
      const found = await this.records.read(jobKey(child));
      if (!found || (adoptableStay && found.record.spec.id)) continue;
      await stop(this.cluster, child, "its parent no longer runs", "parent");
    }
  }
}

/** Whether an agent may claim what needs this: its record's `free`, `preemptible`, `inbound` and `software` say so. */
export function fits({ amounts, actor, onDemand, software, device, count }, agent) {
  const { free, preemptible = false, inbound = true, software: { pythons = [], containers = "" } = {} } = agent;
  if ((actor && !inbound) || (onDemand && preemptible)) return false;
  if ((software.includes("e") && !pythons.length) || (software.includes("i") && !containers)) return false;
  const { device: here = "", device_count = 0, device_shares = [] } = free;
  const most = count < 1 ? Math.max(device_count, ...device_shares.map((share) => share / 1000)) : device_count;
  if (device && (count > most || ![here, here.split("-")[0]].includes(device))) return false;
  return Object.entries(amounts).every(([name, amount]) => amount <= (free[name] ?? 0));
}

/** Whether an agent is where the job must run: its record's `zone`, `region` and `labels` say so. */
export function isWhere({ resources = {} }, { zone = "", region = "", labels = {} }) {
  const { zone: wanted, regions = [], labels: needed = {} } = resources;
  if ((wanted && wanted !== zone) || (regions.length && !regions.includes(region))) return false;
  return Object.entries(needed).every(([name, value]) => labels[name] === value);
}

/** What this agent knows how to run. */
const canRun = ({ entrypoint, environment = {}, replicas = 1, ...spec }) =>
  entrypoint.command?.length > 0 && !entrypoint.stdin && !environment.workspace && !environment.python &&
  !spec.health_check && !spec.ports?.length && !spec.outputs?.length && spec.outage !== "stop" && replicas === 1;

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
