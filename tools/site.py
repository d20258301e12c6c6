"""The documentation as a site: ``python -m tools.site FOLDER``; needs the extra `docs`, no network.

The pages are those of the repository, each where it is: README, `docs/`, the notebooks of
`examples/`. What can be generated is: API, commands, settings, schemas, metrics. A link that leads
nowhere, in a page or a docstring, ends the build.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config

from tools.notebooks import as_markdown

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "README.md"
GENERATED = {  # titles of the pages made from the program
    "API": "reference/api.md",
    "Commands": "reference/commands.md",
    "Schemas": "reference/schemas.md",
    "Metrics": "reference/metrics.md",
}
PROMISED = ("rejection", "engine", "detectors", "facade", "checks")
_LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?(\))")


def navigation() -> dict[str, list[tuple[str, str]]]:
    """Return title and source of the pages of each part, as docs/README.md lists them."""
    parts = {}
    for part in INDEX.read_text(encoding="utf-8").split("\n## ")[1:]:
        links = re.findall(r"^- \[(.+?)\]\((.+?)\)", part, re.M)
        parts[part.partition("\n")[0]] = [
            (title, os.path.normpath(f"docs/{target}")) for title, target in links
        ]
    parts["Reference"] += GENERATED.items()
    return parts


def staged(source: str) -> str:
    """Return the path of a page of the repository on the site."""
    if source == "README.md":
        return "index.md"
    page = source.removeprefix("docs/").replace("README.md", "index.md").replace(".ipynb", ".md")
    return page if "/" in page or page.islower() else page.lower()


def stage(folder: Path) -> list[dict[str, object]]:
    """Write all pages below `folder` and return the navigation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    home = f"{project['urls']['Homepage']}/blob/main/"
    made = dict(generated())
    parts = navigation()
    pages = ["README.md", *(source for part in parts.values() for _, source in part)]
    for source in pages:
        target = folder / staged(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source in made:
            target.write_text(made[source], encoding="utf-8")
            continue
        path = ROOT / source
        if path.suffix == ".ipynb":
            text = as_markdown(path, target.with_suffix(""))
        else:
            text = path.read_text(encoding="utf-8")
        target.write_text(relinked(text, source, set(pages), folder, home), encoding="utf-8")
    return [
        {"Start": "index.md"},
        *({part: [{t: staged(s)} for t, s in entries]} for part, entries in parts.items()),
    ]


def relinked(text: str, source: str, pages: set[str], folder: Path, home: str) -> str:
    """Turn links into the repository into links between pages, or to the repository's own site."""

    def link(found: re.Match[str]) -> str:
        before, target, anchor, after = found.groups(default="")
        if (folder / staged(source)).parent.joinpath(target).exists():  # a notebook's picture
            return found[0]
        path = (ROOT / source).parent.joinpath(target).resolve()
        name = str(path.relative_to(ROOT))
        if name in pages:
            here = Path(staged(source)).parent
            return f"{before}{os.path.relpath(staged(name), here)}{anchor}{after}"
        if path.suffix in (".png", ".svg"):
            (folder / path.name).write_bytes(path.read_bytes())
            return f"{before}{os.path.relpath(path.name, Path(staged(source)).parent)}{after}"
        if not path.exists():
            sys.exit(f"{source} links to {target}, which is not there.")
        return f"{before}{home}{name}{anchor}{after}"

    return _LINK.sub(link, text)


# ------------------------------------------------------------------- pages made of the program
def generated() -> Iterator[tuple[str, str]]:
    """Yield name and text of every page that is made."""
    yield (
        "reference/api.md",
        "\n\n".join(
            [
                "# API\n\nPromised are the names that `rejex_stream` offers and those of the "
                "modules below; everything else may move.",
                *(f"## `rejex_stream.{name}`\n\n::: rejex_stream.{name}" for name in PROMISED),
            ]
        ),
    )
    yield "reference/commands.md", commands()
    yield "reference/schemas.md", schemas()
    yield "reference/metrics.md", metrics()


def commands() -> str:
    """Return what every command says of itself."""
    from rejex_stream.cli.main import _PARTS

    parts = [
        "# Commands\n\nResults go to standard output, everything else to standard error. Exit "
        "status 0: done; 1: failed; 2: the command or the config is wrong."
    ]
    for part in _PARTS:
        said = help_of(part.name)
        below = re.split(r"^Commands:\n", said, maxsplit=1, flags=re.M)
        parts.append(f"## `rejex-stream {part.name}`\n\n```text\n{said}\n```")
        for name in re.findall(r"^  ([a-z-]+)  ", below[1], re.M) if len(below) > 1 else ():
            said = help_of(part.name, name)
            parts.append(f"### `rejex-stream {part.name} {name}`\n\n```text\n{said}\n```")
    return "\n\n".join(parts) + "\n"


def help_of(*words: str) -> str:
    """Return the help of a command, without empty lines around it."""
    from rejex_stream.cli.main import main

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        main([*words, "--help"])
    return said.getvalue().strip()


def schemas() -> str:
    """Return the schemas of what is written, and of a config."""
    from rejex_stream.config.pipeline_config import config_schema
    from rejex_stream.encode.schemas import SCHEMAS, TOPICS, json_schema

    parts = [
        "# Schemas\n\n`rejex-stream schema print NAME` prints each. "
        "A change that breaks a reader gets a new version."
    ]
    for name in SCHEMAS:
        text = json.dumps(json_schema(name), indent=2, ensure_ascii=False)
        topic = f"Topic `{TOPICS[name]}` by default.\n\n" if name in TOPICS else ""
        parts.append(f"## {name}\n\n{topic}```json\n{text}\n```")
    text = json.dumps(config_schema(), indent=2, ensure_ascii=False)
    parts.append(f"## config\n\n```json\n{text}\n```")
    return "\n\n".join(parts) + "\n"


def metrics() -> str:
    """Return every metric of a run with what it means."""
    from rejex_stream.operate.run_metrics import RunMetrics

    lines = [
        "# Metrics\n\nAt `/metrics` with `metrics.port` set; groups on request, see "
        "[Monitor a pipeline](../howto/monitor.md).\n",
        "| metric | type | meaning |",
        "|---|---|---|",
    ]
    run = RunMetrics("pipeline", grouped=True)
    for family in run.registry.collect():
        name = family.name + "_total" * (family.type == "counter")
        meaning = family.documentation.replace("|", "\\|")
        lines.append(f"| `{name}` | {family.type} | {meaning} |")
    return "\n".join(lines) + "\n"


def on_page_content(html: str, **_: object) -> str:
    """Show names that docstrings mark for Sphinx as what they are: code."""
    return re.sub(r":(?:class|func|mod|data|meth|attr):<code>~?(?:[\w.]*\.)?(\w+)</code>",
                  r"<code>\1</code>", html)  # fmt: skip


def make(site: Path) -> None:
    """Build the site into a folder, strictly."""
    os.environ["COLUMNS"] = "100"
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        nav = stage(folder)
        shutil.copy(__file__, folder / "hooks.py")
        config = load_config(
            str(ROOT / "tools" / "mkdocs.yml"), docs_dir=kept, site_dir=str(site), nav=nav,
            strict=True, exclude_docs="hooks.py",
        )  # fmt: skip
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        config.plugins.on_shutdown()


if __name__ == "__main__":
    make(Path(sys.argv[1] if len(sys.argv) > 1 else "site").resolve())
