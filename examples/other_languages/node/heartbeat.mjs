// Heartbeat: an agent's record, and how long the agent may rely on its leases. Times are this host's, in seconds.

import { agentId, agentKey, PASS } from "./names.mjs";

const TRUST = 3; // intervals for which an agent may rely on an applied heartbeat; observers wait for five

export const monotonic = () => performance.now() / 1000;

/** The interval that a heartbeat promises: longer where nothing is held, and in a large fleet. */
export function promised(isBusy, liveAgents, { beat_interval, idle_beat_interval }) {
  const times = liveAgents > 1000 ? 4 : liveAgents > 100 ? 2 : 1;
  const longest = 4 * Math.max(beat_interval, idle_beat_interval); // that observers believe
  return Math.min(Math.max(times * (isBusy ? beat_interval : idle_beat_interval), liveAgents / 250), longest);
}

/** Until when a task may run if its agent, which trusts its leases until then, is heard of no more from now on. */
export function mayRunUntil(now, trustedUntil, { beat_interval, outage_grace }) {
  if (now < trustedUntil - beat_interval) return Math.min(trustedUntil, now + TRUST * beat_interval);
  return Math.min(now + 2 * beat_interval, trustedUntil + outage_grace);
}

export class Heartbeat {
  #sentAt = 0; // the last heartbeat that was applied
  #trustedUntil = 0;
  #dueAt = 0;
  #promised = Infinity; // the longest interval that the record may promise now
  #liveAgents = 1;

  /** `about`: what the record says for as long as the process lives. */
  constructor({ store, records, settings }, about) {
    Object.assign(this, { store, records, settings, about });
  }

  /** A record for this process, under a new id. */
  async join(free) {
    const now = this.store.now();
    this.id = agentId(this.about.host, now);
    const sent = monotonic();
    const interval = this.#next(true); // it may claim at once
    await this.records.create(agentKey(this.id), { ...this.about, id: this.id, started_at: now, interval, free });
    this.#applied(sent, interval);
  }

  get isTrusted() {
    return monotonic() < this.#trustedUntil;
  }

  get isDue() {
    return monotonic() >= this.#dueAt;
  }

  /** Seconds that tasks may go on from now; none if they have to end. */
  get taskSeconds() {
    const now = monotonic();
    return Math.max(mayRunUntil(now, this.#trustedUntil, this.settings) - now, 0);
  }

  /** Whether a claim may be sent: if this process died with the job, others would wait only as long as for a busy one. */
  get promisesForJobs() {
    return this.#promised <= this.#next(true);
  }

  /** The first job is held: a heartbeat that promises the shorter interval is due now. */
  hurry() {
    this.#dueAt = 0;
  }

  /** Says what is held. Whether it was applied: if not, the agent is nobody any more. `hadMail`: somebody had asked. */
  async beat({ holdings, free, problem, state }) {
    const sent = monotonic();
    const interval = this.#next(Object.keys(holdings).length > 0);
    this.#trustedUntil = Math.min(this.#trustedUntil, this.#sentAt + TRUST * interval);
    this.#promised = Math.max(this.#promised, interval);
    let hadMail = false;
    const found = await this.records.change(agentKey(this.id), (agent) => {
      if (["dead", "left"].includes(agent.state)) return null;
      hadMail = agent.mail ?? false;
      const told = { holdings, free, problem, interval, mail: undefined, ...(state && { state }) };
      return { ...agent, ...told, beat: (agent.beat ?? 0) + 1 };
    });
    if (found?.applied) this.#applied(sent, interval);
    return { isApplied: found?.applied ?? false, hadMail };
  }

  /** Looks how many agents there are. */
  async countAgents() {
    const pools = (await this.records.read(PASS))?.record.pools ?? {};
    this.#liveAgents = Object.values(pools).reduce((sum, { agents = 0 }) => sum + agents, 0);
  }

  #next(isBusy) {
    return promised(isBusy, this.#liveAgents, this.settings);
  }

  #applied(sent, interval) {
    this.#sentAt = sent;
    this.#trustedUntil = sent + TRUST * interval;
    this.#promised = interval;
    this.#dueAt = sent + interval;
  }
}
