"""One TOML file, one immutable value: the configuration of a pipeline."""

from rejex_stream.config.load import check_config, load_config, parse_config
from rejex_stream.config.model import Config
from rejex_stream.config.problems import Problem
from rejex_stream.config.table import settings, settings_markdown

__all__ = [
    "Config",
    "Problem",
    "check_config",
    "load_config",
    "parse_config",
    "settings",
    "settings_markdown",
]
