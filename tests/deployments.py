"""Deployments of every form, for tests that apply to all of them."""

from __future__ import annotations

from typing import Any

from s1_mini.aws.deployment import Deployment, Scaling

ACCOUNT, REGION, BUCKET = "123456789012", "eu-west-1", "a-bucket"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/s1-mini:1"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/s1-mini"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/11111111-2222-3333-4444-555555555555"
ARCHIVE, PREFIX = f"s3://{BUCKET}/1/model.tar.gz", f"s3://{BUCKET}/1/"
TOPIC = f"arn:aws:sns:{REGION}:{ACCOUNT}:done"
OUT = f"s3://{BUCKET}/out"

FORMS: dict[str, dict[str, Any]] = {
    "real-time": {},
    "async": {"output": OUT, "failures": f"s3://{BUCKET}/failed", "success_topic": TOPIC, "error_topic": TOPIC},
    "components": {"spread": True},
    "multi-model": {"artifact": PREFIX, "instance_type": ["ml.c5.xlarge"]},
    "batch": {"source": f"s3://{BUCKET}/in", "output": OUT},
}
FULL = {
    "instance_type": ["ml.c5.xlarge"],
    "instances": 2,
    "volume_gb": 30,
    "routing": "PREFIX_AWARE",
    "kms_key": KEY,
    "env": {"S1_MINI_BATCH_SIZE": "8"},
    "subnet": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
    "security_group": ["sg-0123456789abcdef0"],
    "tag": {"team": "voices"},
}

NIGHT = "night=1:2@cron(0 20 * * ? *)"
ENDPOINTS = [form for form in FORMS if form != "batch"]
CASES: list[tuple[str, dict[str, Any]]] = [
    *((form, {}) for form in ENDPOINTS),
    *((form, {**FULL, "accelerators": 0} | FORMS[form]) for form in ENDPOINTS),
    *((form, {"scaling": Scaling(schedule=[NIGHT])}) for form in ENDPOINTS),
    ("async", {"scaling": Scaling(minimum=0)}),
    ("components", {"scaling": Scaling(minimum=0)}),
    ("components", {"endpoint": "other"}),
    ("real-time", {"detailed_metrics": True, "scaling": Scaling(schedule=[NIGHT], timezone="Europe/Berlin")}),
    ("real-time", {"instance_type": ["ml.g6.xlarge", "ml.g5.xlarge", "ml.g6e.xlarge"]}),
    *(("real-time", {"strategy": strategy, "step_percent": 20}) for strategy in ("rolling", "canary", "linear")),
    ("real-time", {"strategy": "all-at-once", "alarm": ["mine"]}),
]


def deployment(form: str = "real-time", **values: Any) -> Deployment:
    """Return a deployment of `form` with its required fields, changed by `values`."""
    given = {"name": "hello", "image": IMAGE, "role": ROLE, "artifact": ARCHIVE, "instance_type": ["ml.g4dn.xlarge"]}
    return Deployment.of(**{**given, "form": form, **FORMS[form], **values})
