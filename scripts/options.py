"""Arguments that several verbs take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path | None, typer.Option("--config", help="YAML file of settings.")]
Org = Annotated[str | None, typer.Option("--org", help="The tenant (default: PAGEGATE_ORG).")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line on stdout.")]
