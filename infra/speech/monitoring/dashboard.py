"""One page that answers: how long do listeners wait, does anything fail, is there room, what is it busy with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import Stack
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from speech.monitoring import metrics
from speech.monitoring.metrics import Metric, Source

WIDTH, HEIGHT = 12, 6
ROW = tuple[str, Sequence[Metric]]

SPEECH: Sequence[ROW] = (
    ("Latency of answers, µs", (metrics.LATENCY_P50, metrics.LATENCY_P95)),
    ("First sound, ms", (metrics.FIRST_SOUND_P95,)),
    ("Requests and errors", (metrics.INVOCATIONS, metrics.ERRORS, metrics.CALLERS_ERRORS)),
    ("Queue: pieces waiting, requests refused", (metrics.WAITING, metrics.REFUSED)),
)
REALTIME: Sequence[ROW] = (
    *SPEECH,
    ("Requests in an engine's hands", (metrics.CONCURRENCY,)),
    ("GPU, %", (metrics.GPU, metrics.GPU_MEMORY)),
)
COMPONENT: Sequence[ROW] = (
    *SPEECH,
    ("Copies: requests in hand, none found", (metrics.COPY_CONCURRENCY, metrics.NO_CAPACITY)),
)
ASYNCHRONOUS: Sequence[ROW] = (
    ("Requests waiting", (metrics.BACKLOG_SIZE, metrics.BACKLOG)),
    ("Age of the oldest, s", (metrics.OLDEST,)),
    ("Failed and given up", (metrics.FAILURES, metrics.EXPIRED)),
)


def dashboard(
    scope: Construct,
    *,
    name: str,
    region: str,
    pages: Sequence[tuple[Source, Sequence[ROW]]],
    alarms: Sequence[cloudwatch.CfnAlarm],
) -> cloudwatch.CfnDashboard:
    """Make the page: the alarms on top, then two graphs a row, then the last lines that tell of an error."""
    widgets: list[dict[str, Any]] = [
        {
            "type": "alarm",
            "width": 2 * WIDTH,
            "height": 3,
            "properties": {"title": "Alarms", "alarms": [alarm.attr_arn for alarm in alarms]},
        }
    ]
    for source, rows in pages:
        widgets += [_graph(f"{source.name}: {title}", region, source, shown) for title, shown in rows]
    groups = " ".join(f"SOURCE '{source.log_group}' |" for source, _ in pages)
    wanted = "fields @timestamp, code, route, message | filter status >= 500 or level = 'error'"
    query = f"{groups} {wanted} | sort @timestamp desc"
    widgets.append(
        {
            "type": "log",
            "width": 2 * WIDTH,
            "height": HEIGHT,
            "properties": {"title": "Last errors", "region": region, "query": f"{query} | limit 50", "view": "table"},
        }
    )
    body = Stack.of(scope).to_json_string({"widgets": widgets})
    return cloudwatch.CfnDashboard(scope, "Dashboard", dashboard_name=name, dashboard_body=body)


def _graph(title: str, region: str, source: Source, shown: Sequence[Metric]) -> dict[str, Any]:
    return {
        "type": "metric",
        "width": WIDTH,
        "height": HEIGHT,
        "properties": {
            "title": title,
            "region": region,
            "period": 60,
            "view": "timeSeries",
            "metrics": [_line(metric, source) for metric in shown],
        },
    }


def _line(metric: Metric, source: Source) -> list[Any]:
    namespace, dimensions = metric.place(source)
    return [namespace, metric.name, *_pairs(dimensions), {"stat": metric.statistic}]


def _pairs(dimensions: Mapping[str, str]) -> list[str]:
    return [word for pair in dimensions.items() for word in pair]
