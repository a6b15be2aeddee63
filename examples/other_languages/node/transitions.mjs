// Transitions: what a job's record may become. Each is a plain function of the record; nothing if it may not be.

const HISTORY = 5;

export const ENDED = ["succeeded", "failed", "stopped"];
export const hasEnded = (job) => ENDED.includes(job.status);

const isHeldBy = (job, agent, attempt) =>
  job.status === "running" && job.lease?.agent === agent && (job.attempt ?? 1) === attempt;

/** pending → running: `agent` takes the attempt. */
export function claimed(job, attempt, agent, host, now) {
  if (job.status !== "pending" || (job.attempt ?? 1) !== attempt || job.stop) return null;
  return { ...job, status: "running", lease: { agent, host, since: now }, started_at: now };
}

/** Anything that has not ended → stopped, or, while it runs, a wish that its holder reads. */
export function stopRequested(job, reason, now) {
  if (hasEnded(job) || job.stop) return null;
  const stop = { at: now, reason, by: "user" };
  if (job.status === "running" && job.lease) return { ...job, stop };
  if (!["pending", "unadmitted", "running"].includes(job.status)) return null;
  return { ...job, status: "stopped", stop, ended_at: now, exit: { kind: "stopped", message: reason } };
}

/**
 * running → what follows from how an attempt ended: a final status, or pending again. Nothing if the attempt is not
 * the agent's any more. `byRequest`: the task had been signalled before it ended.
 */
export function attemptEnded(job, { agent, attempt, exit, result, byRequest }, now, settings) {
  if (!isHeldBy(job, agent, attempt)) return null;
  const ended = { ...job, ended_at: now, exit };
  if (exit.kind === "success" && !(job.stop && byRequest)) return { ...ended, status: "succeeded", ...(result && { result }) };
  if (job.stop) return { ...ended, status: "stopped", exit: { ...exit, kind: "stopped", message: job.stop.reason } };
  const counted = { ...counters(job, exit.kind), ...avoided(job, exit.kind) };
  if (isSpent(job.spec, counted)) return { ...ended, ...counted, status: "failed" };
  return requeued({ ...job, ...counted }, exit, now, settings);
}

const PREEMPTED = ["preempted", "lost", "host-failed"];

function counters(job, kind) {
  const { failures = 0, preemptions = 0, start_failures = 0 } = job;
  if (kind === "start-failed") return { failures, preemptions, agent_deaths: 0, start_failures: start_failures + 1 };
  if (PREEMPTED.includes(kind)) return { failures, preemptions: preemptions + 1, agent_deaths: 0, start_failures };
  return { failures: failures + 1, preemptions, agent_deaths: 0, start_failures: 0 };
}

function avoided(job, kind) {
  const { avoid = [], lease } = job;
  if (kind === "start-failed" || kind === "host-failed") return { avoid: [...new Set([...avoid, lease.host])] };
  return { avoid: PREEMPTED.includes(kind) ? avoid : [] };
}

const isSpent = (spec, { failures, preemptions }) =>
  failures > (spec.max_retries_failure ?? 0) || preemptions > (spec.max_retries_preemption ?? 100);

function requeued(job, exit, now, settings) {
  const { attempt = 1, history = [], lease, started_at, ...kept } = job;
  const past = { attempt, agent: lease.agent, host: lease.host, started_at, ended_at: now, exit };
  return { ...kept, status: "pending", attempt: attempt + 1, not_before: now + backOff(job, settings),
    history: [...history, past].slice(-HISTORY) };
}

/** Seconds before the next attempt. */
export function backOff({ failures, preemptions, start_failures }, settings) {
  const ended = failures + preemptions + start_failures;
  return Math.min(settings.requeue_backoff * 2 ** Math.min(ended - 1, 60), settings.requeue_backoff_max);
}
