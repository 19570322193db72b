"""`kstreams k8s` and `kstreams systemd`: what they print for a graph and its settings, and what they refuse."""
# ruff: noqa: ISC004

from __future__ import annotations

import getpass
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from kstreams_py.cli import deploy
from kstreams_py.deployment.kubernetes import Deployment, kubernetes_name, manifest
from kstreams_py.errors import NOT_RESTARTED, GraphError, SettingsError
from kstreams_py.jobs.cluster.commands import Scheduler

VERSIONS = ("1.30.0", kubernetes_validate.latest_version())

GRAPH = """
import kstreams_py as ks

graph = ks.Graph({name!r})
graph.map(graph.topic("orders"), to=graph.topic("priced"), id="price")(lambda value: value)
"""

MANIFEST = """\
apiVersion: v1
kind: Service
metadata:
  name: "my-shop"
  namespace: "sales"
  labels: {app.kubernetes.io/name: "my-shop", app.kubernetes.io/part-of: kstreams}
spec:
  clusterIP: None
  publishNotReadyAddresses: true  # metrics are also read from pods that are not ready
  selector: {app.kubernetes.io/name: "my-shop", app.kubernetes.io/part-of: kstreams}
  ports:
    - name: http
      port: 9000
      targetPort: http
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: "my-shop"
  namespace: "sales"
  labels: {app.kubernetes.io/name: "my-shop", app.kubernetes.io/part-of: kstreams}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {app.kubernetes.io/name: "my-shop", app.kubernetes.io/part-of: kstreams}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: "my-shop"
  namespace: "sales"
  labels: {app.kubernetes.io/name: "my-shop", app.kubernetes.io/part-of: kstreams}
spec:
  serviceName: "my-shop"
  replicas: 4
  podManagementPolicy: Parallel  # slots do not wait for one another
  selector:
    matchLabels: {app.kubernetes.io/name: "my-shop", app.kubernetes.io/part-of: kstreams}
  template:
    metadata:
      labels: {app.kubernetes.io/name: "my-shop", app.kubernetes.io/part-of: kstreams}
    spec:
      enableServiceLinks: false  # a Service named kstreams-... would set variables KSTREAMS_...
      terminationGracePeriodSeconds: 41  # longer than drain_timeout_ms
      automountServiceAccountToken: false
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001  # the UID in docker/Dockerfile: the kubelet cannot check that a user with a name is not root
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: worker
          image: "images/shop:1"
          args: ["run", "shop.py", "--slot", "auto", "--create-topics"]
          env:
            - name: "KSTREAMS_STATE_DIRECTORY"
              value: "/data/state"
            - name: "KSTREAMS_BOOTSTRAP_SERVERS"
              value: "kafka:9092"
            - name: "KSTREAMS_DRAIN_TIMEOUT_MS"
              value: "30500"
            - name: "KSTREAMS_KAFKA__SECURITY_PROTOCOL"
              value: "SASL_SSL"
            - name: "PRICE"
              value: "5 $$ \\"net\\", $$(VAT)=é"
            - name: "KSTREAMS_HTTP"
              value: "0.0.0.0:9000"
          envFrom:
            - secretRef: {name: "shop.passwords"}
          resources:
            requests: {cpu: "500m", memory: "512Mi"}
            limits: {memory: "512Mi"}
          ports:
            - name: http
              containerPort: 9000
          startupProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /livez, port: http}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 5
            timeoutSeconds: 5
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {drop: [ALL]}
          volumeMounts:
            - name: data
              mountPath: /data
            - name: tmp
              mountPath: /tmp
      volumes:
        - name: data
          emptyDir: {}
        - name: tmp
          emptyDir: {}
"""

UNIT = """\
[Unit]
Description=kstreams: my.Shop
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User=shop
WorkingDirectory={directory}
Environment=KSTREAMS_BOOTSTRAP_SERVERS=kafka:9092
Environment=KSTREAMS_DRAIN_TIMEOUT_MS=30500
Environment=KSTREAMS_KAFKA__SECURITY_PROTOCOL=SASL_SSL
Environment="PRICE=5 $ \\"net\\", 20%%"
EnvironmentFile=/etc/shop.env
ExecStart={python} -P -m kstreams_py run shop.py --workers 4 --create-topics
Restart=on-failure
RestartSec=5s
RestartPreventExitStatus=2 4 5 130
KillMode=mixed
TimeoutStopSec=41s
OOMPolicy=continue
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
ReadWritePaths=-{directory}
ReadWritePaths=-{home}
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""

SETTINGS = """
bootstrap_servers = "kafka:9092"
drain_timeout_ms = 30500
[kafka]
security.protocol = "SASL_SSL"
sasl.password = "hunter2"
"""

Print = Callable[..., str]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with the graph `my.Shop` in shop.py and its settings in shop.toml."""
    monkeypatch.chdir(tmp_path)
    Path("shop.py").write_text(GRAPH.format(name="my.Shop"))
    Path("shop.toml").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def printed(place: Path, capsys: pytest.CaptureFixture[str]) -> Print:
    """Runs a command on shop.py and returns what it prints."""

    def run(command: Callable[..., None], **options: Any) -> str:
        command("shop.py", **options)
        return capsys.readouterr().out

    return run


def validate(text: str) -> list[dict[str, Any]]:
    """The objects of a manifest, each valid by the schemas of the oldest and of the newest Kubernetes."""
    found = list(yaml.safe_load_all(text))
    for each in found:
        for version in VERSIONS:
            kubernetes_validate.validate(each, version, strict=True)
    return found


# Kubernetes.


OF_SHOP: dict[str, Any] = {
    "namespace": "sales", "cpu": "500m", "memory": "512Mi", "env": ['PRICE=5 $ "net", $(VAT)=é'],
    "secret": "shop.passwords", "http_port": 9000, "config": Path("shop.toml"),
}  # fmt: skip


def test_manifest_has_a_pod_for_each_slot_with_the_settings_of_the_graph(printed: Print) -> None:
    text = printed(deploy.k8s, image="images/shop:1", replicas=4, **OF_SHOP, create_topics=True)
    assert text == MANIFEST
    assert [each["kind"] for each in validate(text)] == ["Service", "PodDisruptionBudget", "StatefulSet"]


def test_manifest_without_options_leaves_them_out(printed: Print) -> None:
    _, _, pods = validate(printed(deploy.k8s, image="shop", bootstrap_servers="kafka:9092"))
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    assert {"envFrom", "resources"} & container.keys() == set()
    assert "namespace" not in pods["metadata"]
    assert (pods["spec"]["replicas"], container["args"]) == (1, ["run", "shop.py", "--slot", "auto"])
    assert container["env"] == [
        {"name": "KSTREAMS_STATE_DIRECTORY", "value": "/data/state"},
        {"name": "KSTREAMS_BOOTSTRAP_SERVERS", "value": "kafka:9092"},
        {"name": "KSTREAMS_HTTP", "value": "0.0.0.0:8080"},
    ]


PEERS = """
import kstreams_py as ks
from kstreams_py import sinks, sources

graph = ks.Graph("enrich")
rows = graph.source("rows", sources.SQLite("orders.db", table="orders", key="id"))
parsed = graph.channel("parsed")
graph.map(rows, to=parsed, id="parse")(lambda row: row)
graph.sink(parsed, to=sinks.SQLite("stored.db", table="stored", columns={"id": int}), id="store")(lambda row: row)
"""


def as_peers(text: str) -> str:
    """The manifest of slots with what peers have instead."""
    for before, after in {
        "my-shop": "enrich",
        "metrics are also read from pods that are": "peers reach one another before they are",
        "      targetPort: http\n": "      targetPort: http\n    - name: peers\n      port: 7400\n"
        "      targetPort: peers\n",
        "replicas: 4": "replicas: 3",
        "slots do not": "peers do not",
        "- name: worker": "- name: peer",
        '["run", "shop.py", "--slot", "auto", "--create-topics"]': '["peer", "--allow", "shop.py", '
        '"--cluster", "shop", "--scheduler", "greedy", "--host", "0.0.0.0", "--port", "7400", "--advertised", '
        '"$(POD_NAME).enrich"]',
        "          env:\n": "          env:\n            - name: POD_NAME\n"
        "              valueFrom: {fieldRef: {fieldPath: metadata.name}}\n",
        "containerPort: 9000\n": "containerPort: 9000\n            - name: peers\n              containerPort: 7400\n",
    }.items():
        assert before in text, before
        text = text.replace(before, after)
    return text.replace("before they are not ready", "before they are ready")


def test_manifest_of_peers_has_a_pod_for_each_task_and_the_names_of_the_pods(printed: Print) -> None:
    Path("shop.py").write_text(PEERS)
    options = {**OF_SHOP, "peers": True, "cluster": "shop", "scheduler": Scheduler.GREEDY}
    text = printed(deploy.k8s, image="images/shop:1", **options)
    assert text == as_peers(MANIFEST)
    service, _, pods = validate(text)
    assert [each["name"] for each in service["spec"]["ports"]] == ["http", "peers"]
    assert pods["spec"]["serviceName"] == "enrich"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster": "shop", "messenger": "http"},
         "only with --peers: --cluster, --messenger: add that, or leave it out"),
        ({"peers": True}, "graph 'my.Shop' has no channels: run it with `kstreams run`"),
        ({"peers": True, "create_topics": True},
         "`kstreams peer` creates no topics: leave --create-topics out, and use `kstreams topics create`"),
    ],
)  # fmt: skip
def test_manifest_of_peers_that_cannot_be_is_refused(place: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        deploy.k8s("shop.py", image="shop", bootstrap_servers="kafka:9092", **options)
    assert str(caught.value) == message


def test_words_that_yaml_reads_as_something_else_stay_text() -> None:
    variables = {"on": "no", "A": "1", "B": "null", "C": "a\nb: c # d", "D": "", "E": "\\$$(A)"}
    wanted = Deployment("on", "1", ["yes"], 1, variables, 1, 1, namespace="123", secret="1", cpu="1", memory="1")
    _, _, pods = validate(manifest(wanted))
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    assert pods["metadata"] == {
        "name": "on",
        "namespace": "123",
        "labels": {"app.kubernetes.io/name": "on", "app.kubernetes.io/part-of": "kstreams"},
    }
    assert {each["name"]: each["value"] for each in container["env"]} == {**variables, "E": "\\$$$$(A)"}
    assert container["args"] == ["yes"]


def test_schema_of_kubernetes_refuses_a_field_that_it_does_not_know() -> None:
    _, _, pods = yaml.safe_load_all(MANIFEST.replace("serviceName", "service"))
    with pytest.raises(kubernetes_validate.ValidationError, match="service"):
        kubernetes_validate.validate(pods, VERSIONS[0], strict=True)


@pytest.mark.parametrize(
    ("graph", "name"),
    [("shop", "shop"), ("my.Shop_2", "my-shop-2"), ("_shop.", "shop"), ("a._b", "a-b"), ("x" * 52, "x" * 52)],
)
def test_name_of_a_graph_is_mapped_to_one_that_kubernetes_takes(graph: str, name: str) -> None:
    assert kubernetes_name(graph) == name


@pytest.mark.parametrize("graph", ["2shop", "...", "x" * 53])
def test_name_of_a_graph_that_cannot_be_mapped_asks_for_another(graph: str) -> None:
    with pytest.raises(SettingsError) as caught:
        kubernetes_name(graph)
    assert str(caught.value) == (
        f"the graph's name {graph!r} cannot be turned into a Kubernetes name: pass one with --name: up to 52 "
        "of the characters a-z, 0-9 and -, first a letter"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "a.b"}, "--name 'a.b' is refused by Kubernetes: use up to 52 of the characters a-z, 0-9 and -: "
                          "first a letter, last no -"),
        ({"image": "a b"}, "--image 'a b' is refused by Kubernetes: write an image such as registry/shop:1.0"),
        ({"image": ""}, "--image '' is refused"),
        ({"name": "A"}, "--name 'A' is refused"),
        ({"name": "x" * 53}, f"--name {'x' * 53!r} is refused"),
        ({"name": "shop\n"}, r"--name 'shop\n' is refused"),
        ({"namespace": "a.b"}, "--namespace 'a.b' is refused"),
        ({"secret": "a_b"}, "--secret 'a_b' is refused"),
        ({"cpu": "half"}, "--cpu 'half' is refused by Kubernetes: write a quantity such as 500m or 2"),
        ({"memory": "512MB"}, "--memory '512MB' is refused by Kubernetes: write a quantity such as 512Mi or 2Gi"),
        ({"env": ["A"]}, "--env 'A' is not a variable: write NAME=VALUE"),
        ({"env": ["=1"]}, "--env '=1' is not a variable: write NAME=VALUE"),
        ({"env": ["A B=1"]}, "--env 'A B=1' is not a variable: write NAME=VALUE"),
        ({"bootstrap_servers": "127.0.0.1:9092"},
         "no pod reaches the brokers at 127.0.0.1:9092: pass --bootstrap-servers"),
        ({"config": Path("shop.toml")},
         "KSTREAMS_KAFKA__SASL_PASSWORD is a secret, and is not printed: put it into a Secret, and name that with "
         "--secret"),
    ],
)  # fmt: skip
def test_option_that_cannot_work_is_refused_and_nothing_is_printed(
    place: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        deploy.k8s("shop.py", **{"image": "shop", "bootstrap_servers": "kafka:9092", **options})
    assert str(caught.value).startswith(message)
    assert capsys.readouterr().out == ""


def test_registry_with_a_password_is_not_printed(printed: Print, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSTREAMS_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("KSTREAMS_SCHEMA_REGISTRY_URL", "http://me:hunter2@registry")
    with pytest.raises(SettingsError, match=r"^KSTREAMS_SCHEMA_REGISTRY_URL is a secret, and is not printed: put it"):
        printed(deploy.k8s, image="shop")
    text = printed(deploy.k8s, image="shop", secret="passwords")
    assert "hunter2" not in text
    monkeypatch.setenv("KSTREAMS_SCHEMA_REGISTRY_URL", "http://registry")
    assert '"http://registry"' in printed(deploy.k8s, image="shop")


def test_graph_that_does_not_fit_together_is_refused(place: Path) -> None:
    Path("shop.py").write_text("import kstreams_py as ks\ngraph = ks.Graph('shop')\n")
    with pytest.raises(GraphError):
        deploy.k8s("shop.py", image="shop", bootstrap_servers="kafka:9092")
    with pytest.raises(GraphError):
        deploy.systemd("shop.py")


VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}


def breaches(pod: dict[str, Any]) -> list[str]:
    """What Pod Security "restricted" refuses of the specification of a pod, by its documentation."""
    own = pod.get("securityContext", {})
    containers = [*pod["containers"], *pod.get("initContainers", []), *pod.get("ephemeralContainers", [])]
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [f"volume {each['name']}" for each in pod.get("volumes", []) if not each.keys() - {"name"} <= VOLUMES]
    found += [name for name in ("sysctls", "seLinuxOptions", "appArmorProfile") if own.get(name)]
    for each in containers:
        context = {"capabilities": {}, **own, **each.get("securityContext", {})}
        seccomp = context.get("seccompProfile", {}).get("type")
        rules = {
            "privileged": not context.get("privileged"),
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "runAsUser": context.get("runAsUser") != 0,
            "seccompProfile": seccomp in ("RuntimeDefault", "Localhost"),
            "capabilities.drop": "ALL" in context["capabilities"].get("drop", ()),
            "capabilities.add": {"NET_BIND_SERVICE"} >= {*context["capabilities"].get("add", ())},
            "hostPort": not any(port.get("hostPort") for port in each.get("ports", [])),
            "procMount": context.get("procMount", "Default") == "Default",
            "windowsOptions": not context.get("windowsOptions", {}).get("hostProcess"),
        }
        found += [name for name, holds in rules.items() if not holds]
    return found


def test_pods_keep_pod_security_restricted_and_more(printed: Print) -> None:
    *_, made = validate(printed(deploy.k8s, image="shop", bootstrap_servers="kafka:9092"))
    pod = made["spec"]["template"]["spec"]
    assert breaches(pod) == []
    assert breaches({"containers": [{"ports": [{"hostPort": 1}]}], "volumes": [{"name": "a", "hostPath": {}}]}) == [
        "volume a", "allowPrivilegeEscalation", "runAsNonRoot", "seccompProfile", "capabilities.drop", "hostPort",
    ]  # fmt: skip
    (worker,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert worker["securityContext"]["readOnlyRootFilesystem"] is True
    mounted = {each["mountPath"] for each in worker["volumeMounts"]}
    states = {each["name"]: each["value"] for each in worker["env"]}["KSTREAMS_STATE_DIRECTORY"]
    assert (mounted, states) == ({"/data", "/tmp"}, "/data/state")
    assert {each["name"] for each in worker["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


# systemd.


def verify(text: str, directory: Path) -> list[str]:
    """The complaints of systemd-analyze about a unit, where the machine has that tool."""
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return []
    path = directory / "kstreams-test.service"
    path.write_text(text)
    done = subprocess.run([tool, "verify", "--man=no", path], capture_output=True, text=True, check=False, timeout=60)
    return [line for line in done.stderr.splitlines() if path.name in line]


def test_unit_has_the_slots_of_the_machine_with_the_settings_of_the_graph(printed: Print, tmp_path: Path) -> None:
    text = printed(
        deploy.systemd,
        workers=4,
        user="shop",
        env=['PRICE=5 $ "net", 20%'],
        environment_file=Path("/etc/shop.env"),
        create_topics=True,
        config=Path("shop.toml"),
    )
    assert text == UNIT.format(directory=tmp_path, python=sys.executable, home="/home/shop")
    assert verify(text, tmp_path) == []


def test_unit_without_options_runs_slot_0_here_as_its_user(printed: Print, tmp_path: Path) -> None:
    text = printed(deploy.systemd)
    assert [line for line in text.splitlines() if line.startswith(("User", "Working", "Env", "Exec"))] == [
        f"User={getpass.getuser()}",
        f"WorkingDirectory={tmp_path}",
        f"ExecStart={sys.executable} -P -m kstreams_py run shop.py --workers 1",
    ]
    assert verify(text, tmp_path) == []


def test_unit_is_exposed_no_more_than_3_of_10(printed: Print, tmp_path: Path) -> None:
    """By systemd's own measure, where the machine has the tool."""
    path = tmp_path / "kstreams-test.service"
    path.write_text(printed(deploy.systemd, user="shop"))
    if (tool := shutil.which("systemd-analyze")) is None:
        return
    command = [tool, "security", "--offline=true", "--threshold=30", "--no-pager", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout.splitlines()[-1:] or done.stderr


def test_unit_writes_where_the_settings_the_sinks_and_the_options_say(printed: Print, tmp_path: Path) -> None:
    Path("shop.py").write_text(
        "from kstreams_py import Graph, Parquet\nfrom kstreams_py.sinks import SQLite\ngraph = Graph('shop')\n"
        "a = graph.topic('a')\n"
        "graph.sink(a, to=SQLite('/srv/rows/a.db', table='a', columns=('b',)), id='p')(lambda value: None)\n"
        "graph.sink(a, to=Parquet('beside', columns={'b': str}), id='q')(lambda value: None)\n"
    )
    (tmp_path / "made").mkdir()
    (tmp_path / "states.toml").write_text(f"state_directory = '{tmp_path}/made/not yet'\n")
    text = printed(deploy.systemd, user="no-such-user", write=[Path("/srv/a b")], config=Path("states.toml"))
    assert [line.partition("=")[2] for line in text.splitlines() if line.startswith("ReadWritePaths")] == [
        f"-{tmp_path}", f"-{tmp_path}/made", "-/home/no-such-user", "-/srv/rows", f"-{tmp_path}/beside", '"-/srv/a b"',
    ]  # fmt: skip
    assert verify(text, tmp_path) == []


def test_unit_of_a_second_machine_names_its_slots_and_its_directory(printed: Print) -> None:
    text = printed(deploy.systemd, slots="4-7", directory=Path("/srv/50% off"))
    assert [line for line in text.splitlines() if line.startswith(("Working", "Exec"))] == [
        "WorkingDirectory=/srv/50%% off",
        f"ExecStart={sys.executable} -P -m kstreams_py run shop.py --slots 4-7",
    ]


def test_words_of_the_command_line_mean_what_they_say(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = 'a $b 5% "q" \\n.py'
    Path("shop.py").rename(strange)
    deploy.systemd(strange)
    text = capsys.readouterr().out
    assert r'-m kstreams_py run "a $$b 5%% \"q\" \\n.py" --workers 1' in text
    assert verify(text, place) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 2, "slots": "4-7"}, "--workers and --slots both name the slots: pass one of them"),
        ({"slots": "7-4"}, "--slots '7-4': write a range such as 4-7, or numbers such as 0,2,5, each once"),
        ({"config": Path("shop.toml")},
         "KSTREAMS_KAFKA__SASL_PASSWORD is a secret, and is not printed: put it into a file that only its user reads, "
         "and name that with --environment-file"),
    ],
)  # fmt: skip
def test_unit_that_cannot_work_is_refused(place: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        deploy.systemd("shop.py", **options)
    assert str(caught.value) == message


def test_unit_is_not_restarted_after_the_statuses_that_no_restart_remedies() -> None:
    assert f"RestartPreventExitStatus={' '.join(map(str, NOT_RESTARTED))}\n" in UNIT
