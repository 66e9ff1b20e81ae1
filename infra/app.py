"""Synthesize one stage: `S1_MINI_STAGE=staging cdk deploy --all`, or `python infra/app.py` for the templates only."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from speech.stages import ConfigurationError, read_stage
from speech.toolchain import compose, new_app

# The cdk names the folder. Without a name, the templates are in a temporary folder, which is deleted at the end.
app = new_app(outdir=os.environ.get("CDK_OUTDIR") or str(Path(__file__).resolve().with_name("cdk.out")))
try:
    compose(app, read_stage(os.environ.get("S1_MINI_STAGE") or "dev"))
except ConfigurationError as error:
    sys.exit(f"infra: {error}")
sys.stderr.write(f"The templates are in {app.synth().directory}\n")
