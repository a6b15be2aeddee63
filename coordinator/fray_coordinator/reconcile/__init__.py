"""The work of no single job's holder: finding dead agents, putting their jobs back, admitting the inbox, repair.

Whichever agent holds the reconciler's lease calls `Reconciler.turn` every pass interval; `fray coordinate` and `fray
fsck --repair` run parts of it. Everything here may run twice at once: each write is conditional by itself.

To read: `reconciler`, `failure_detector`, `reaper`, `admission`, `repair`, then what they remember between passes.
"""
