// A store: objects by key, each with a version, written on a condition. Local files or S3; both have these methods:
//
//   read(key, unless)           {data, version, updated}, or null if absent; {version} alone if it still is `unless`
//   write(key, data, condition) the new version, or null if the condition did not hold
//   remove(key, version)        any version if none is given; returns whether the condition held
//   list(prefix, after)         keys in order, those after `after`
//   now()                       the storage's clock, in seconds
//   updated                     the storage's time of the object's last change, in seconds
//
// A condition is ABSENT, {version}, or ANYTHING. Unknown means that nobody knows whether the write was applied.

export const ABSENT = { absent: true };
export const ANYTHING = {};

/** The store did not answer, or not in a way that says what became of the request. */
export class Unknown extends Error {}

/** The store at a root: `s3://bucket/prefix`, or a folder. */
export async function openStore(root) {
  if (root.startsWith("s3://")) {
    const { S3Store } = await import("./store_s3.mjs");
    return new S3Store(root, process.env);
  }
  const { LocalStore } = await import("./store_local.mjs");
  return new LocalStore(root);
}

export const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

/** Asks until the store answers, for `patience` seconds. For reads, and for what may be done twice. */
export async function insist(ask, patience = 60) {
  const deadline = performance.now() + patience * 1000;
  for (let wait = 0.1; ; wait = Math.min(2 * wait, 5)) {
    try {
      return await ask();
    } catch (error) {
      if (!(error instanceof Unknown) || performance.now() > deadline) throw error;
      await sleep(wait * (0.5 + Math.random()));
    }
  }
}

/** Asks until it is done, whatever the store says: for what may neither be left out nor be given up. */
export async function waitOut(ask) {
  for (let wait = 0.1; ; wait = Math.min(2 * wait, 30)) {
    try {
      return await ask();
    } catch (error) {
      console.error(`${error}; asking again`);
      await sleep(wait * (0.5 + Math.random()));
    }
  }
}
