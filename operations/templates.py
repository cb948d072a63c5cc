"""Rendering templates: plain values in, text out; a missing value is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER = Path(__file__).resolve().parent.parent / "templates"


@cache
def environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # these are shell, TOML and units, never HTML
    )


def render(path: str, **values: Any) -> str:
    """The template at *path* below ``templates/``."""
    return environment().get_template(path).render(**values)
