"""The life of one job: submission, claims, the end of attempts, stops, its children, and waiting for it.

1. A submitter calls `submission`: it writes the entry of `pending_index`, then the record, and `notifications` rings
   the pool's bell.
2. An agent calls `claiming`, runs the job, and writes the end of the attempt with `commit`. In a gang, `gang_peers`
   watches the other members' exits until one of them writes the end.
3. A user calls `stopping`, which the reconciler calls for the children of jobs that have ended. `job_archive` moves
   jobs that ended long ago.
4. Meanwhile `waiting` waits for the end, `logs` reads the output, `lookup` finds jobs, and the `why_*` modules explain
   to people why a job waits.

`pools` has the records of pools and machines. The decisions are in `protocol`.
"""
