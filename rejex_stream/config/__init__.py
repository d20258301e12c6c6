"""One TOML file in, one immutable value out, and every problem of it told at once.

Open `pipeline_config` first: it collects the sections, one class each, and makes
``docs/reference/settings.md`` of them; `load` reads a file and sees what no section can see alone.
`assembly` makes running parts.
"""

from rejex_stream.config.load import check_config, load_config, name_of, parse_config
from rejex_stream.config.pipeline_config import Config, settings, settings_markdown
from rejex_stream.settings import Problem

__all__ = [
    "Config", "Problem", "check_config", "load_config", "name_of", "parse_config", "settings",
    "settings_markdown",
]  # fmt: skip
