// Transitions: the allowed changes of a job's record, as plain functions of it; null if one is not allowed.

const HISTORY = 5;
const SET_BACK = 60; // seconds: if an attempt ended more than this in the future, the clock was set back
const AVOIDING = 60; // seconds that a host which could not start a job leaves it to others
const AVOIDED = 8; // hosts that a record remembers
const HOST_GONE = ["preempted", "stopped", "host-failed"]; // "stopped" here: the holder says so, although nobody asked for a stop

export const hasEnded = (job) => ["succeeded", "failed", "stopped"].includes(job.status);

const attemptOf = (job) => job.attempt ?? 1;

/**
 * What the claimer of an entry does, having read its job and then that one's parent: {write}, the record that it makes
 * of the job; or {skip}, until that time, or for good if it is null. `lease.since` is now.
 */
export function claim(job, attempt, parent, lease, settings) {
  const now = lease.since;
  if (job.status !== "pending" || attemptOf(job) !== attempt) return { skip: null };
  const wait = waitsForParent(job, parent, now, settings);
  if (wait === Infinity) return { write: stopped(job, "its parent no longer runs", "parent", now) };
  const { pending_timeout } = job.spec;
  if (pending_timeout && now > waitingSince(job) + pending_timeout) {
    return { write: stopped(job, `not started within its pending_timeout of ${pending_timeout} s`, "expired", now) };
  }
  const isSetBack = now < (job.history?.at(-1)?.ended_at ?? 0) - SET_BACK; // the storage's clock
  const backOff = (job.not_before ?? 0) + (job.avoid_hosts?.includes(lease.host) ? AVOIDING : 0);
  const until = Math.max(wait, isSetBack ? 0 : backOff);
  return until > now ? { skip: until } : { write: { ...job, status: "running", lease, started_at: now } };
}

const waitingSince = (job) => job.history?.at(-1)?.ended_at ?? job.submitted_at ?? 0;

/** Until when a job waits for its parent: 0 if that runs, Infinity if it will not run it any more. */
function waitsForParent(job, parent, now, settings) {
  if (!job.parent || job.parent.detached) return 0;
  if (parent?.status === "running" && attemptOf(parent) === job.parent.attempt) return 0;
  const mayAdopt = job.spec.id && parent && !hasEnded(parent) && !parent.stop;
  if (!mayAdopt) return Infinity;
  const adopted = parent.status === "running" ? parent.started_at + settings.repair_interval : Infinity;
  if (adopted <= now) return Infinity;
  return now + settings.repair_interval;
}

/** Anything that has not ended → stopped, or, while it runs, a wish that its holder reads. */
export function stopRequested(job, reason, now, by = "user") {
  if (job.status === "running" && job.lease) return job.stop ? null : { ...job, stop: { at: now, reason, by } };
  return ["pending", "unadmitted", "running"].includes(job.status) ? stopped(job, reason, by, now) : null;
}

const stopped = (job, reason, by, now) => ({
  ...job, status: "stopped", stop: { at: now, reason, by }, ended_at: now, exit: { kind: "stopped", message: reason },
});

/**
 * running → what follows from how an attempt ended: a final status, or pending again. Nothing if the attempt is not
 * the agent's any more. `byRequest`: the task had been signalled before it ended.
 */
export function attemptEnded(job, { agent, attempt, exit, result, byRequest = false }, now, settings) {
  if (job.status !== "running" || job.lease?.agent !== agent || attemptOf(job) !== attempt) return null;
  const ended = { ...job, ended_at: now, exit };
  if (exit.kind === "success" && !(job.stop && byRequest)) {
    return { ...ended, status: "succeeded", agent_deaths: undefined, ...(result && { result }) };
  }
  if (job.stop) return { ...ended, status: "stopped", exit: { ...exit, kind: "stopped", message: job.stop.reason } };
  const counted = { ...job, ...counters(job, exit.kind) };
  const spent = spentBudget(counted);
  if (spent) return { ...counted, status: "failed", ended_at: now, exit: { ...spent, ...exit } };
  return requeued(counted, exit, now, settings);
}

/** The counters after an attempt. A host that failed is to be avoided; a failure of the job's own clears all that. */
function counters(job, kind) {
  const { failures = 0, preemptions = 0, start_failures = 0, avoid_hosts = [], lease } = job;
  const avoided = [lease.host, ...avoid_hosts.filter((host) => host !== lease.host)].slice(0, AVOIDED);
  if (kind === "start-failed") return { start_failures: start_failures + 1, avoid_hosts: avoided };
  if (kind === "yielded") return {};
  const preempted = { preemptions: preemptions + 1, agent_deaths: undefined };
  if (HOST_GONE.includes(kind)) return kind === "host-failed" ? { ...preempted, avoid_hosts: avoided } : preempted;
  return { failures: failures + 1, agent_deaths: undefined, start_failures: undefined, avoid_hosts: undefined };
}

/** Nothing if there is a further attempt; else what is to be said about the last one beside how it ended. */
function spentBudget({ spec, failures = 0, preemptions = 0 }) {
  const { max_retries_failure = 0, max_retries_preemption = 100 } = spec;
  if (failures > max_retries_failure) return {};
  if (preemptions <= max_retries_preemption) return null;
  return { message: `preempted more often than max_retries_preemption=${max_retries_preemption} allows` };
}

function requeued(job, exit, now, settings) {
  const { lease, started_at, history = [], ...kept } = job;
  const past = { attempt: attemptOf(job), agent: lease.agent, host: lease.host, started_at, ended_at: now, exit };
  const attempts = [...history, past];
  const forgotten = attempts.slice(0, -HISTORY).reduce((sum, old) => sum + old.ended_at - old.started_at, 0);
  return {
    ...kept, status: "pending", attempt: attemptOf(job) + 1, not_before: now + backOff(job, exit.kind, settings),
    history: attempts.slice(-HISTORY), forgotten_seconds: (job.forgotten_seconds ?? 0) + forgotten || undefined,
  };
}

/** Seconds until the next attempt: longer with each failure or failed start, not with preemptions. */
function backOff(job, kind, { requeue_backoff, requeue_backoff_max }) {
  const times = kind === "yielded" || HOST_GONE.includes(kind) ? 1 : kind === "start-failed" ? job.start_failures : job.failures;
  return Math.min(requeue_backoff * 2 ** Math.min(times - 1, 60), requeue_backoff_max);
}
