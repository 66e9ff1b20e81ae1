"""The log group of an endpoint, and metrics of the server's log lines (`s1_mini.server.record`)."""

from __future__ import annotations

from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from speech.monitoring.metrics import FIRST_AUDIO_P95, REFUSED, WAITING, Source
from speech.stages import Stage

REFUSALS = ("queue_full", "server_busy", "too_many_requests")
# metric: filter pattern, value
FILTERS = {
    FIRST_AUDIO_P95.name: ("{ $.first_chunk_ms >= 0 }", "$.first_chunk_ms"),
    WAITING.name: ("{ $.waiting >= 0 }", "$.waiting"),
    REFUSED.name: ("{ " + " || ".join(f'($.code = "{code}")' for code in REFUSALS) + " }", "1"),
}


def add_logs(scope: Construct, stage: Stage, source: Source, key: kms.IKey) -> logs.CfnLogGroup:
    """Add and return the log group. If SageMaker created it, it would be unencrypted and keep its lines forever."""
    group = logs.CfnLogGroup(
        scope,
        "LogGroup",
        log_group_name=source.log_group,
        retention_in_days=stage.log_days,
        kms_key_id=key.key_arn,
    )
    for name, (pattern, value) in FILTERS.items():
        metric = logs.CfnMetricFilter.MetricTransformationProperty(
            metric_name=name, metric_namespace=source.log_namespace, metric_value=value
        )
        logs.CfnMetricFilter(
            scope, name, log_group_name=group.ref, filter_pattern=pattern, metric_transformations=[metric]
        )
    return group
