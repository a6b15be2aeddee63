"""The log of an agent on stderr: one line for each event, as text or as JSON."""

from __future__ import annotations

import json
import logging
import time

from fray_layouts.escaping import escaped, escaped_json

FORMATS = ("text", "json")


class _TextFormatter(logging.Formatter):
    """One line for each record, with the time in UTC; a traceback follows on lines of its own."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


class _JsonFormatter(_TextFormatter):
    """One JSON object for each record: `time`, `level`, `message`, and `traceback` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {"time": self.formatTime(record), "level": record.levelname, "message": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return escaped_json(json.dumps(fields, ensure_ascii=False))


def log_to_stderr(form: str) -> None:
    """Log to stderr in one of `FORMATS`; other libraries log only warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("fray").setLevel(logging.INFO)
