"""The alarms of an endpoint besides those of its template, and the topic that they notify."""

from __future__ import annotations

from typing import NamedTuple

from aws_cdk import Aws
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from speech.monitoring import metrics
from speech.monitoring.metrics import Metric, Source
from speech.stages import Endpoint, Stage


class Watch(NamedTuple):
    """An alarm: the metric, in percent of `per` if given, exceeds a limit in `points` of `out_of` periods."""

    name: str
    meaning: str
    metric: Metric
    limit: float
    points: int
    out_of: int
    period_s: int = 60
    per: Metric | None = None


ASYNC = (
    Watch("backlog", "More than 50 requests per instance waited for 15 minutes", metrics.BACKLOG, 50, 15, 15),
    Watch("oldest", "A request has waited for an hour", metrics.OLDEST, 3600, 1, 1, 300),
    Watch("no-capacity", "Requests waited for 20 minutes without an instance", metrics.WITHOUT_CAPACITY, 0, 20, 20),
    Watch("failures", "Requests failed", metrics.FAILURES, 0, 1, 1, 300),
    Watch("expired", "Requests expired before processing", metrics.EXPIRED, 0, 1, 1, 300),
)


def watches(stage: Stage, endpoint: Endpoint) -> tuple[Watch, ...]:
    """Return the alarms for the form of the endpoint."""
    latency_s, first_audio_ms, percent = stage.latency_p95_s, stage.first_audio_p95_ms, stage.error_percent
    if endpoint.deployment.form == "async":
        return ASYNC
    if endpoint.deployment.form == "components":
        no_capacity = Watch("no-capacity", "Requests found no copy in 8 of 10 minutes", metrics.NO_CAPACITY, 0, 8, 10)
    else:
        meaning = "An instance had more requests than slots for 10 minutes"
        no_capacity = Watch("no-capacity", meaning, metrics.CONCURRENCY, endpoint.all_slots, 10, 10)
    return (
        Watch("latency-p95", f"The p95 latency exceeds {latency_s:g} s", metrics.LATENCY_P95, latency_s * 1e6, 3, 5),
        Watch(
            "first-audio-p95",
            f"The p95 time to first audio exceeds {first_audio_ms} ms",
            metrics.FIRST_AUDIO_P95,
            first_audio_ms,
            3,
            5,
        ),
        Watch(
            "errors",
            f"More than {percent:g} % of the requests returned 5xx",
            metrics.SERVER_ERRORS,
            percent,
            3,
            5,
            per=metrics.INVOCATIONS,
        ),
        Watch(
            "refused",
            "Requests were rejected because the queue or the server was full, or a client had too many requests",
            metrics.REFUSED,
            0,
            2,
            5,
        ),
        Watch("queue", "More requests wait than the engine has slots", metrics.WAITING, endpoint.slots, 5, 5),
        no_capacity,
    )


def add_alarm(scope: Construct, source: Source, watch: Watch, topic: sns.ITopic) -> cloudwatch.CfnAlarm:
    """Return an alarm that notifies the topic when it starts and ends."""
    queries = [_query("value", watch.metric, source, watch.period_s, is_result=watch.per is None)]
    if watch.per is not None:
        percent = cloudwatch.CfnAlarm.MetricDataQueryProperty(
            id="percent",
            label=f"{watch.metric.name} in percent of {watch.per.name}",
            expression="IF(whole > 0, 100 * FILL(value, 0) / whole, 0)",
            return_data=True,
        )
        queries = [percent, *queries, _query("whole", watch.per, source, watch.period_s, is_result=False)]
    return cloudwatch.CfnAlarm(
        scope,
        watch.name,
        alarm_name=f"{source.name}-{watch.name}",
        alarm_description=f"{watch.meaning}. See docs/operations.md, {watch.name}.",
        comparison_operator="GreaterThanThreshold",
        threshold=watch.limit,
        datapoints_to_alarm=watch.points,
        evaluation_periods=watch.out_of,
        treat_missing_data="notBreaching",  # no data means no requests
        alarm_actions=[topic.topic_arn],
        ok_actions=[topic.topic_arn],
        metrics=queries,
    )


def _query(
    name: str, metric: Metric, source: Source, period_s: int, *, is_result: bool
) -> cloudwatch.CfnAlarm.MetricDataQueryProperty:
    namespace, dimensions = metric.place(source)
    of = cloudwatch.CfnAlarm
    found = of.MetricProperty(
        namespace=namespace,
        metric_name=metric.name,
        dimensions=[of.DimensionProperty(name=key, value=value) for key, value in dimensions.items()],
    )
    statistic = of.MetricStatProperty(metric=found, period=period_s, stat=metric.statistic)
    return of.MetricDataQueryProperty(id=name, return_data=is_result, metric_stat=statistic)


def alarm_topic(scope: Construct, stage: Stage, name: str, key: kms.IKey) -> sns.Topic:
    """Return an encrypted topic for the alarms of this account, with the stage's addresses as subscribers."""
    topic = sns.Topic(scope, "Alarms", topic_name=name, master_key=key, enforce_ssl=True)
    topic.add_to_resource_policy(
        iam.PolicyStatement(
            sid="AlarmsPublish",
            principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
            actions=["sns:Publish"],
            resources=[topic.topic_arn],
            conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
        )
    )
    for address in stage.emails:
        topic.add_subscription(subscriptions.EmailSubscription(address))
    return topic
