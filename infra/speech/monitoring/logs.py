"""The endpoint's log group, kept for a stated time, and the metrics drawn from the server's one line a request.

The fields are those of `s1_mini.server.record`; a test holds the two together.
"""

from __future__ import annotations

from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct

from speech.monitoring.metrics import FIRST_SOUND_P95, REFUSED, WAITING, Source
from speech.stages import Stage

REFUSALS = ("queue_full", "server_busy", "too_many_requests")
FILTERS = {
    # name: what a line must have, the value that is counted
    FIRST_SOUND_P95.name: ("{ $.first_chunk_ms >= 0 }", "$.first_chunk_ms"),
    WAITING.name: ("{ $.waiting >= 0 }", "$.waiting"),
    REFUSED.name: ("{ " + " || ".join(f'($.code = "{code}")' for code in REFUSALS) + " }", "1"),
}


class SpeechLogs(Construct):
    """Make the group before SageMaker would, or it would keep its lines for ever and in the clear."""

    def __init__(self, scope: Construct, id: str, *, stage: Stage, source: Source, key: kms.IKey) -> None:  # noqa: A002
        super().__init__(scope, id)
        self.group = logs.CfnLogGroup(
            self,
            "Group",
            log_group_name=source.log_group,
            retention_in_days=stage.log_days,
            kms_key_id=key.key_arn,
        )
        for name, (pattern, value) in FILTERS.items():
            drawn = logs.CfnMetricFilter(
                self,
                name,
                log_group_name=source.log_group,
                filter_pattern=pattern,
                metric_transformations=[
                    logs.CfnMetricFilter.MetricTransformationProperty(
                        metric_name=name, metric_namespace=source.namespace, metric_value=value
                    )
                ],
            )
            drawn.add_resource_dependency(self.group)
