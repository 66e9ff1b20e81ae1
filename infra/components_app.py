"""For those who outgrow one endpoint: `S1_MINI_STAGE=prod cdk deploy --app "python components_app.py" --all`."""

from __future__ import annotations

import os

from speech.compose import compose_components
from speech.stages import read_stage
from speech.toolchain import new_app

app = new_app()
compose_components(app, read_stage(os.environ.get("S1_MINI_STAGE", "prod")))
app.synth()
