"""docker-compose.yml without a Docker engine: its schema, its files, and the commands it holds."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.program import ended

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docker-compose.yml"
SCHEMA = Path(__file__).parent / "golden" / "compose" / "compose_spec.json"

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not FILE.exists(), reason="docker-compose.yml is not here: the tests run without sources"
    ),
]


@pytest.fixture(scope="module")
def compose():
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def test_it_meets_the_compose_schema(compose):
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    validator = jsonschema.Draft201909Validator(schema)
    known = {key: value for key, value in compose.items() if key != "name"}  # younger than it
    assert list(validator.iter_errors(known)) == []
    broken = {**known, "services": {"x": {"imagee": "y"}}}
    assert list(validator.iter_errors(broken))


def test_everything_that_is_mounted_is_there(compose):
    for name, service in compose["services"].items():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), f"{name} mounts {source}"
            else:
                assert source in compose["volumes"], f"{name} uses the volume {source}"


def test_conditions_name_services_that_can_meet_them(compose):
    services = compose["services"]
    for name, service in services.items():
        for other, condition in service.get("depends_on", {}).items():
            assert other in services, f"{name} waits for {other}"
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{other} has no health check"
            if condition["condition"] == "service_completed_successfully":
                assert services[other]["restart"] == "no", f"{other} never ends"


def test_nothing_listens_beyond_this_machine(compose):
    for name, service in compose["services"].items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} publishes {port}"


def test_the_broker_writes_where_its_volume_is(compose):
    broker = compose["services"]["kafka"]
    (volume,) = broker["volumes"]
    assert broker["environment"]["KAFKA_LOG_DIRS"] == volume.split(":")[1]
    version = broker["image"].partition(":")[2]
    pom = (ROOT / "tools" / "kafka" / "pom.xml").read_text(encoding="utf-8")
    assert version in pom  # the one that the tests start


def test_one_service_builds_the_image_and_no_other_looks_for_it_elsewhere(compose):
    ours = [s for s in compose["services"].values() if s["image"].startswith("rejex-stream")]
    assert len([s for s in ours if "build" in s]) == 1
    assert {s["pull_policy"] for s in ours if "build" not in s} == {"never"}


def test_the_console_reads_every_pipeline(compose):
    from rejex_stream.cli.commands.review import load_pipelines, overridden

    runs = {s["command"][1] for s in compose["services"].values()
            if s.get("command", [None])[0] == "run"}  # fmt: skip
    command = compose["services"]["console"]["command"]
    read = {word.partition("=")[2] for word in command if word.startswith("--config=")}
    assert read == runs
    assert len(runs) == 2
    configs = load_pipelines([ROOT / "deploy" / Path(path).name for path in sorted(read)])
    overridden(configs)  # refuses pipelines that one queue cannot serve


def test_our_containers_are_not_root_and_cannot_write_their_image(compose):
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert text.index("USER rejex") < text.index("ENTRYPOINT")
    for service in compose["services"].values():
        if service["image"].startswith("rejex-stream"):
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]


def test_every_command_of_ours_is_one_that_exists(compose, rejex):
    for name, service in compose["services"].items():
        if not service["image"].startswith("rejex-stream") or "entrypoint" in service:
            continue
        words = [word for word in service["command"] if not word.startswith(("-", "/"))]
        done = rejex(*words, "--help")
        assert done.status == 0, f"{name}: {done.stderr}"
        for word in service["command"]:
            if word.startswith("--"):
                assert word.split("=")[0] in done.stdout, f"{name}: {word}"


@pytest.mark.parametrize("name", ["turbine", "leak"])
def test_the_pipelines_are_valid(name, rejex):
    done = rejex("validate", ROOT / "deploy" / f"{name}.toml")
    assert done.status == 0, done.stderr


def test_the_dashboard_that_is_mounted_is_the_one_that_is_printed(compose):
    mounted = "./rejex_stream/operate/dashboard.json:/var/lib/grafana/dashboards/"
    assert any(mounted in volume for volume in compose["services"]["grafana"]["volumes"])
    assert (ROOT / "rejex_stream" / "operate" / "dashboard.json").is_file()


@pytest.mark.prometheus
def test_promtool_accepts_the_prometheus_config(tmp_path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool on this machine (Debian: prometheus)")
    text = (ROOT / "deploy" / "prometheus.yml").read_text(encoding="utf-8")
    rules = ROOT / "rejex_stream" / "operate" / "alerts.yml"
    (tmp_path / "prometheus.yml").write_text(
        text.replace("/etc/prometheus/alerts.yml", str(rules)), encoding="utf-8"
    )
    done = ended([promtool, "check", "config", tmp_path / "prometheus.yml"])
    assert done.returncode == 0, done.stdout + done.stderr
