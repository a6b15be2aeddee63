// The log of an attempt: lines in the CRI format, stored in chunks that are numbered from 1.

import { createOnce } from "./records.mjs";
import { waitOut } from "./store.mjs";

const CHUNK = 256 * 2 ** 10;
const LINE = 16 * 2 ** 10;
const FIRST_AFTER = 1; // seconds from the first line to the first chunk
const NEXT_AFTER = 5; // and between later ones
const BACKLOG = 8 * CHUNK; // bytes that may wait for the store before the task has to wait

/** Ships what a task prints. `keyOf(number)` names a chunk. */
export class LogShipper {
  #store;
  #keyOf;
  #lines = []; // of the next chunk
  #size = 0;
  #open = { stdout: [], stderr: [] }; // the beginning of a line that has not ended
  #chunks = 0;
  #timer = null;
  #unshipped = 0;
  #shipping = Promise.resolve();

  constructor(store, keyOf) {
    this.#store = store;
    this.#keyOf = keyOf;
  }

  /** Takes all that a stream gives; waits while too much waits for the store. */
  async take(name, stream) {
    for await (const bytes of stream) {
      this.#add(name, bytes);
      if (this.#size >= CHUNK) this.#ship();
      if (this.#unshipped > BACKLOG) await this.#shipping;
    }
  }

  /** Ships the rest; gives the number of chunks. */
  async close() {
    this.#ship();
    await this.#shipping;
    return this.#chunks;
  }

  #add(name, bytes) {
    for (let at = 0; at < bytes.length; ) {
      const newline = bytes.indexOf("\n", at);
      const end = Math.min(newline < 0 ? bytes.length : newline, at + LINE);
      this.#open[name].push(bytes.subarray(at, end));
      if (end === newline) this.#line(name, "F");
      else if (length(this.#open[name]) >= LINE) this.#line(name, "P");
      at = end === newline ? end + 1 : end;
    }
    this.#timer ??= setTimeout(() => this.#ship(), (this.#chunks ? NEXT_AFTER : FIRST_AFTER) * 1000);
  }

  #line(name, tag) {
    const time = new Date().toISOString().replace("Z", "000Z");
    const line = Buffer.concat([Buffer.from(`${time} ${name} ${tag} `), ...this.#open[name], Buffer.from("\n")]);
    this.#open[name] = [];
    this.#lines.push(line);
    this.#size += line.length;
  }

  /** Makes a chunk of what is there, the beginnings of lines too. */
  #ship() {
    clearTimeout(this.#timer);
    this.#timer = null;
    for (const name of ["stdout", "stderr"]) if (length(this.#open[name])) this.#line(name, "P");
    if (!this.#lines.length) return;
    const chunk = Buffer.concat(this.#lines);
    const key = this.#keyOf((this.#chunks += 1));
    this.#lines = [];
    this.#size = 0;
    this.#unshipped += chunk.length;
    this.#shipping = this.#shipping.then(async () => {
      await waitOut(() => createOnce(this.#store, key, chunk));
      this.#unshipped -= chunk.length;
    });
  }
}

const length = (parts) => parts.reduce((sum, part) => sum + part.length, 0);
