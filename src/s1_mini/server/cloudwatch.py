"""Figures of a request for CloudWatch, in its embedded metric format: a log line that says what in it is a figure.

Whatever collects the lines (SageMaker does) makes metrics of them; nothing is sent from here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

UNITS = {
    "queue_ms": "Milliseconds",
    "prefill_ms": "Milliseconds",
    "first_chunk_ms": "Milliseconds",
    "total_ms": "Milliseconds",
    "audio_s": "Seconds",
    "frames": "Count",
    "waiting": "Count",
    "real_time_factor": "None",
    "failed": "Count",
}


def embedded(namespace: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Give what makes a request's log line one of metrics: those of its fields that are there, by route and of all.

    `fields["route"]` must be a declared route and nothing that a client made up: each is a metric that costs.
    """
    told = {"failed": int(fields["status"] >= 500)}
    names = [name for name in UNITS if (told | dict(fields)).get(name) is not None]  # null is no figure
    metrics = [{"Name": name, "Unit": UNITS[name]} for name in names]
    directive = {"Namespace": namespace, "Dimensions": [[], ["route"]], "Metrics": metrics}
    return told | {"_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}}
