// Runner: the parent of one task, in a process of its own. The agent tells it what to run, which signals to send, and for
// how many more seconds the task may run. So if the agent is killed or frozen, the task ends before another agent runs
// the job.

import { spawn } from "node:child_process";

let task = null;
let timer = null;

process.on("message", ({ run, signal, trust }) => {
  if (run) start(run);
  if (signal) send(signal);
  if (trust) extend(trust);
});
process.on("disconnect", abandon);

function start({ command: [program, ...words], cwd, env }) {
  task = spawn(program, words, { cwd, env, detached: true, stdio: ["ignore", "inherit", "inherit"] });
  task.once("error", (error) => report({ error: error.message, errno: error.code }));
  task.once("exit", (code, signal) => report({ code, signal }));
}

/** Signals the task and all that it started in its process group. */
function send(signal) {
  try {
    if (task?.pid) process.kill(-task.pid, signal);
  } catch (error) {
    if (error.code !== "ESRCH") throw error;
  }
}

function extend(seconds) {
  clearTimeout(timer);
  timer = setTimeout(abandon, seconds * 1000);
}

function abandon() {
  send("SIGKILL");
  process.exit(1);
}

/** Nothing of the task outlives it: what it left in its group would hold its output open. */
function report(end) {
  send("SIGKILL");
  process.send(end, () => process.exit(0));
}
