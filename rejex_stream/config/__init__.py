"""One TOML file in, one immutable value out, and every problem of it told at once.

Open `model` first: it collects the sections, one class each, from which `table` makes
``docs/settings.md``; `load` reads a file, `checks` sees what no section can see alone, `problems`
finds the words. `assembly` makes running parts of it.
"""

from rejex_stream.config.load import check_config, load_config, name_of, parse_config
from rejex_stream.config.model import Config
from rejex_stream.config.table import settings, settings_markdown
from rejex_stream.settings import Problem

__all__ = [
    "Config",
    "Problem",
    "check_config",
    "load_config",
    "name_of",
    "parse_config",
    "settings",
    "settings_markdown",
]
