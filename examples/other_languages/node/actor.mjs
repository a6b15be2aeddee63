#!/usr/bin/env node
// A caller of actors, in JSON, over a connection on which both sides have proved that they have the cluster's key.
//
//   node actor.mjs ROOT NAMESPACE NAME METHOD [ARGS [KWARGS]]   prints the result; ARGS and KWARGS are JSON

import { isProgram, openCluster } from "./cluster.mjs";
import { Broken, Session, keyOfCalls } from "./session.mjs";
import { randomDigits } from "./names.mjs";
import { sleep } from "./store.mjs";

const PATIENCE = 60; // seconds to wait for an actor that is not up

/** What the actor's method raised, or why it could not be called: `type`, `retry` and `traceback` say more. */
export class ActorError extends Error {
  constructor({ type, message, ...told }) {
    super(`${type}: ${message}`);
    Object.assign(this, { type, ...told });
  }
}

/** The server of the actor has ended; whether the call ran there is not known. */
export class CallInterrupted extends Error {}

/** Calls an actor by its name, one call at a time. Lives through broken connections and restarts of the actor. */
export class Actor {
  #client = randomDigits(16); // names this caller: a server runs a call of (client, number) once
  #number = 0;
  #met = [0, 0]; // the highest incarnation and attempt of the name
  #session = null;
  #turn = Promise.resolve();

  constructor(cluster, namespace, name) {
    Object.assign(this, { ...cluster, folder: `actors/${namespace}/${name}/`, name });
  }

  /** What the method returns. `idempotent`: running it twice does no harm, so it is called again at a new server. */
  call(method, args = [], kwargs = {}, { idempotent = false } = {}) {
    const path = `/v1/actors/${encodeURIComponent(this.name)}/methods/${encodeURIComponent(method)}`;
    const body = JSON.stringify({ args, kwargs, client: this.#client, number: (this.#number += 1) });
    this.#turn = this.#turn.catch(() => {}).then(() => this.#answer(path, body, idempotent));
    return this.#turn;
  }

  /** Lets go of the connection, once the calls that were made are answered. */
  async close() {
    await this.#turn.catch(() => {});
    this.#session?.close();
  }

  async #answer(path, body, idempotent) {
    const deadline = performance.now() + PATIENCE * 1000;
    let sentTo = null; // the server that may have begun the call
    for (let wait = 0.1; ; wait = Math.min(2 * wait, 1)) {
      try {
        this.#session ??= await this.#connected();
        if (sentTo !== null && sentTo !== this.#session.identity && !idempotent) {
          throw new CallInterrupted(`${this.name} has ended while the call may have been running`);
        }
        sentTo = this.#session.identity;
        const { result, error } = await this.#session.call(path, body);
        if (error?.type !== "NoSuchActor") {
          if (error) throw new ActorError(error);
          return result;
        }
        sentTo = null; // it did not begin
        throw new Broken(`${this.name} is not there any more`);
      } catch (error) {
        if (error instanceof ActorError) throw error;
        this.#session?.close();
        this.#session = null;
        if (!(error instanceof Broken) || performance.now() > deadline) throw error;
        await sleep(wait);
      }
    }
  }

  /** A session with the actor's server, under the newest key, or whichever it knows. */
  async #connected() {
    const endpoint = await this.#endpoint();
    const { record } = (await this.records.read("secrets/rpc.json")) ?? { record: { keys: [] } };
    for (const { id, secret } of record.keys) {
      const key = { id, secret: keyOfCalls(secret, this.settings) };
      const session = await Session.open(endpoint, key, this.settings.encrypt);
      if (session) return session;
    }
    throw new Broken(`${endpoint.address} knows none of the cluster's keys`);
  }

  /** Where the actor is called: the highest incarnation and attempt of its name, and none below what was met before. */
  async #endpoint() {
    let best = null;
    for await (const key of this.store.list(this.folder)) {
      const endpoint = await this.records.readable(key);
      if (endpoint && isAtLeast(rank(endpoint), best ? rank(best) : this.#met)) best = endpoint;
    }
    if (!best) throw new Broken(`no actor ${this.name} is announced`);
    this.#met = rank(best);
    return best;
  }
}

const rank = ({ incarnation = 0, attempt = 0 }) => [incarnation, attempt];
const isAtLeast = (one, other) => one[0] > other[0] || (one[0] === other[0] && one[1] >= other[1]);

async function main([root, namespace, name, method, args = "[]", kwargs = "{}"]) {
  const actor = new Actor(await openCluster(root), namespace, name);
  try {
    console.log(JSON.stringify(await actor.call(method, JSON.parse(args), JSON.parse(kwargs))));
  } finally {
    await actor.close();
  }
}

if (isProgram(import.meta.url)) await main(process.argv.slice(2));
