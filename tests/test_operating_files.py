"""The files for who operates a server: alert rules, dashboard, Kubernetes, KEDA and systemd."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.process import find_program, run_program
from zaqar_lite.api.application import Application
from zaqar_lite.main import create_app
from zaqar_lite.server.loading import load
from zaqar_lite.service.metrics.shared_counters import MetricType
from zaqar_lite.settings import Settings

FILES = Path(__file__).parents[1] / "api-ref/source/operating"
DEFAULTS = load(environment={})
COUNTED = {
    "since": 1,
    "totals": [1, 1, 1],
    "queues": 1,
    "subscriptions": 1,
    "pending": 1,
    "took": 1.0,
    "at": 1.0,
}
_NAME = re.compile(r"\bzaqar_lite_\w+")


def application() -> Application:
    return create_app(load(environment={}, overrides={"store": "memory://"}))


def exported() -> set[str]:
    """Every name that a scrape can show."""
    app = application()
    names: set[str] = set()
    for family in app.metrics.families.all:
        suffixes = ("_bucket", "_sum", "_count") if family.kind is MetricType.HISTOGRAM else ("",)
        names |= {family.name + suffix for suffix in suffixes}
    shown = [["p", "q", 1, 1, 1, 1, True]]
    page = app.metrics.show({**COUNTED, "shown": shown})
    return names | set(_NAME.findall(page))


def documents(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(yaml.safe_load_all((FILES / name).read_text()))
    return found


@pytest.mark.parametrize("name", ["alerts.yaml", "alerts-test.yaml", "dashboard.json"])
def test_every_metric_that_is_named_exists(name: str) -> None:
    named = set(_NAME.findall((FILES / name).read_text()))
    assert len(named) > 10
    assert named <= exported()


def test_the_rules_do_what_their_tests_say() -> None:
    promtool = find_program("promtool", package="prometheus")
    for words in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts-test.yaml"]):
        done = run_program([promtool, *words], cwd=FILES)
        assert done.returncode == 0, done.stdout + done.stderr
    rules = {rule["alert"] for rule in documents("alerts.yaml")[0]["groups"][0]["rules"]}
    for test in documents("alerts-test.yaml")[0]["tests"]:
        assert {case["alertname"] for case in test["alert_rule_test"]} == rules


def test_promtool_reads_what_a_scrape_shows() -> None:
    promtool = find_program("promtool", package="prometheus")
    app = application()
    shown = [["p", 'q"\\', 1, 1, 1, 1, True]]
    page = app.metrics.show({**COUNTED, "shown": shown})
    done = run_program([promtool, "check", "metrics"], input=page)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["kubernetes-embedded.yaml", "kubernetes-redis.yaml"])
def test_kubernetes_gets_pods_that_fit_together(name: str) -> None:
    first, *others = documents(name)
    spec = first["spec"]
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    (container,) = pod["containers"]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    paths = {route.template for route in application().routes if route.public}
    assert {probe["path"] for probe in probes} == {"/livez", "/readyz"} & paths
    assert probes[1]["path"] == "/readyz"
    assert probes[2]["path"] == "/livez"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {probe["port"] for probe in probes} <= set(ports)
    assert ports["http"] == DEFAULTS.port
    settings = {one["name"].removeprefix("ZAQAR_LITE_").lower() for one in container["env"]}
    assert settings <= set(Settings.model_fields)
    delay = float(container["env"][0]["value"])
    assert pod["terminationGracePeriodSeconds"] > delay + DEFAULTS.shutdown_timeout + 20
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    claimed = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", ())}
    assert mounted == {volume["name"] for volume in pod["volumes"]} | claimed
    kinds = {document["kind"]: document["spec"] for document in others}
    assert kinds["Service"]["selector"] == labels
    assert kinds["NetworkPolicy"]["podSelector"]["matchLabels"] == labels
    if spec["replicas"] == 1:
        assert first["kind"] == "StatefulSet"
    else:
        assert kinds["PodDisruptionBudget"]["selector"]["matchLabels"] == labels
        assert kinds["PodDisruptionBudget"]["minAvailable"] < spec["replicas"]


def test_keda_asks_for_a_depth_that_is_answered() -> None:
    scaled = documents("keda.yaml")[-1]["spec"]
    asked = scaled["triggers"][0]["metadata"]
    assert re.fullmatch(r"http://zaqar-lite:8888/v2/queues/\w+/depth\?state=[a-z,]+", asked["url"])
    templates = {route.template for route in application().routes if route.plain}
    assert "/v2/queues/{queue_name}/depth" in templates
    assert asked["valueLocation"] == "depth"


@pytest.mark.parametrize("with_credentials", [False, True])
def test_systemd_takes_the_unit(tmp_path: Path, with_credentials: bool) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not here")
    text = (FILES / "zaqar-lite.service").read_text()
    assert {"Type=notify", "WatchdogSec=30", "DynamicUser=yes"} < set(text.splitlines())
    optional = re.compile(r"^#(LoadCredential=.*|Environment=.*)$", re.MULTILINE)
    assert len(optional.findall(text)) == 2
    if with_credentials:
        text = optional.sub(r"\1", text)
        named = re.findall(r"^Environment=ZAQAR_LITE_(\w+)=%d/(\S+)$", text, re.MULTILINE)
        assert {name.lower() for name, _ in named} <= set(Settings.model_fields)
        assert {file for _, file in named} == set(re.findall(r"LoadCredential=([^:]+):/", text))
    unit = tmp_path / "zaqar-lite.service"
    unit.write_text(text.replace("/opt/zaqar-lite/bin/zaqar-lite", "/bin/true"))
    done = run_program(["systemd-analyze", "verify", "--man=no", str(unit)])
    assert done.returncode == 0, done.stderr
    assert "zaqar-lite.service" not in done.stderr, done.stderr
