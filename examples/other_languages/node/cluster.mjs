// An open root: its store, its records, its settings.

import { existsSync, realpathSync } from "node:fs";
import { pathToFileURL } from "node:url";

import { CLUSTER, randomDigits } from "./names.mjs";
import { Records } from "./records.mjs";
import { openStore } from "./store.mjs";

const LAYOUT = 1;

/** Settings that a cluster has unless its `cluster.json` says otherwise: the defaults of the schema. In seconds. */
const SETTINGS = {
  layout: LAYOUT, beat_interval: 5, idle_beat_interval: 60, poll_interval: 1, repair_interval: 60, quarantine: 600,
  outage_grace: 900, requeue_backoff: 1, requeue_backoff_max: 60, start_failure_limit: 3, encrypt: false,
};

/** Opens a root, and makes it one if nobody has yet. */
export async function openCluster(root) {
  const store = await openStore(root);
  const records = new Records(store);
  const { record } = (await records.read(CLUSTER)) ??
    (await records.create(CLUSTER, { cluster_id: randomDigits(16), addresses: [store.address()], created_at: store.now() }));
  const settings = { ...SETTINGS, ...record };
  const { layout } = settings;
  if (layout !== LAYOUT) throw new Error(`${root} has layout ${layout}; this program knows ${LAYOUT}`);
  if (!settings.addresses?.includes(store.address()))
    throw new Error(`${root} is not where its cluster is: see fray init --adopt-copy and --add-address`);
  return { root, store, records, settings };
}

/** Throws if the root holds another cluster by now, or none. Nothing may be concluded then, as in an outage. */
export async function confirmRoot({ root, records, settings: { cluster_id, addresses } }) {
  const { record } = (await records.read(CLUSTER)) ?? {};
  if (record?.cluster_id !== cluster_id || record.addresses?.[0] !== addresses[0])
    throw new Error(`${root} holds ${record ? `another cluster, ${record.cluster_id}` : "no cluster"}, not ${cluster_id}`);
}

/** Whether a module is what `node` was asked to run. */
export function isProgram(url, [, file] = process.argv) {
  return Boolean(file) && existsSync(file) && pathToFileURL(realpathSync(file)).href === url;
}
