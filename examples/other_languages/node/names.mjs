// Names: every key that the contract builds, and the times and random digits in them.

import { createHash, randomBytes } from "node:crypto";

const DIGITS = "0123456789abcdefghjkmnpqrstvwxyz";
const MIB = 2 ** 20;

/** `value` in `length` digits of base 32, the highest first. */
export function digits(value, length) {
  let text = "";
  for (let rest = value; text.length < length; rest = Math.floor(rest / 32)) text = DIGITS[rest % 32] + text;
  return text;
}

/** A time in seconds as it stands in names: nine digits of milliseconds, whose text order is the order of times. */
export const timeInName = (seconds) => digits(rounded(seconds * 1000), 9);

/** To the nearest whole number, a half to the even one. */
const rounded = (value) => (value - Math.floor(value) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));

/** The time in seconds that stands at the beginning of `text`. */
export function timeOfName(text) {
  let value = 0;
  for (const digit of text.slice(0, 9)) value = value * 32 + DIGITS.indexOf(digit);
  return value / 1000;
}

/** `length` random digits. */
export const randomDigits = (length) => Array.from(randomBytes(length), (byte) => DIGITS[byte % 32]).join("");

/** The first eight digits of the base32hex of SHA-256 of a text. */
function digestDigits(text) {
  const hex = createHash("sha256").update(text).digest("hex");
  return parseInt(hex.slice(0, 10), 16).toString(32).padStart(8, "0");
}

/** The id of a job: fixed by an `id` of the submitter's own and the namespace that was named, else new. */
export function jobId({ name, id, namespace = "" }, submittedAt) {
  if (!id) return `${name}-${timeInName(submittedAt)}${randomDigits(6)}`;
  return `${name}-${id}-${digestDigits(`${namespace}\n${name}\n${id}`)}`;
}

/** The id of an agent that starts now. */
export const agentId = (host, now, six = randomDigits(6)) =>
  `${host.replace(/[^A-Za-z0-9-]/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "host"}-${timeInName(now)}${six}`;

export const CLUSTER = "cluster.json";
export const PASS = "coordinator/reconciler.json";
export const jobKey = (id) => `jobs/${id}.json`;

/** Where the record of a job lies that ended long ago: by the day of submission, if that stands in the id. */
export function archiveKey(id) {
  const fresh = /.-([0-9a-hjkmnp-tv-z]{9})[0-9a-hjkmnp-tv-z]{6}$/.exec(id);
  const folder = fresh ? new Date(timeOfName(fresh[1]) * 1000).toISOString().slice(0, 10) : "own";
  return `archive/${folder}/${id}.json`;
}

export const agentKey = (id) => `agents/${id}.json`;
export const doorbellKey = (pool) => `pools/${pool}/doorbell`;
export const pendingFolder = (pool) => `pending/${pool}/`;
export const childFolder = (parent, attempt) => `children/${parent}/${attempt}/`;
export const childKey = (parent, attempt, child) => `children/${parent}/${attempt}/${child}`;
export const attemptFolder = (id, attempt) => `work/${id}/${attempt}/0`;
export const logKey = (id, attempt, number) => `${attemptFolder(id, attempt)}/log-${String(number).padStart(8, "0")}`;
export const resultKey = (id, attempt) => `${attemptFolder(id, attempt)}/result`;
export const nameKey = (namespace, kind, name) => `names/${namespace}/${kind}/${name}.json`;

/** The key of the pending entry of a job's record. */
export function pendingKey(job) {
  const spec = job.spec;
  const order = String(499 - (spec.priority ?? 0)).padStart(3, "0") + timeInName(job.submitted_at ?? 0);
  return `${pendingFolder(spec.pool ?? "default")}${order}-${job.id}~${job.attempt ?? 1}~${shape(spec)}${below(job)}`;
}

/** What says in a pending entry to which family the job belongs; nothing if no job is above it. */
function below({ ancestors: [root] = [] }) {
  return root ? `~${createHash("sha256").update(root).digest("hex").slice(0, 6)}` : "";
}

/** The ids of the jobs above a child of this job, the topmost first; 16 at most. */
export function ancestorsOfChild({ id, ancestors = [] }) {
  const above = [...ancestors, id];
  return above.length > 16 ? [above[0], ...above.slice(-15)] : above;
}

/** What a job needs, as it stands in its pending entry. */
export function shape(spec) {
  const { cpu = 1, memory = 0, disk = 0, device, preemptible = true } = spec.resources ?? {};
  const amounts = `c${Math.ceil(cpu * 1000)}m${Math.floor(memory / MIB)}d${Math.floor(disk / MIB)}`;
  const flags = { o: !preemptible, a: spec.actor, e: hasPackages(spec), i: spec.environment?.docker_image };
  return amounts + Object.keys(flags).filter((letter) => flags[letter]).join("") + deviceShape(device);
}

function hasPackages({ environment: { workspace, extras = [], groups = [], pip_packages = [] } = {} }) {
  return Boolean(workspace?.dependencies) || extras.length + groups.length + pip_packages.length > 0;
}

function deviceShape(device) {
  const { kind = "cpu", variant = "", count = 1 } = device ?? {};
  return kind === "cpu" ? "" : `g${count}${kind}${variant && `-${variant}`}`.toLowerCase();
}

const ENTRY = /^(\d{3}[0-9a-hjkmnp-tv-z]{9})-([A-Za-z0-9][\w.-]*)~([1-9]\d*)~(c[^~]+)(?:~[0-9a-f]{6})?$/;
const SHAPE = /^c(\d+)m(\d+)d(\d+)(o?)(a?)(e?i?)(?:g([1-9]\d*|0\.\d{0,2}[1-9])([a-z][a-z0-9._-]*))?$/;

/** What the name of a pending entry says: {key, job, attempt, needs}; null if it is none. */
export function parsePending(key) {
  const found = ENTRY.exec(key.split("/").pop());
  const needs = found && parseShape(found[4]);
  return needs && { key, job: found[2], attempt: Number(found[3]), needs };
}

/** What a job needs: cpu in thousandths of a core, memory and disk in bytes. */
export function parseShape(text) {
  const found = SHAPE.exec(text);
  if (!found) return null;
  const [, cpu, memory, disk, onDemand, actor, software, count, device = ""] = found;
  const amounts = { cpu: Number(cpu), memory: memory * MIB, disk: disk * MIB };
  return { amounts, onDemand: onDemand !== "", actor: actor !== "", software, device, count: Number(count ?? 0) };
}
