"""For those who outgrow one endpoint: `S1_MINI_STAGE=prod cdk deploy --app "python components_app.py" --all`."""

from __future__ import annotations

from speech.compose import compose_components
from speech.toolchain import synthesise

synthesise(compose_components, default="prod")
