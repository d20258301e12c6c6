"""What people install and start it with: size, completion, editors, systemd, Kubernetes."""

import copy
import json
import os
import re
import runpy
import shlex
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path

import jsonschema
import pytest
import yaml

from rejex_stream.config.pipeline_config import config_schema
from rejex_stream.detectors import PYOD, SENSOR
from tests import program
from tests.program import ended
from tools.release import apart, problems, versions

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "deploy" / "helm" / "rejex-stream"
UNIT = ROOT / "deploy" / "systemd" / "rejex-stream@.service"
SCHEMAS = Path(__file__).parent / "golden" / "helm" / "schemas.json"

pytestmark = pytest.mark.skipif(
    not CHART.exists(), reason="deploy/ is not here: the tests run from a copy without sources"
)


# -------------------------------------------------------------------------------- weight
@pytest.mark.thorough
def test_without_what_only_pyod_asks_for_a_plain_install_stays_below_400_mb():
    weigh = runpy.run_path(str(ROOT / "tools" / "install-size"))["weigh"]
    whole, lean = weigh("rejex-stream"), weigh("rejex-stream", without={"numba", "matplotlib"})
    assert {"numba", "llvmlite", "matplotlib", "scipy", "pyod"} <= whole.keys()
    assert not {"numba", "llvmlite", "matplotlib", "pillow", "fonttools"} & lean.keys()
    assert 50e6 < sum(lean.values()) < 400e6
    said = (ROOT / "docs" / "howto" / "install.md").read_text(encoding="utf-8")
    (most,) = re.findall(r"A plain install is (\d+) MB", said)
    assert sum(whole.values()) / 1e6 == pytest.approx(float(most), rel=0.15)


@pytest.mark.thorough
def test_an_idle_worker_is_small_and_loads_nothing_that_only_pyod_asks_for():
    measured = runpy.run_path(str(ROOT / "tools" / "install-size"))
    resident, loaded = measured["idle_worker"]()
    assert loaded == []
    assert resident < 130e6, "docs/howto/install.md says 120 MB; other builds of numpy weigh more"
    assert measured["first_import"]() < 0.1


LEAN = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite", "matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
import numpy as np
from rejex_stream.detectors import make_detector
from rejex_stream.errors import DetectorError
X = np.random.default_rng(0).normal(size=(100, 3))
for name in sys.argv[1:]:
    params = {
        "rejex:Ensemble": {"members": ("KNN", "ECOD")},
    }
    try:
        make_detector(name, **params.get(name, {})).fit(X, seed=0).score(X[:2])
    except DetectorError as error:
        assert "numba" in str(error), error
        print(name)
"""


@pytest.mark.thorough
def test_two_detectors_need_what_a_lean_install_leaves_out():
    names = [f"pyod:{name}" for name in PYOD if name != "AE"] + [f"rejex:{n}" for n in SENSOR]
    done = ended([sys.executable, "-c", LEAN, *names])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["pyod:GMM", "pyod:HBOS"]


# ---------------------------------------------------------------------------- completion
@pytest.mark.thorough
@pytest.mark.parametrize(("typed", "offered"), [
    ("rejex-stream val", {"validate"}), ("rejex-stream schema ", {"print"}),
    ("rejex-stream plan --contam", {"--contamination"}),
], ids=["command", "group", "option"])  # fmt: skip
def test_a_shell_completes_commands_and_options(typed, offered):
    words = typed.split(" ")
    done = program.rejex(
        _REJEX_STREAM_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1)
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_completion_can_be_installed():
    # Typer asks which shell it was called from; `true` keeps bash from replacing itself.
    command = shlex.join([sys.executable, "-m", "rejex_stream", "--show-completion"]) + "; true"
    done = ended(["bash", "-c", command])
    assert "_REJEX_STREAM_COMPLETE" in done.stdout, done.stderr


# ------------------------------------------------------------------------------- editors
@pytest.fixture(scope="module")
def validator():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


CONFIGS = sorted(
    path
    for folder in ("examples", "deploy", "rejex_stream/demo")
    for path in (ROOT / folder).glob("*.toml")
)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_schema_takes_every_config_that_is_here(validator, path):
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    assert [error.message for error in validator.iter_errors(given)] == []


@pytest.mark.parametrize(("change", "named"), [
    ({"rejection": {"contamination": 0.7}}, "0.7 is greater than or equal to the maximum"),
    ({"rejection": {"contamination": 0.02, "tolerence": 32}}, "'tolerence' was unexpected"),
    ({"kafka": {"client": "best"}}, "'best' is not one of"),
    ({"rejecton": {}}, "'rejecton' was unexpected"),
], ids=["limit", "key", "choice", "section"])  # fmt: skip
def test_the_schema_refuses_what_validate_refuses(validator, change, named):
    given = tomllib.loads((ROOT / "examples" / "kafka.toml").read_text(encoding="utf-8")) | change
    said = [error.message for error in validator.iter_errors(given)]
    assert any(named in message for message in said), said


@pytest.mark.thorough
def test_every_setting_is_explained_to_the_editor(rejex):
    schema = config_schema()
    for name, part in schema["$defs"].items():
        for key, declared in part.get("properties", {}).items():
            assert declared.get("description"), f"{name}.{key}"
            assert "null" not in json.dumps(declared.get("anyOf", [])), f"{name}.{key}"
    assert json.loads(rejex("schema", "print", "config").stdout) == schema


# -------------------------------------------------------------------------------- systemd
@pytest.mark.thorough
def test_systemd_accepts_the_unit_and_the_program_its_commands(tmp_path, rejex):
    text = UNIT.read_text(encoding="utf-8")
    for command in re.findall(r"^Exec\w+=/opt/rejex-stream/bin/rejex-stream (\w+)", text, re.M):
        assert rejex(command, "--help").status == 0, command
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze on this machine")
    unit = tmp_path / UNIT.name
    unit.write_text(text.replace("/opt/rejex-stream/bin/rejex-stream", "/bin/true"))
    done = ended([analyze, "verify", unit])
    assert (done.returncode, done.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("DynamicUser=yes", "DynamicUsr=yes"))
    done = ended([analyze, "verify", unit])
    assert "DynamicUsr" in done.stderr


# ----------------------------------------------------------------------------- Kubernetes
EVERYTHING = (
    "keda.enabled=true,podMonitor.enabled=true,podMonitor.labels.team=plant,secrets={broker},"
    "keda.authenticationRef=broker,console.leads={ada},console.storage.className=fast,"
    "nodeSelector.disk=ssd"
)


@pytest.fixture(scope="module")
def helm():
    found = os.environ.get("REJEX_TEST_HELM") or shutil.which("helm")
    if found is None:
        if os.environ.get("REJEX_REQUIRE_HELM"):
            pytest.fail("REJEX_REQUIRE_HELM is set and there is no helm on this machine")
        pytest.skip(
            "THE CHART WAS NOT RENDERED: no helm here "
            "(go install helm.sh/helm/v3/cmd/helm@v3.19.0, or REJEX_TEST_HELM=/path/to/helm)"
        )
    return found


def rendered(helm, chosen="", *more):
    words = ["template", "plant", CHART, "--kube-version", "1.30.0", "--set", chosen]
    done = ended([helm, *words, *more])
    assert done.returncode == 0, done.stderr
    return [part for part in yaml.safe_load_all(done.stdout) if part]


def complaints(document, schemas):
    kind = f"{document['apiVersion']} {document['kind']}"
    schema = {"$defs": schemas["$defs"], **schemas["kinds"][kind]}
    found = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return [f"{kind} {error.json_path}: {error.message[:200]}" for error in found]


@pytest.mark.parametrize("chosen", ["", EVERYTHING, "console.enabled=false,topics.create=false"],
                         ids=["defaults", "everything", "least"])  # fmt: skip
def test_every_document_of_the_chart_meets_its_published_schema(helm, chosen):
    schemas = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    documents = rendered(helm, chosen)
    assert len(documents) >= 5
    assert [line for one in documents for line in complaints(one, schemas)] == []
    broken = copy.deepcopy(next(d for d in documents if d["kind"] == "StatefulSet"))
    broken["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    assert any("volumeMount" in line for line in complaints(broken, schemas))
    for one in documents:
        if one["kind"] == "ScaledObject":
            given = one["spec"]["triggers"][0]["metadata"]
            assert given.keys() <= set(schemas["kafka_scaler"])


def test_workers_keep_their_names_and_the_console_is_alone(helm):
    documents = {(d["kind"], d["metadata"]["name"]): d for d in rendered(helm, EVERYTHING)}
    workers = documents["StatefulSet", "plant-worker"]["spec"]
    assert "replicas" not in workers  # KEDA's
    (worker,) = workers["template"]["spec"]["containers"]
    env = {one["name"]: one for one in worker["env"]}
    named = env["REJEX_KAFKA__INSTANCE_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert named == "metadata.name"
    assert worker["envFrom"] == [{"secretRef": {"name": "broker"}}]
    console = documents["Deployment", "plant-console"]["spec"]
    assert (console["replicas"], console["strategy"]) == (1, {"type": "Recreate"})
    scaled = documents["ScaledObject", "plant"]["spec"]["scaleTargetRef"]
    assert scaled["name"] == "plant-worker"
    monitored = documents["PodMonitor", "plant"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= workers["template"]["metadata"]["labels"].items()


def test_the_charts_commands_are_the_programs_and_its_default_config_is_valid(
    helm, tmp_path, rejex, monkeypatch
):
    documents = rendered(helm, EVERYTHING)
    for one in documents:
        for container in (
            one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())
        ):
            words = container["args"]
            group = [word for word in words if not word.startswith(("-", "/"))]
            said = rejex(*group, "--help")
            assert said.status == 0, said.stderr
            for word in words:
                if word.startswith("--"):
                    assert word.partition("=")[0] in said.stdout, word
    (config,) = (one for one in documents if one["kind"] == "ConfigMap")
    path = tmp_path / "pipeline.toml"
    path.write_text(config["data"]["pipeline.toml"], encoding="utf-8")
    monkeypatch.setenv("REJEX_KAFKA__INSTANCE_ID", "plant-worker-0")
    monkeypatch.setenv("REJEX_METRICS__HOST", "0.0.0.0")
    monkeypatch.setenv("REJEX_METRICS__PORT", "9108")
    done = rejex("validate", path)
    assert done.status == 0, done.stderr


def test_a_chart_without_a_pipeline_says_what_is_missing(helm):
    done = ended([helm, "template", CHART, "--kube-version", "1.30.0", "--set", "config="])
    assert "give the pipeline with --set-file config=pipeline.toml" in done.stderr


# -------------------------------------------------------------------------------- release
def test_one_version_everywhere():
    found = versions()
    assert len(found) == 11
    assert apart(found) == ""
    assert apart(found | {"CITATION.cff": "0.0.9"}) == "CITATION.cff: 0.0.9"


def test_a_release_without_licence_or_for_one_machine_alone_is_refused(tmp_path):
    good = tmp_path / "a-1-cp311-abi3-manylinux_2_17_x86_64.whl"
    with zipfile.ZipFile(good, "w") as wheel:
        wheel.writestr("a-1.dist-info/licenses/LICENSE", "Apache")
    bare, narrow = tmp_path / "a-1-py3-none-any.whl", tmp_path / "a-1-cp311-abi3-linux_x86_64.whl"
    zipfile.ZipFile(bare, "w").close()
    shutil.copy(good, narrow)
    said = list(problems([good, bare, narrow]))
    assert [line.split()[0] for line in said] == [bare.name, narrow.name]
    assert "no LICENSE" in said[0]
    assert "this machine alone" in said[1]


def test_every_target_the_releasing_page_names_is_there():
    page = (ROOT / "docs" / "howto" / "release.md").read_text(encoding="utf-8")
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`make ([a-z-]+)", page)):
        assert f"\n{target}:" in targets, target


def test_workflows_call_what_is_here_on_the_pythons_that_are_named():
    targets = (ROOT / "Makefile").read_text(encoding="utf-8")
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "classifiers"
    ]
    pythons = set(re.findall(r"Python :: (3\.\d+)$", "\n".join(classifiers), re.M))
    called = []
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
        steps = [step for job in jobs.values() for step in job["steps"]]
        called += [step["run"] for step in steps if "run" in step]
        asked = [str(step["with"]["python-version"]).split() for step in steps
                 if "setup-python" in step.get("uses", "")]  # fmt: skip
        assert asked, path
        assert set(asked[0]) == pythons, path
        assert asked[0][-1] == min(pythons), "the last is the one that `python3` is"
    assert ".ci/run" in called
    made = [line.split()[1] for line in called if line.startswith("make ")]
    assert "dist" in made
    for target in made:
        assert f"\n{target}:" in targets, target


def test_the_image_is_built_of_nothing_but_what_it_copies():
    allowed = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    }
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        word
        for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.M)
        for word in line.split()[:-1]
    }
    assert allowed == copied
