"""The dashboard of an endpoint: alarms, latency, errors, capacity and the last errors of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_cloudwatch as cloudwatch

from speech.monitoring import metrics
from speech.monitoring.metrics import Metric, Source

WIDTH, HEIGHT = 12, 6
GRAPHS = (
    ("Latency, µs", metrics.LATENCY_P50, metrics.LATENCY_P95),
    ("Time to first audio, ms", metrics.FIRST_AUDIO_P95),
    ("Requests and errors", metrics.INVOCATIONS, metrics.SERVER_ERRORS, metrics.CLIENT_ERRORS),
    ("Queue: waiting and rejected requests", metrics.WAITING, metrics.REFUSED),
)
REALTIME = (
    *GRAPHS,
    ("Concurrent requests", metrics.CONCURRENCY),
    ("GPU, %", metrics.GPU, metrics.GPU_MEMORY),
)
BY_FORM: dict[str, Sequence[tuple[str | Metric, ...]]] = {
    "components": (*GRAPHS, ("Copies: concurrent requests, no copy", metrics.COPY_CONCURRENCY, metrics.NO_CAPACITY)),
    "async": (
        ("Waiting requests", metrics.BACKLOG_SIZE, metrics.BACKLOG),
        ("Age of the oldest request, s", metrics.OLDEST),
        ("Failed and expired requests", metrics.FAILURES, metrics.EXPIRED),
    ),
}


def add_dashboard(stack: Stack, region: str, source: Source, form: str, alarms: Sequence[cloudwatch.CfnAlarm]) -> None:
    """Add the dashboard to the stack."""
    query = (
        f"SOURCE '{source.log_group}' | fields @timestamp, code, route, message | filter status >= 500 or level = "
        "'error' | sort @timestamp desc | limit 50"
    )
    widgets = [
        _widget("alarm", 2 * WIDTH, 3, title="Alarms", alarms=[alarm.attr_arn for alarm in alarms]),
        *(
            _widget(
                "metric",
                WIDTH,
                HEIGHT,
                title=title,
                region=region,
                period=60,
                view="timeSeries",
                metrics=[_line(metric, source) for metric in lines if isinstance(metric, Metric)],
            )
            for title, *lines in BY_FORM.get(form, REALTIME)
        ),
        _widget("log", 2 * WIDTH, HEIGHT, title="Last errors", region=region, query=query, view="table"),
    ]
    body = stack.to_json_string({"widgets": widgets})
    cloudwatch.CfnDashboard(stack, "Dashboard", dashboard_name=source.name, dashboard_body=body)


def _widget(kind: str, width: int, height: int, **properties: Any) -> dict[str, Any]:
    return {"type": kind, "width": width, "height": height, "properties": properties}


def _line(metric: Metric, source: Source) -> list[Any]:
    namespace, dimensions = metric.place(source)
    pairs = [word for pair in dimensions.items() for word in pair]
    return [namespace, metric.name, *pairs, {"stat": metric.statistic}]
