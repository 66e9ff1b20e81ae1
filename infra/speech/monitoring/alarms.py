"""Alarms as a table: what is watched, from where on it is wrong, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_sns as sns
from constructs import Construct

from speech.monitoring import metrics
from speech.monitoring.metrics import Metric, Source
from speech.stages import Stage


@dataclass(frozen=True, kw_only=True)
class Watch:
    """One alarm: `over` a threshold in `points` of the last `out_of` periods; `per` makes it a percentage."""

    name: str
    meaning: str
    metric: Metric
    over: float
    points: int
    out_of: int
    period_s: int = 60
    per: Metric | None = None
    notify: bool = True


def realtime_watches(stage: Stage) -> tuple[Watch, ...]:
    """Give what is watched at an endpoint with a model of its own."""
    return (
        *_speech_watches(stage),
        Watch(
            name="no-capacity",
            meaning="Every slot of an instance is taken and no other has come in ten minutes",
            metric=metrics.CONCURRENCY,
            over=stage.all_slots,
            points=10,
            out_of=10,
        ),
    )


def component_watches(stage: Stage) -> tuple[Watch, ...]:
    """Give what is watched at an inference component."""
    return (
        *_speech_watches(stage),
        Watch(
            name="no-capacity",
            meaning="Requests have found no copy for ten minutes: none could be started",
            metric=metrics.NO_CAPACITY,
            over=0,
            points=8,
            out_of=10,
        ),
    )


def _speech_watches(stage: Stage) -> tuple[Watch, ...]:
    return (
        Watch(
            name="latency-p95",
            meaning=f"One in twenty answers takes more than {stage.latency_p95_s:g} s",
            metric=metrics.LATENCY_P95,
            over=stage.latency_p95_s * 1e6,
            points=3,
            out_of=5,
        ),
        Watch(
            name="first-sound-p95",
            meaning=f"One in twenty listeners waits more than {stage.first_sound_p95_ms} ms for the first sound",
            metric=metrics.FIRST_SOUND_P95,
            over=stage.first_sound_p95_ms,
            points=3,
            out_of=5,
        ),
        Watch(
            name="errors",
            meaning=f"More than {stage.error_percent:g} % of the requests end in an error of ours",
            metric=metrics.ERRORS,
            per=metrics.INVOCATIONS,
            over=stage.error_percent,
            points=3,
            out_of=5,
        ),
        Watch(
            name="refused",
            meaning="Requests are refused because the queue is full",
            metric=metrics.REFUSED,
            over=0,
            points=2,
            out_of=5,
        ),
        Watch(
            name="queue",
            meaning="Requests find more pieces waiting than the engine has slots",
            metric=metrics.WAITING,
            over=stage.slots,
            points=5,
            out_of=5,
        ),
    )


def rollback_watches(stage: Stage) -> tuple[Watch, ...]:
    """Give what takes a rollout back: quicker and coarser than the others, for it ends by itself."""
    return (
        Watch(
            name="rollback-errors",
            meaning=f"More than {5 * stage.error_percent:g} % errors of ours: a rollout is taken back",
            metric=metrics.ERRORS,
            per=metrics.INVOCATIONS,
            over=5 * stage.error_percent,
            points=2,
            out_of=3,
            notify=False,
        ),
        Watch(
            name="rollback-latency",
            meaning=f"One in twenty answers takes more than {2 * stage.latency_p95_s:g} s: a rollout is taken back",
            metric=metrics.LATENCY_P95,
            over=2 * stage.latency_p95_s * 1e6,
            points=2,
            out_of=3,
            notify=False,
        ),
    )


ASYNC_WATCHES = (
    Watch(
        name="backlog",
        meaning="More than 50 requests an instance have waited for a quarter of an hour",
        metric=metrics.BACKLOG,
        over=50,
        points=15,
        out_of=15,
    ),
    Watch(
        name="oldest",
        meaning="A request has waited for more than an hour",
        metric=metrics.OLDEST,
        over=3600,
        points=1,
        out_of=1,
        period_s=300,
    ),
    Watch(
        name="no-capacity",
        meaning="Requests wait and no instance has come in twenty minutes",
        metric=metrics.WITHOUT_CAPACITY,
        over=0,
        points=20,
        out_of=20,
    ),
    Watch(
        name="failures",
        meaning="Requests could not be answered",
        metric=metrics.FAILURES,
        over=0,
        points=1,
        out_of=1,
        period_s=300,
    ),
    Watch(
        name="expired",
        meaning="Requests were given up before their turn came",
        metric=metrics.EXPIRED,
        over=0,
        points=1,
        out_of=1,
        period_s=300,
    ),
)


class Alarms(Construct):
    """Make a table of watches into alarms, by name in `by_name`; those that notify tell the topic, also of the end."""

    def __init__(
        self,
        scope: Construct,
        id: str,  # noqa: A002
        *,
        source: Source,
        watches: Sequence[Watch],
        topic: sns.ITopic,
    ) -> None:
        super().__init__(scope, id)
        self.by_name: Mapping[str, cloudwatch.CfnAlarm] = {
            watch.name: self._alarm(source, watch, topic) for watch in watches
        }

    def _alarm(self, source: Source, watch: Watch, topic: sns.ITopic) -> cloudwatch.CfnAlarm:
        actions = [topic.topic_arn] if watch.notify else []
        return cloudwatch.CfnAlarm(
            self,
            watch.name,
            alarm_name=f"{source.name}-{watch.name}",
            alarm_description=f"{watch.meaning}. What to do: docs/operations.md, {watch.name}.",
            comparison_operator="GreaterThanThreshold",
            threshold=watch.over,
            datapoints_to_alarm=watch.points,
            evaluation_periods=watch.out_of,
            treat_missing_data="notBreaching",  # nobody asked, so nobody waited
            alarm_actions=actions,
            ok_actions=actions,
            metrics=_queries(source, watch),
        )


def _queries(source: Source, watch: Watch) -> list[cloudwatch.CfnAlarm.MetricDataQueryProperty]:
    if watch.per is None:
        return [_query("value", watch.metric, source, watch.period_s, is_result=True)]
    percent = cloudwatch.CfnAlarm.MetricDataQueryProperty(
        id="percent",
        label=f"{watch.metric.name} in percent of {watch.per.name}",
        expression="IF(whole > 0, 100 * FILL(part, 0) / whole, 0)",
        return_data=True,
    )
    return [
        percent,
        _query("part", watch.metric, source, watch.period_s, is_result=False),
        _query("whole", watch.per, source, watch.period_s, is_result=False),
    ]


def _query(
    name: str, metric: Metric, source: Source, period_s: int, *, is_result: bool
) -> cloudwatch.CfnAlarm.MetricDataQueryProperty:
    namespace, dimensions = metric.place(source)
    return cloudwatch.CfnAlarm.MetricDataQueryProperty(
        id=name,
        return_data=is_result,
        metric_stat=cloudwatch.CfnAlarm.MetricStatProperty(
            metric=cloudwatch.CfnAlarm.MetricProperty(
                namespace=namespace,
                metric_name=metric.name,
                dimensions=[
                    cloudwatch.CfnAlarm.DimensionProperty(name=key, value=value) for key, value in dimensions.items()
                ],
            ),
            period=period_s,
            stat=metric.statistic,
        ),
    )
