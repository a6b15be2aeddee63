// Segments of a queue: their names, their bytes, and the folder that they lie in.

import { blake2b } from "./digests.mjs";
import { digits, randomDigits, timeInName, timeOfName } from "./names.mjs";

export const LARGE = 64 * 2 ** 10; // an item of so many bytes is an object of its own

const NAME = /^([0-9a-hjkmnp-tv-z]{9})([0-9a-hjkmnp-tv-z]{3})([0-9a-hjkmnp-tv-z]{6})-([1-9]\d*)$/;

/** A new segment's name. `order` tells apart what one producer names in one millisecond. */
export const segmentName = (seconds, order, token, items) =>
  `${timeInName(seconds)}${digits(order, 3)}${token}-${items}`;

/** The time in a segment's name, and how many items it holds; null if the name is no segment's. */
export function parseSegmentName(name) {
  const found = NAME.exec(name);
  return found && { at: timeOfName(name), items: Number(found[4]) };
}

/** The name of the dead letter that an item becomes: the same whoever makes it. */
export function letterName(segment, item, at) {
  const digest = blake2b(Buffer.from(segment), 8).readBigUInt64BE();
  const lowestFirst = [...digits(Number(digest & 0x3fffffffn), 6)].reverse().join("");
  return segmentName(at, item, lowestFirst, 1);
}

/** The keys of a queue whose objects lie below `folder`. */
export class QueueKeys {
  constructor(folder) {
    this.folder = folder;
    this.queue = `${folder}queue.json`;
    this.doorbell = `${folder}doorbell.json`;
    this.segments = `${folder}segments/`;
    this.finished = `${folder}finished/`;
    this.receipts = `${folder}receipts/`;
  }

  segment = (name) => `${this.segments}${name.slice(0, 5)}/${name.slice(5, 7)}/${name}`;
  lease = (name) => `${this.segment(name)}~lease`;
  large = (name, item) => `${this.folder}large/${name.slice(0, 5)}/${name}~${item}`;
  receiptsOf = (owner) => `${this.receipts}${owner.slice(0, 8)}/`;
  receiptAt = (owner, seconds, six) => `${this.receiptsOf(owner)}${timeInName(seconds)}${six}`;
  finishedAt = (seconds, six = randomDigits(6)) => `${this.finished}${timeInName(seconds)}${six}`;

  /** {name, isLease} of a key below `segments/`; null if it is none that a queue builds. */
  parse(key) {
    const [name, kind] = key.split("/").pop().split("~");
    const isOurs = parseSegmentName(name) && [this.segment(name), this.lease(name)].includes(key);
    return isOurs ? { name, isLease: kind === "lease" } : null;
  }
}

/** The bytes of a segment of these items, which are bytes; those of `LARGE` and more are left out and only numbered. */
export function encodeSegment(items, letter) {
  const large = [...items.keys()].filter((item) => items[item].length >= LARGE);
  const sizes = items.map((bytes) => (bytes.length >= LARGE ? 0 : bytes.length));
  const header = { encoding: "json", sizes, ...(large.length && { large }), ...(letter && { dead_letter: letter }) };
  const small = items.filter((bytes) => bytes.length < LARGE);
  return { large, data: Buffer.concat([Buffer.from(`${JSON.stringify(header)}\n`), ...small]) };
}

/** {encoding, items}: the bytes of each item, null for one that is an object of its own. Throws if it is no segment. */
export function decodeSegment(name, data) {
  const line = data.indexOf("\n");
  const { encoding, sizes, large = [] } = JSON.parse(data.subarray(0, Math.max(line, 0)).toString());
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const there = data.length - line - 1;
  if (sizes.length !== parseSegmentName(name).items) throw new SyntaxError(`${sizes.length} items; its name differs`);
  if (there !== total) throw new SyntaxError(`${there} bytes of items instead of ${total}`);
  let at = line + 1;
  const items = sizes.map((size, item) => (large.includes(item) ? null : data.subarray(at, (at += size))));
  return { encoding, items };
}
