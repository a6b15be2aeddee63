// Records: JSON objects that are changed by compare-and-swap, so that every writer finds out whether its write was applied.

import { randomDigits } from "./names.mjs";
import { ABSENT, ANYTHING, insist, sleep, Unknown } from "./store.mjs";

const RECENT_OPS = 8;
const PATIENCE = 3600; // seconds until the outcome of a write must be known

export class Records {
  constructor(store) {
    this.store = store;
  }

  /** {record, version}, or null if there is none. With `unless`: {version} alone if it is unchanged. */
  async read(key, unless) {
    const found = await insist(() => this.store.read(key, unless));
    return found?.data ? { record: parse(key, found.data), version: found.version } : found;
  }

  /** The record; null if there is none, or none that can be read: then it is nobody's. */
  async readable(key) {
    try {
      return (await this.read(key))?.record ?? null;
    } catch (error) {
      if (error instanceof SyntaxError) return null;
      throw error;
    }
  }

  /** Creates a record. Gives what then stands there, and whether that came of this call: {record, version, applied}. */
  async create(key, body) {
    const made = await this.#write(key, stamped(body), ABSENT);
    return made ? { ...made, applied: true } : { ...(await this.read(key)), applied: false };
  }

  /**
   * Changes a record: `decide(record)`, which may be asynchronous, gives the new body, or nothing if there is nothing to change; it is asked again
   * when another was faster. Gives what then stands there: {record, version, applied}; null if the record is absent.
   * `applied` says that the last body of `decide` was written, even if others have already changed it further.
   */
  async change(key, decide) {
    for (;;) {
      const seen = await this.read(key);
      if (!seen) return null;
      const body = await decide(seen.record);
      if (!body) return { ...seen, applied: false };
      const made = await this.#write(key, stamped(body, seen.record), { version: seen.version });
      if (made) return { ...made, applied: true };
    }
  }

  /** Writes on a condition until it is known what came of it: what then stands there if it was applied, else null. */
  async #write(key, body, condition) {
    const data = JSON.stringify(body);
    const deadline = performance.now() + PATIENCE * 1000;
    while (performance.now() < deadline) {
      const version = await this.#once(key, data, condition);
      if (version) return { record: body, version };
      const there = await this.read(key);
      const became = outcome(body.op, condition, there);
      if (became === "applied" || became === "superseded") return there;
      if (became === "rejected") return null;
      await sleep(0.1 + 0.2 * Math.random());
    }
    throw new Unknown(`${key}: whether a write was applied is not known after ${PATIENCE} s`);
  }

  async #once(key, data, condition) {
    try {
      return await this.store.write(key, data, condition);
    } catch (error) {
      if (error instanceof Unknown) return null;
      throw error;
    }
  }
}

/** A body with a new `op`, which remembers those of the body that it replaces. */
export function stamped(body, before, op = randomDigits(16)) {
  if (!before) return { ...body, op, created_op: op };
  const recent = [before.op, ...(before.recent_ops ?? [])].slice(0, RECENT_OPS);
  return { ...body, op, recent_ops: recent, created_op: before.created_op };
}

/** What became of a write whose answer was a refusal or silence, by what is there now: "unsent" may be sent again. */
export function outcome(op, condition, there) {
  if (there?.record.op === op) return "applied";
  if (there?.record.created_op === op || there?.record.recent_ops?.includes(op)) return "superseded";
  if (condition === ANYTHING) return "unsent";
  const holds = condition === ABSENT ? !there : there?.version === condition.version;
  return holds ? "unsent" : "rejected";
}

function parse(key, data) {
  const record = JSON.parse(data.toString());
  const isObject = record !== null && typeof record === "object" && !Array.isArray(record);
  if (!isObject) throw new SyntaxError(`${key}: no record`);
  return record;
}

/** Creates an object that never changes, unless it exists. */
export async function createOnce(store, key, data) {
  await insist(() => store.write(key, data, ABSENT), PATIENCE);
}
