from fray.tpu.pods import (
    run_on_pod as run_on_pod,
    run_on_pod_multislice as run_on_pod_multislice,
    run_on_pod_multislice_resumable as run_on_pod_multislice_resumable,
    run_on_pod_resumable as run_on_pod_resumable,
)
