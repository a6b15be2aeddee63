"""What every test may rely on in its process."""

import signal

# A shell without job control starts background commands with SIGINT ignored, and children inherit that: the tests that
# interrupt commands would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
