"""One stage with one endpoint: `S1_MINI_STAGE=staging cdk deploy --all`, or `python infra/app.py` to look at it."""

from __future__ import annotations

from speech.compose import compose_speech
from speech.toolchain import synthesise

synthesise(compose_speech, default="dev")
