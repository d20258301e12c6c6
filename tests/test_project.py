"""What stands beside the code says what the code says: licence, citation, Pythons, targets."""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.metadata import packages_distributions
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest
import yaml

from tests.import_graph import imported, modules

ROOT = Path(__file__).resolve().parent.parent
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"

pytestmark = pytest.mark.skipif(
    not (ROOT / "LICENSE").exists(), reason="LICENSE is not here: the tests run without sources"
)


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def settings():
    return tomllib.loads(text("pyproject.toml"))


@pytest.fixture(scope="module")
def citation():
    return yaml.safe_load(text("CITATION.cff"))


@pytest.fixture(scope="module")
def bounds():
    loader = SourceFileLoader("bounds", str(ROOT / "tools" / "test-bounds"))
    module = module_from_spec(spec_from_loader("bounds", loader))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


def test_the_licence_is_apache_2_wherever_it_is_named(settings, citation):
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2
    assert settings["project"]["license-files"] == ["LICENSE"]
    assert settings["project"]["license"] == citation["license"] == "Apache-2.0"
    assert "[Apache-2.0](LICENSE)" in text("README.md")
    assert 'licenses="Apache-2.0"' in text("Dockerfile")


def test_the_native_core_has_the_licence_of_the_project():
    assert (ROOT / "native" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_citation_names_this_version_and_the_paper(settings, citation):
    project = settings["project"]
    assert citation["cff-version"] == "1.2.0"
    assert citation["title"] == project["name"]
    assert str(citation["version"]) == project["version"]
    assert citation["repository-code"] == project["urls"]["Homepage"]
    assert [author["name"] for author in citation["authors"]] == [
        author["name"] for author in project["authors"]
    ]
    paper = citation["preferred-citation"]
    assert (paper["type"], paper["year"]) == ("conference-paper", 2023)
    assert [author["family-names"] for author in paper["authors"]] == ["Perini", "Davis"]
    assert f"*{paper['title']}*" in text("README.md").replace("\n", " ")


@pytest.mark.thorough
def test_the_oldest_python_is_the_same_everywhere(settings, bounds):
    oldest = bounds.PYTHONS[0]
    assert settings["project"]["requires-python"] == f">={oldest}"
    assert settings["tool"]["mypy"]["python_version"] == oldest
    assert settings["tool"]["ruff"]["target-version"] == "py" + oldest.replace(".", "")
    assert f"Python {oldest} or newer" in text("README.md")
    assert f"Python {oldest} or newer" in text("CONTRIBUTING.md")


def test_the_pythons_that_are_tried_are_those_of_the_classifiers(settings, bounds):
    named = [
        line.rsplit(" ", 1)[1]
        for line in settings["project"]["classifiers"]
        if line.startswith("Programming Language :: Python :: 3.")
    ]
    assert bounds.PYTHONS == named == [f"3.{11 + i}" for i in range(len(named))]
    tried = bounds.combinations({version: Path(sys.executable) for version in named})
    assert {combination.version for combination in tried if combination.tests} == set(named)
    lowest = [combination for combination in tried if combination.end == "lowest"]
    assert [combination.version for combination in lowest] == named
    assert all((ROOT / test).exists() for combination in tried for test in combination.tests)


def test_a_single_python_is_tried_at_both_ends(bounds):
    tried = bounds.combinations({"3.12": Path(sys.executable)})
    assert [(one.end, one.version, one.tests) for one in tried] == [
        ("lowest", "3.12", bounds.CORE),
        ("newest", "3.12", bounds.CORE),
    ]


def test_a_shim_without_a_python_behind_it_is_passed_over(bounds, tmp_path, monkeypatch):
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setenv("PATH", str(tmp_path))
    shim = tmp_path / f"python{version}"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert bounds.interpreter(version) is None
    pyenv = tmp_path / "pyenv"
    pyenv.write_text(f"#!/bin/sh\necho '{tmp_path}'\n")
    pyenv.chmod(0o755)
    here = tmp_path / "versions" / f"{version}.9" / "bin" / "python"
    here.parent.mkdir(parents=True)
    os.symlink(sys.executable, here)
    assert bounds.interpreter(version) == here
    assert bounds.interpreter("3.10") is None


def test_a_plain_install_reads_what_other_peoples_producers_compress(settings):
    (client,) = (one for one in settings["project"]["dependencies"] if "kafka-python" in one)
    assert set(re.findall(r"\w+", client[client.index("[") : client.index("]")])) >= {
        "lz4", "snappy", "zstd",
    }  # fmt: skip


def test_every_requirement_has_a_lower_bound_and_it_is_seen_to_be_lifted(
    settings, bounds, tmp_path
):
    project = settings["project"]
    extras = project["optional-dependencies"].values()
    for requirement in [*project["dependencies"], *(one for extra in extras for one in extra)]:
        name = re.match(r"[a-z0-9-]+", requirement)[0]
        own = name in (project["name"], "rejex-stream-native")
        assert own or name in bounds.BOUNDS, requirement
    lock = tmp_path / "lock.txt"
    low, other = bounds.BOUNDS["numpy"], "six==1.0"
    lock.write_text(f"# made by uv\nnumpy=={low}\n{other}\n")
    combination = bounds.combinations({"3.11": Path(sys.executable)})[0]
    assert combination.lifted(lock) == []
    lock.write_text(f"numpy=={low}.1\n{other}\n")
    assert combination.lifted(lock) == [f"numpy>={low} installs as {low}.1"]


@pytest.mark.thorough
def test_what_is_imported_is_required(settings):
    project = settings["project"]
    extras = project["optional-dependencies"].values()
    texts = [*project["dependencies"], *(one for extra in extras for one in extra)]
    required = {re.match(r"[A-Za-z0-9-]+", one)[0] for one in texts}
    # Come with a requirement, which promises them.
    required |= {"markupsafe", "py4j", "pydantic-core", project["name"]}
    roots = (ROOT / "rejex_stream", ROOT / "connectors" / "rejex_connectors")
    own = {"rejex_stream", "rejex_connectors", "rejex_native"}  # the last is built of native/
    sources = {name: path for root in roots for name, path in modules(root).items()}
    names = {
        name.partition(".")[0]
        for path in sources.values()
        for name in imported(path.read_text(encoding="utf-8"), "rejex_stream.any")
    }
    offered = packages_distributions()
    for name in names - sys.stdlib_module_names - own:
        offers = {one.lower().replace("_", "-") for one in offered.get(name, [name])}
        assert offers & required, f"{name} is of {offers}, which pyproject.toml does not require"


def test_make_help_lists_every_target():
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^make ([a-z-]+)  +\S", done.stdout, re.M)
    targets = re.search(r"^\.PHONY: (.*)$", text("Makefile"), re.M)[1].split()
    assert sorted([*listed, "help"]) == sorted(targets)


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_what_is_linked_is_there(name):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text(name)):
        assert (ROOT / target).exists(), target


def test_ci_ends_with_the_tests():
    lines = text(".ci/run").strip().splitlines()
    assert lines[-1].startswith('make "${CI_SUITE:-test}" ')
    assert "--rerun-show-tracebacks" in lines[-1], "what passed the second time says why"
    assert "  phase make test-bounds" in lines
