"""One stage with one endpoint: `S1_MINI_STAGE=staging cdk deploy --all`, or `python infra/app.py` to look at it."""

from __future__ import annotations

import os

from speech.compose import compose_speech
from speech.stages import read_stage
from speech.toolchain import new_app

app = new_app()
compose_speech(app, read_stage(os.environ.get("S1_MINI_STAGE", "dev")))
app.synth()
