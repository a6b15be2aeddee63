// Leases of segments: the allowed changes of a lease's record, as plain functions of it; null if one is not allowed.

export const TIMEOUT = 60; // seconds
export const MARGIN = 2; // seconds by which two clocks of the storage may differ

/** The bit of an item in `done`, which is a hexadecimal number. */
const bit = (item) => 1n << BigInt(item);
const bits = (lease) => BigInt(`0x${lease.done ?? "0"}`);

export const isDone = (lease, item) => (bits(lease) & bit(item)) !== 0n;
export const isFinished = (lease, items) => bits(lease) === bit(items) - 1n;
export const failuresOf = (lease, item) => lease.failures?.[item] ?? 0;
export const isSpent = (lease, item, maxDeliveries) => maxDeliveries > 0 && failuresOf(lease, item) >= maxDeliveries;

/** The record in these bytes; null if there is none: then the lease is nobody's. */
export function parsed(data) {
  try {
    const lease = JSON.parse(data.toString());
    return typeof lease === "object" ? lease : null;
  } catch {
    return null;
  }
}

/** Whether a lease may be taken: seen unchanged for so many seconds, and written when the storage's clock said so. */
export function isFree({ owner = "", timeout = TIMEOUT }, unchangedFor, updated, now) {
  return !owner || unchangedFor >= timeout || now - updated >= timeout + MARGIN;
}

/** When whoever finished a segment may remove its lease, by the time in its name; and when anybody may. */
export const collectableAt = (named, quarantine) => named + quarantine / 2 + MARGIN;
export const collectableByAllAt = (named, quarantine) => named + 2 * quarantine + MARGIN;

/** When an object under `finished/` may go, by the time in its name. */
export const forgettableAt = (named, quarantine) => named + 60 * quarantine;

/** Whether a segment was stored so long after the time in its name that it may have been finished before. */
export const looksLate = (named, updated, quarantine) => updated - named > quarantine / 2;

/** A lease that nobody has, or that has run out, is another's from now on. What is known of the items stays. */
export function taken(lease, { owner, holder, timeout }) {
  const { owner: before = "", claims = 1, suspect = false } = lease;
  return { ...lease, owner, holder, timeout, claims: claims + 1, suspect: suspect || before !== "" };
}

/** A lease whose owner left a receipt that says that the segment is done. */
export function closed(lease, { owner, holder }, items) {
  return { ...lease, owner, holder, done: (bit(items) - 1n).toString(16) };
}

const ifMine = (change) => (owner) => (lease) => (lease.owner === owner ? change(lease) : null);

export const renewed = ifMine((lease) => ({ ...lease }));
export const released = ifMine((lease) => ({ ...lease, owner: "", holder: "" }));

export const completed = (owner, items) =>
  ifMine((lease) => {
    const done = items.reduce((all, item) => all | bit(item), bits(lease));
    return { ...lease, done: done.toString(16) };
  })(owner);

export const counted = (owner, item) =>
  ifMine((lease) => ({ ...lease, failures: { ...lease.failures, [item]: failuresOf(lease, item) + 1 } }))(owner);

/** `at`: the time in the name of the item's dead letter; one that is there already is kept unless it is too old. */
export const deadLettered = (owner, item, at, oldest) =>
  ifMine((lease) => {
    const before = lease.dead_lettered_at?.[item] ?? 0;
    return { ...lease, dead_lettered_at: { ...lease.dead_lettered_at, [item]: before > oldest ? before : at } };
  })(owner);

export const setAside = (owner, problem) => ifMine((lease) => ({ ...lease, owner: "", holder: "", problem }))(owner);
