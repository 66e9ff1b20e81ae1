"""From what is wanted to the calls that bring it about, in order. Pure: `plan` prints them, `run` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from s1_mini.deploy import parameters
from s1_mini.deploy.alarms import rollback_alarms
from s1_mini.deploy.call import AwsCall, Wait
from s1_mini.deploy.spec import VARIANT, Batch, Components, Deployment

AUTOSCALING = "application-autoscaling"


@dataclass(frozen=True)
class Standing:
    """What stands in AWS under a name: what `find` saw, or what a deployment would make."""

    name: str
    endpoint: bool = False
    config: str = ""  # the one that the endpoint runs
    configs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    components: tuple[tuple[str, str], ...] = ()  # name, model
    targets: tuple[tuple[str, str], ...] = ()  # resource, dimension
    alarms: tuple[str, ...] = ()
    running_transform: bool = False

    def lines(self) -> list[str]:
        """Name each thing, a line each."""
        found = [f"endpoint {self.name}"] if self.endpoint else []
        found += [f"inference component {name}" for name, _ in self.components]
        found += [f"endpoint config {name}" for name in self.configs]
        found += [f"model {name}" for name in self.models]
        found += [f"scalable target {resource}" for resource, _ in self.targets]
        found += [f"alarm {name}" for name in self.alarms]
        return found + ([f"transform job {self.name}"] if self.running_transform else [])


def create_calls(deployment: Deployment) -> list[AwsCall]:
    """Give the calls that make a new endpoint, or run a batch."""
    form, name = deployment.form, deployment.name
    if isinstance(form, Batch):
        return [_create_model(deployment), _create_transform(deployment, form)]
    calls = [_create_model(deployment), _create_config(deployment), *rollback_alarms(deployment)]
    config = parameters.endpoint_config(deployment)["EndpointConfigName"]
    making = {"EndpointName": name, "EndpointConfigName": config, "Tags": parameters.tags(deployment)}
    calls.append(
        AwsCall(
            "sagemaker",
            "create_endpoint",
            making,
            AwsCall("sagemaker", "delete_endpoint", {"EndpointName": name}, wait_for=Wait("endpoint gone", name)),
            wait_for=Wait("endpoint", name, config),
        )
    )
    if isinstance(form, Components):
        calls.append(_create_component(deployment, form))
    return calls


def update_calls(deployment: Deployment, standing: Standing) -> list[AwsCall]:
    """Give the calls that make what stands into what is wanted; none if it is that already."""
    form, name = deployment.form, deployment.name
    assert not isinstance(form, Batch), "a batch is no endpoint"
    model = parameters.model(deployment)["ModelName"]
    config = parameters.endpoint_config(deployment)["EndpointConfigName"]
    model_is_new = isinstance(form, Components) and (name, model) not in standing.components
    if config == standing.config and not model_is_new:
        return []
    alarms = [AwsCall(call.service, call.operation, call.parameters) for call in rollback_alarms(deployment)]
    calls = [_create_model(deployment), *alarms]
    if config != standing.config:
        change = {"EndpointName": name, "EndpointConfigName": config, "RetainAllVariantProperties": True}
        if not isinstance(form, Components):
            change["DeploymentConfig"] = parameters.rollout(deployment)
        calls.insert(1, _create_config(deployment))
        calls.append(AwsCall("sagemaker", "update_endpoint", change, wait_for=Wait("endpoint", name, config)))
    if isinstance(form, Components) and model_is_new:
        change = {
            "InferenceComponentName": name,
            "Specification": parameters.component(deployment, form),
            "DeploymentConfig": parameters.rollout(deployment),
        }
        wait = Wait("component", name, model)
        calls.append(AwsCall("sagemaker", "update_inference_component", change, wait_for=wait))
    return calls


def delete_calls(standing: Standing) -> list[AwsCall]:
    """Give the calls that leave nothing of it, what refers to something before that something."""
    name = standing.name
    calls = [
        AwsCall(AUTOSCALING, "deregister_scalable_target", scalable(resource, dimension))
        for resource, dimension in standing.targets
    ]
    for component, _ in standing.components:
        gone = {"InferenceComponentName": component}
        calls.append(
            AwsCall("sagemaker", "delete_inference_component", gone, wait_for=Wait("component gone", component))
        )
    if standing.endpoint:
        wait = Wait("endpoint gone", name)
        calls.append(AwsCall("sagemaker", "delete_endpoint", {"EndpointName": name}, wait_for=wait))
    if standing.running_transform:
        wait = Wait("transform", name)
        calls.append(AwsCall("sagemaker", "stop_transform_job", {"TransformJobName": name}, wait_for=wait))
    calls += [AwsCall("sagemaker", "delete_endpoint_config", {"EndpointConfigName": it}) for it in standing.configs]
    calls += [AwsCall("sagemaker", "delete_model", {"ModelName": it}) for it in standing.models]
    if standing.alarms:
        calls.append(AwsCall("cloudwatch", "delete_alarms", {"AlarmNames": list(standing.alarms)}))
    return calls


def scalable(resource: str, dimension: str) -> dict[str, str]:
    """Name what scales, as Application Auto Scaling wants it named."""
    return {"ServiceNamespace": "sagemaker", "ResourceId": resource, "ScalableDimension": dimension}


def would_stand(deployment: Deployment) -> Standing:
    """Give what stands once the deployment has been made, before anything scales."""
    if isinstance(deployment.form, Batch):
        models = (parameters.model(deployment)["ModelName"],)
        return Standing(deployment.name, models=models, running_transform=True)
    config, model = (
        parameters.endpoint_config(deployment)["EndpointConfigName"],
        parameters.model(deployment)["ModelName"],
    )
    return Standing(
        deployment.name,
        endpoint=True,
        config=config,
        configs=(config,),
        models=(model,),
        components=((deployment.name, model),) if isinstance(deployment.form, Components) else (),
        alarms=tuple(call.parameters["AlarmName"] for call in rollback_alarms(deployment)),
    )


def _create_model(deployment: Deployment) -> AwsCall:
    made = parameters.model(deployment)
    back = AwsCall("sagemaker", "delete_model", {"ModelName": made["ModelName"]})
    return AwsCall("sagemaker", "create_model", made, back, same_by_name=True)


def _create_config(deployment: Deployment) -> AwsCall:
    made = parameters.endpoint_config(deployment)
    back = AwsCall("sagemaker", "delete_endpoint_config", {"EndpointConfigName": made["EndpointConfigName"]})
    return AwsCall("sagemaker", "create_endpoint_config", made, back, same_by_name=True)


def _create_component(deployment: Deployment, form: Components) -> AwsCall:
    name, specification = deployment.name, parameters.component(deployment, form)
    made = {
        "InferenceComponentName": name,
        "EndpointName": name,
        "VariantName": VARIANT,
        "Specification": specification,
        "RuntimeConfig": {"CopyCount": form.copies},
        "Tags": parameters.tags(deployment),
    }
    gone = {"InferenceComponentName": name}
    back = AwsCall("sagemaker", "delete_inference_component", gone, wait_for=Wait("component gone", name))
    wait = Wait("component", name, specification["ModelName"])
    return AwsCall("sagemaker", "create_inference_component", made, back, wait_for=wait)


def _create_transform(deployment: Deployment, form: Batch) -> AwsCall:
    back = AwsCall("sagemaker", "stop_transform_job", {"TransformJobName": deployment.name})
    made = parameters.transform_job(deployment, form)
    return AwsCall("sagemaker", "create_transform_job", made, back, wait_for=Wait("transform", deployment.name))
