"""Deployments of every form, for tests that apply to all of them."""

from __future__ import annotations

from s1_mini.deploy.spec import (
    Async,
    Batch,
    Components,
    Deployment,
    Fleet,
    Form,
    Model,
    MultiModel,
    RealTime,
    Rollout,
)

ACCOUNT, REGION, BUCKET = "123456789012", "eu-west-1", "a-bucket"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/s1-mini:1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/s1-mini"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/11111111-2222-3333-4444-555555555555"
ARCHIVE, PREFIX = f"s3://{BUCKET}/1/model.tar.gz", f"s3://{BUCKET}/1/"
TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:done"

FORMS: dict[str, Form] = {
    "real-time": RealTime(),
    "async": Async(f"s3://{BUCKET}/out", f"s3://{BUCKET}/failed", TOPIC, TOPIC, kms_key=KEY),
    "components": Components(),
    "multi-model": MultiModel(),
    "batch": Batch(f"s3://{BUCKET}/in", f"s3://{BUCKET}/out", kms_key=KEY),
}


def deployment(
    form: str = "real-time",
    *,
    name: str = "hello",
    machine: str = "",
    full: bool = False,
    artifact: str = "",
    rollout: Rollout | None = None,
) -> Deployment:
    """Return a deployment of `form`, minimal, or `full` with every option."""
    machine = machine or ("ml.c5.xlarge" if form == "multi-model" else "ml.g4dn.xlarge")
    artifact = artifact or (PREFIX if form == "multi-model" else ARCHIVE)
    if not full:
        return Deployment(name, Model(IMAGE, ROLE, artifact), Fleet(machine), FORMS[form], rollout or Rollout())
    model = Model(IMAGE, ROLE, artifact, {"S1_MINI_BATCH_SIZE": "8"}, ("subnet-1", "subnet-2"), ("sg-1",))
    fleet = Fleet("ml.c5.xlarge", 2, 30, routing="PREFIX_AWARE", kms_key=KEY)
    return Deployment(name, model, fleet, FORMS[form], rollout or Rollout(), {"team": "voices"})
