// Task: one attempt of a job as a process, with its output and its result.

import { fork } from "node:child_process";
import { constants, promises as fs } from "node:fs";
import os from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

import { LogShipper } from "./log.mjs";
import { logKey, resultKey } from "./names.mjs";
import { createOnce } from "./records.mjs";
import { waitOut } from "./store.mjs";

const RUNNER = fileURLToPath(new URL("runner.mjs", import.meta.url));
const IN_RECORD = 64 * 2 ** 10;
const JSON_LIMIT = 4 * 2 ** 20;
const RESULT_LIMIT = 256 * 2 ** 20;
const DEPTH_LIMIT = 90;
const ENDPOINT = /^actors\/[\w-][\w.-]*\/[\w-][\w.-]*\/[\w-][\w.-]*\.json$/;

/** An attempt that runs. `done` gives its {exit, result, byRequest, left}, once all that it printed is stored. */
export class Task {
  #runner;
  #asked = null; // the kind of exit with which the agent ended the task

  /** `place`: {folder, root, agent}, where it runs and under whom; `trust`: seconds that it may go on unheard of. */
  constructor(store, job, place, trust) {
    this.job = job;
    this.attempt = job.attempt ?? 1;
    this.done = this.#run(store, place, trust);
  }

  /** SIGTERM, and SIGKILL after `grace` seconds. `kind` is how the attempt is then said to have ended. */
  async stop(kind, grace = this.job.spec.grace ?? 10) {
    if (this.#asked) return;
    this.#asked = kind;
    this.#send({ signal: "SIGTERM" });
    const timer = setTimeout(() => this.kill(), grace * 1000);
    await this.done.catch(() => {}); // the caller of `done` gets the error
    clearTimeout(timer);
  }

  kill() {
    this.#send({ signal: "SIGKILL" });
  }

  /** Lets the task go on for so many seconds from now. */
  trust(seconds) {
    this.#send({ trust: seconds });
  }

  #send(message) {
    if (this.#runner?.connected) this.#runner.send(message, () => {});
  }

  async #run(store, place, trust) {
    const { job, attempt } = this;
    const folder = path.join(place.folder, `${job.id}-${attempt}`);
    const log = new LogShipper(store, (number) => logKey(job.id, attempt, number));
    try {
      const end = await this.#process(log, environment(job, { ...place, folder }), folder, trust);
      const asked = this.#asked;
      const isFinal = asked === "timeout" || (asked && end.code !== 0);
      const result = path.join(folder, "result");
      const came = isFinal ? { exit: endedBy(asked, end) } : await outcome(store, job, end, result);
      const exit = { ...came.exit, log_chunks: await log.close() };
      return { ...came, exit, byRequest: asked !== null, left: await leftBehind(folder) };
    } finally {
      await fs.rm(folder, { recursive: true, force: true });
    }
  }

  /** The process from start to end, its output into the log: {code, signal}; {error, errno}; {} if it was abandoned. */
  async #process(log, env, folder, trust) {
    const cwd = path.join(folder, "work");
    const timer = this.#deadline();
    try {
      await fs.mkdir(cwd, { recursive: true, mode: 0o700 });
      if (this.#asked) return {};
      const runner = fork(RUNNER, { stdio: ["ignore", "pipe", "pipe", "ipc"] });
      this.#runner = runner;
      const end = new Promise((resolve) => {
        runner.once("error", (error) => resolve({ error: error.message, errno: "runner" }));
        runner.once("message", resolve);
        runner.once("exit", () => resolve({}));
      });
      this.#send({ run: { command: this.job.spec.entrypoint.command, cwd, env }, trust });
      await Promise.all([log.take("stdout", runner.stdout), log.take("stderr", runner.stderr), end]);
      return await end;
    } catch (error) {
      return { error: error.message, errno: "start" };
    } finally {
      clearTimeout(timer);
    }
  }

  #deadline() {
    const { timeout } = this.job.spec;
    return timeout && setTimeout(() => this.stop("timeout"), timeout * 1000);
  }
}

const endedBy = (kind, { code, signal }) =>
  signal ? { kind, signal: os.constants.signals[signal] } : { kind, code: code ?? undefined };

const withoutFray = (variables) =>
  Object.fromEntries(Object.entries(variables).filter(([name]) => !name.startsWith("FRAY_")));

function environment(job, { folder, root, agent }) {
  const { env_vars = {}, secret_env_vars = {} } = job.spec.environment ?? {};
  return {
    OMP_NUM_THREADS: String(Math.max(1, Math.floor(job.spec.resources?.cpu ?? 1))),
    ...withoutFray(process.env),
    ...withoutFray(env_vars),
    ...withoutFray(secret_env_vars),
    FRAY_JOB_ID: job.id,
    FRAY_JOB_NAME: job.spec.name,
    FRAY_NAMESPACE: job.spec.namespace,
    FRAY_USER: job.spec.user ?? "",
    FRAY_ATTEMPT: String(job.attempt ?? 1),
    FRAY_ANCESTORS: (job.ancestors ?? []).join(" "),
    FRAY_REPLICA: "0",
    FRAY_INDEX: "0",
    FRAY_REPLICAS: "1",
    FRAY_WORKERS: "127.0.0.1",
    FRAY_HOST: "0",
    FRAY_HOSTS: "1",
    FRAY_SLICE: "0",
    FRAY_SLICES: "1",
    FRAY_AGENT_ID: agent,
    FRAY_CLUSTER_ADDRESS: root,
    FRAY_CLUSTER_SPEC: root,
    FRAY_TASK_DIR: folder,
    FRAY_RESULT: path.join(folder, "result"),
    FRAY_BIND_HOST: "127.0.0.1",
    FRAY_ADVERTISE_HOST: "127.0.0.1",
    FRAY_NETWORK: "default",
  };
}

/** How a process that nobody asked to end has ended, and what it left: {exit, result}. */
async function outcome(store, job, { code, signal, error, errno }, file) {
  if (error) {
    if (!["ENOENT", "EACCES", "ENOTDIR"].includes(errno)) return { exit: { kind: "start-failed", message: error } };
    return { exit: { kind: "exited", code: errno === "EACCES" ? 126 : 127, message: error } };
  }
  if (signal) return { exit: { kind: "signalled", signal: os.constants.signals[signal], message: signal } };
  if (code === undefined) return { exit: { kind: "preempted", message: "its agent was not heard of for too long" } };
  if (code) return { exit: { kind: "exited", code, message: `exit code ${code}` } };
  return result(store, job, file);
}

/** Whether the task has children, and the keys of the endpoints that it published. */
async function leftBehind(folder) {
  const madeChildren = await fs.access(path.join(folder, "children")).then(() => true, () => false);
  const lines = await fs.readFile(path.join(folder, "endpoints"), "utf8").catch(() => "");
  return { madeChildren, endpoints: lines.split("\n").filter((key) => ENDPOINT.test(key)) };
}

async function result(store, job, file) {
  const found = await fs.lstat(file).catch(() => null);
  if (!found) return { exit: { kind: "success" } };
  if (!found.isFile()) return { exit: { kind: "exited", code: 0, message: "the result is no regular file" } };
  if (found.size > RESULT_LIMIT) return { exit: { kind: "too-large", message: `a result of ${found.size} bytes` } };
  const bytes = await fs.readFile(file, { flag: constants.O_RDONLY | constants.O_NOFOLLOW });
  return { exit: { kind: "success" }, result: await stored(store, resultKey(job.id, job.attempt ?? 1), bytes) };
}

/** A result as the record has it; a large one, and JSON with numbers that JavaScript would round, as an object. */
async function stored(store, key, bytes) {
  const value = bytes.length <= JSON_LIMIT ? parsed(bytes) : undefined;
  const encoding = value === undefined ? "bytes" : "json";
  const about = { encoding, size: bytes.length };
  if (bytes.length > IN_RECORD || (encoding === "json" && /\d{16}/.test(bytes.toString("latin1")))) {
    await waitOut(() => createOnce(store, key, bytes));
    return { ...about, key };
  }
  return encoding === "json" ? { ...about, value } : { ...about, data: bytes.toString("base64") };
}

/** The value of a JSON text that is not nested too deeply for records; undefined if it is none. */
function parsed(bytes) {
  try {
    const value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
    return depth(value) <= DEPTH_LIMIT ? value : undefined;
  } catch {
    return undefined;
  }
}

function depth(value) {
  let levels = 0;
  for (let level = [value]; level.length && levels <= DEPTH_LIMIT; levels++) {
    level = level.filter((item) => item !== null && typeof item === "object").flatMap((item) => Object.values(item));
  }
  return levels - 1;
}
