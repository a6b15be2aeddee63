// A store in a folder: `link` creates a name, and `rename` under a lock changes it.

import { spawn } from "node:child_process";
import { constants, existsSync, promises as fs, realpathSync } from "node:fs";
import path from "node:path";

import { blake2b, crc32 } from "./digests.mjs";
import { randomDigits } from "./names.mjs";
import { ABSENT } from "./store.mjs";

const { O_RDONLY, O_WRONLY, O_CREAT, O_EXCL, O_NOFOLLOW, O_NONBLOCK } = constants;

/** The path without links; folders that are not there yet keep their names. */
function resolved(folder) {
  return existsSync(folder) ? realpathSync(folder) : path.join(resolved(path.dirname(folder)), path.basename(folder));
}

export class LocalStore {
  isLocal = true;

  constructor(root) {
    this.root = path.resolve(root);
  }

  /** The root's canonical form, in which no link is left. */
  address() {
    return `file://${resolved(this.root)}`;
  }

  now() {
    return Date.now() / 1000;
  }

  async read(key, unless) {
    const file = await present(fs.open(this.#path(key), O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    if (!file) return null;
    try {
      const found = await file.stat();
      if (!found.isFile()) return null;
      const data = await file.readFile();
      const version = versionOf(data);
      return version === unless ? { version } : { data, version, updated: found.mtimeMs / 1000 };
    } finally {
      await file.close();
    }
  }

  async write(key, data, condition) {
    const bytes = Buffer.from(data);
    const finished = await this.#finished(bytes);
    try {
      const isNew = condition === ABSENT;
      const done = await (isNew ? this.#create(finished, key) : this.#replace(finished, key, condition));
      return done ? versionOf(bytes) : null;
    } finally {
      await present(fs.unlink(finished));
    }
  }

  async remove(key, version) {
    return this.#locked(key, async () => {
      if (version && (await this.read(key))?.version !== version) return false;
      await present(fs.unlink(this.#path(key)));
      await sync(path.dirname(this.#path(key)));
      return true;
    });
  }

  /** Folders are listed one after the other, so whoever stops early has not read the later ones. */
  async *list(prefix, after = "") {
    const folder = prefix.slice(0, prefix.lastIndexOf("/") + 1);
    for (const key of await this.#children(folder)) {
      if (!key.startsWith(prefix) && !prefix.startsWith(key)) continue;
      if (!key.endsWith("/")) {
        if (key > after) yield key;
      } else if (key > after || after.startsWith(key)) {
        yield* this.list(key, after);
      }
    }
  }

  async #children(folder) {
    const found = (await present(fs.readdir(this.#path(folder), { withFileTypes: true }))) ?? [];
    const keys = found.filter((entry) => entry.isFile()).map((entry) => folder + entry.name);
    const folders = found.filter((entry) => entry.isDirectory()).map((entry) => `${folder}${entry.name}/`);
    return [...keys, ...folders].filter((key) => key !== ".fray/").sort();
  }

  /** The path of a new file with this content, below `.fray/tmp`; it is on the disk. */
  async #finished(bytes) {
    const name = `.fray/tmp/${randomDigits(16)}`;
    const file = await this.#inFolder(name, () => this.#open(name, O_WRONLY | O_CREAT | O_EXCL));
    try {
      await file.writeFile(bytes);
      await file.sync();
    } finally {
      await file.close();
    }
    return this.#path(name);
  }

  async #create(finished, key) {
    const link = () => unless("EEXIST", fs.link(finished, this.#path(key)).then(() => true));
    const created = await this.#inFolder(key, link);
    if (created) await sync(path.dirname(this.#path(key)));
    return created;
  }

  async #replace(finished, key, { version }) {
    return this.#locked(key, async () => {
      if (version && (await this.read(key))?.version !== version) return false;
      await this.#inFolder(key, () => fs.rename(finished, this.#path(key)));
      await sync(path.dirname(this.#path(key)));
      return true;
    });
  }

  /** Node has no flock(2): util-linux's `flock` holds the lock, until the shell under it reads the end of its input. */
  async #locked(key, act) {
    const name = lockOf(key);
    await this.#inFolder(name, async () => (await this.#open(name, O_RDONLY | O_CREAT)).close());
    const holder = spawn("flock", ["--exclusive", this.#path(name), "sh", "-c", "echo locked; read end"], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    const ended = new Promise((resolve) => holder.once("exit", resolve));
    try {
      await new Promise((resolve, reject) => {
        holder.once("error", reject);
        holder.stdout.once("data", resolve);
        holder.stdout.once("end", () => reject(new Error(`no lock on ${name}`)));
      });
      return await act();
    } finally {
      holder.stdin.end();
      if (holder.pid) await ended;
    }
  }

  /** Does what needs the folder of a name, which others may remove as soon as it is empty. */
  async #inFolder(name, act) {
    for (;;) {
      await this.#makeFolder(path.dirname(name));
      const done = await present(Promise.resolve(act()).then((value) => ({ value })));
      if (done) return done.value;
    }
  }

  async #makeFolder(name) {
    let folder = this.root;
    for (const segment of name.split("/")) {
      folder = path.join(folder, segment);
      if ((await unless("EEXIST", fs.mkdir(folder).then(() => true))) === false) continue;
      await fs.chmod(folder, (await this.#shared()) ? 0o2770 : 0o700);
    }
  }

  async #open(name, flags) {
    const file = await fs.open(this.#path(name), flags, 0o600);
    if (await this.#shared()) await file.chmod(0o660);
    return file;
  }

  /** Whether a group shares the root: it decides about the modes of all that is made below. */
  async #shared() {
    return ((await fs.stat(this.root)).mode & 0o2070) === 0o2070;
  }

  #path(key) {
    return path.join(this.root, key);
  }
}

export const versionOf = (bytes) => blake2b(bytes, 16).toString("hex");
export const lockOf = (key) => `.fray/locks/${(crc32(Buffer.from(key)) % 256).toString(16).padStart(2, "0")}`;

async function sync(folder) {
  const handle = await present(fs.open(folder, O_RDONLY));
  await handle?.sync();
  await handle?.close();
}

/** What a call gives; null if the file or its folder is not there (or is a link, or no folder). */
async function present(call) {
  try {
    return await call;
  } catch (error) {
    if (["ENOENT", "ELOOP", "ENOTDIR", "ENXIO"].includes(error.code)) return null;
    throw error;
  }
}

/** What a call gives; false if it fails with that code. */
async function unless(code, call) {
  try {
    return await call;
  } catch (error) {
    if (error.code === code) return false;
    throw error;
  }
}
