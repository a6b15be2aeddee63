"""The GCS emulator as a process of its own, which can be frozen. Prints its URL."""

from __future__ import annotations

import signal

from tests.support.gcs_emulator import Emulator
from tests.support.serving import serving

if __name__ == "__main__":
    with serving(Emulator().app()) as served:
        print(served.url, flush=True)
        signal.pause()
