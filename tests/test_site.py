"""The documentation as a site: built without a network, whole, and what it says runs."""

import fcntl
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
from pathlib import Path

import pytest

from rejex_stream.cli.main import _PARTS
from rejex_stream.config import load_config
from rejex_stream.config.pipeline_config import settings
from rejex_stream.operate.run_metrics import RunMetrics
from tests.program import ended

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
DETECTOR = ROOT / "docs" / "howto" / "detector.md"

pytestmark = pytest.mark.skipif(
    not DETECTOR.exists() or not (ROOT / "tools").exists(),
    reason="docs/ is not here: the tests run from a copy without sources",
)
ALONE = """
import socket, sys
def refuse(*_):
    raise AssertionError("the site asks the network")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from pathlib import Path
from tools.site import make
make(Path(sys.argv[1]))
"""


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built once for all workers of a test run."""
    if importlib.util.find_spec("mkdocs") is None:
        if os.environ.get("REJEX_REQUIRE_DOCS"):
            pytest.fail("REJEX_REQUIRE_DOCS is set and mkdocs is not installed (extra `docs`)")
        pytest.skip("the extra `docs` is not installed")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, built = base / "site", base / "site-built"
    with (base / "site-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            done = ended([sys.executable, "-W", "ignore", "-c", ALONE, folder], cwd=ROOT)
            built.write_text("" if done.returncode == 0 else done.stdout + done.stderr)
    assert not built.read_text()
    return folder


@pytest.mark.thorough
def test_it_has_four_parts_and_loads_nothing_from_elsewhere(site):
    start = (site / "index.html").read_text(encoding="utf-8")
    for part in ("Tutorials", "How-to", "Reference", "Explanation"):
        assert re.search(rf">\s*{part}\s*<", start), part
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|img)[^>]+src=\"(?:https?:)?//[^\"]+", text), page
        assert not re.findall(r"<link[^>]+rel=\"stylesheet\"[^>]+href=\"https?://", text), page


@pytest.mark.thorough
def test_the_reference_holds_every_name_command_setting_and_metric(site):
    def page(name):
        return (site / name / "index.html").read_text(encoding="utf-8")

    api = page("reference/api")
    anchors = {a.rpartition(".")[2] for a in re.findall(r'id="(rejex_stream\.[\w.]+)"', api)}
    for home in ("rejection", "engine", "detectors", "facade", "checks"):
        module = importlib.import_module(f"rejex_stream.{home}")
        named = {n for n in module.__all__ if inspect.isroutine(getattr(module, n))}
        named |= {n for n in module.__all__ if inspect.isclass(getattr(module, n))}
        assert named - anchors == set(), home
    assert "<h1" in api
    assert ":class:<code>" not in api
    commands = page("reference/commands")
    for part in _PARTS:
        assert f"<code>rejex-stream {part.name}</code>" in commands
    listed = page("reference/settings")
    for row in settings():
        assert f"<code>{row.key.rpartition('.')[2]}</code>" in listed, row.key
    metrics = page("reference/metrics")
    for family in RunMetrics("p").registry.collect():
        assert f"<code>{family.name}" in metrics, family.name


@pytest.mark.thorough
def test_every_page_of_docs_is_on_it(site):
    for path in set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "README.md"}:
        page = path.relative_to(ROOT / "docs").with_suffix("")
        assert (site / page / "index.html").exists(), page


# ------------------------------------------------------------------------------ what it says
@pytest.mark.thorough
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom_and_keeps_no_output(path):
    from tools.notebooks import run

    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    assert len({cell["id"] for cell in cells}) == len(cells)
    ran = [cell for cell in run(path) if cell.kind == "code"]
    assert len(ran) >= 5
    assert sum(len(cell.pictures) for cell in ran) == 1
    assert all(cell.output or cell.pictures for cell in ran)


def test_a_notebook_is_listed():
    readme = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in NOTEBOOKS} == set(re.findall(r"\]\((\w+\.ipynb)\)", readme))


@pytest.mark.thorough
def test_the_page_about_a_detector_of_ones_own_is_right(tmp_path):
    text = DETECTOR.read_text(encoding="utf-8")
    *module, laws = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "plant.py").write_text("\n".join(module), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = ended([sys.executable, "-c", laws], env=environment)
    assert done.returncode == 0, done.stderr
    script = tmp_path / "script.py"
    own = laws.replace("from plant import FromTheMedian", "\n".join(module))
    script.write_text(own, encoding="utf-8")
    done = ended([sys.executable, script], env=environment)
    assert "put it into a module of its own, and import it" in done.stderr


def test_the_config_of_the_topics_tutorial_is_valid(tmp_path):
    text = (ROOT / "docs" / "tutorials" / "topic.md").read_text(encoding="utf-8")
    (config,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    path = tmp_path / "first-hour.toml"
    path.write_text(config, encoding="utf-8")
    assert load_config(path).pipeline.name == "first-hour"
