"""A StatefulSet with a pod for each slot or peer, its headless Service and its PodDisruptionBudget, as YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kstreams_py.errors import SettingsError

_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,50}[a-z0-9])?")
"""A label of RFC 1035. Kubernetes appends 11 characters for `controller-revision-hash`, which may have at most 63."""

_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

_SECRET: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

_IMAGE: Final = re.compile(r"[a-zA-Z0-9][\w.:/-]*(@[\w+.-]+:[0-9a-fA-F]+)?", re.ASCII)

_QUANTITY: Final = re.compile(r"(\d+(\.\d+)?|\.\d+)(m|k|M|G|T|Ki|Mi|Gi|Ti)?", re.ASCII)


DATA: Final = "/data"
"""The mount path of a pod's volume, which is deleted with the pod: changelogs restore the states."""

USER: Final = 10_001
"""The user and group of the workers in a pod."""


@dataclass(frozen=True)
class Deployment:
    """The parameters of a graph's StatefulSet.

    - `name`: the name of the StatefulSet, the Service and the budget; see `kubernetes_name`.
    - `peer_port`: the port on which the pods, which are peers, reach one another; None for slots. Each pod then has the
      argument `--advertised` with its own name in the Service.
    - `namespace`, `secret`, `cpu`, `memory`: None leaves them out. `secret` is a Secret of environment variables.
    - `image`: an image whose entry point is `kstreams`.
    - `arguments`: the arguments of the entry point.
    - `replicas`: the number of slots, numbered from 0, or of peers.
    - `environment`: variables of the worker, passed literally: `$` is not expanded.
    - `port`: the port on which the worker answers `/livez` and `/readyz`.
    - `grace_seconds`: seconds from SIGTERM to SIGKILL.

    Raises SettingsError, which names the option, for a value that Kubernetes would refuse.
    """

    name: str
    image: str
    arguments: Sequence[str]
    replicas: int
    environment: Mapping[str, str]
    port: int
    grace_seconds: int
    peer_port: int | None = None
    namespace: str | None = None
    secret: str | None = None
    cpu: str | None = None
    memory: str | None = None

    def __post_init__(self) -> None:
        for option, value, pattern, remedy in (
            ("--image", self.image, _IMAGE, "write an image such as registry/shop:1.0"),
            (
                "--name",
                self.name,
                _NAME,
                "use up to 52 of the characters a-z, 0-9 and -: first a letter, last no -",
            ),
            (
                "--namespace",
                self.namespace,
                _NAMESPACE,
                "use up to 63 of the characters a-z, 0-9 and -: no - first or last",
            ),
            ("--secret", self.secret, _SECRET, "use a-z, 0-9, - and ., with a letter or digit at both ends"),
            ("--cpu", self.cpu, _QUANTITY, "write a quantity such as 500m or 2"),
            ("--memory", self.memory, _QUANTITY, "write a quantity such as 512Mi or 2Gi"),
        ):
            if value is not None and not pattern.fullmatch(value):
                raise SettingsError(f"{option} {value!r} is refused by Kubernetes: {remedy}")


def kubernetes_name(graph: str) -> str:
    """Returns the name of a graph in Kubernetes: in lower case, with - for dots and underscores.

    Raises SettingsError if the result is not a valid name.
    """
    name = re.sub(r"[._-]+", "-", graph.lower()).strip("-")
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"the graph's name {graph!r} cannot be turned into a Kubernetes name: pass one with --name: up to 52 "
            "of the characters a-z, 0-9 and -, first a letter"
        )
    return name


_TEMPLATE: Final = """\
apiVersion: v1
kind: Service
metadata:
  name: {name}{namespace}
  labels: {labels}
spec:
  clusterIP: None
  publishNotReadyAddresses: true  # {unready}
  selector: {labels}
  ports:
    - name: http
      port: {port}
      targetPort: http{service_port}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {name}{namespace}
  labels: {labels}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {labels}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {name}{namespace}
  labels: {labels}
spec:
  serviceName: {name}
  replicas: {replicas}
  podManagementPolicy: Parallel  # {pods} do not wait for one another
  selector:
    matchLabels: {labels}
  template:
    metadata:
      labels: {labels}
    spec:
      enableServiceLinks: false  # a Service named kstreams-... would set variables KSTREAMS_...
      terminationGracePeriodSeconds: {grace_seconds}  # longer than drain_timeout_ms
      automountServiceAccountToken: false
      securityContext:
        runAsNonRoot: true
        runAsUser: {user}  # the UID in docker/Dockerfile: the kubelet cannot check that a user with a name is not root
        runAsGroup: {user}
        fsGroup: {user}
        seccompProfile: {{type: RuntimeDefault}}
      containers:
        - name: {container}
          image: {image}
          args: {arguments}
          env:
{pod_name}{environment}{secret}{resources}
          ports:
            - name: http
              containerPort: {port}{container_port}
          startupProbe:
            httpGet: {{path: /livez, port: http}}
            periodSeconds: 2
            failureThreshold: 60
          livenessProbe:
            httpGet: {{path: /livez, port: http}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet: {{path: /readyz, port: http}}
            periodSeconds: 5
            timeoutSeconds: 5
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          volumeMounts:
            - name: data
              mountPath: {data}
            - name: tmp
              mountPath: /tmp
      volumes:
        - name: data
          emptyDir: {{}}
        - name: tmp
          emptyDir: {{}}
"""


_OF_SLOTS: Final[Mapping[str, str]] = {
    "pods": "slots",
    "container": "worker",
    "unready": "metrics are also read from pods that are not ready",
    "service_port": "",
    "container_port": "",
    "pod_name": "",
}
"""The texts of the template for slots."""


def _of_peers(port: int) -> Mapping[str, str]:
    """Returns the texts of the template for peers."""
    return {
        "pods": "peers",
        "container": "peer",
        "unready": "peers reach one another before they are ready",
        "service_port": f"\n    - name: peers\n      port: {port}\n      targetPort: peers",
        "container_port": f"\n            - name: peers\n              containerPort: {port}",
        "pod_name": "            - name: POD_NAME\n              valueFrom: {fieldRef: {fieldPath: metadata.name}}\n",
    }


def manifest(wanted: Deployment) -> str:
    """Returns the YAML of the three objects, for `kubectl apply`."""
    resources = ""
    if wanted.cpu or wanted.memory:
        requests = [
            f"{name}: {_quoted(each)}" for name, each in (("cpu", wanted.cpu), ("memory", wanted.memory)) if each
        ]
        resources = f"\n          resources:\n            requests: {{{', '.join(requests)}}}"
        if wanted.memory:
            resources += f"\n            limits: {{memory: {_quoted(wanted.memory)}}}"
    arguments = list(map(_literal, wanted.arguments))
    if wanted.peer_port is not None:  # Kubernetes replaces the variable
        arguments += [_quoted("--advertised"), _quoted(f"$(POD_NAME).{wanted.name}")]
    return _TEMPLATE.format(
        **(_OF_SLOTS if wanted.peer_port is None else _of_peers(wanted.peer_port)),
        name=_quoted(wanted.name),
        namespace=f"\n  namespace: {_quoted(wanted.namespace)}" if wanted.namespace else "",
        labels=f"{{app.kubernetes.io/name: {_quoted(wanted.name)}, app.kubernetes.io/part-of: kstreams}}",
        port=wanted.port,
        user=USER,
        data=DATA,
        replicas=wanted.replicas,
        grace_seconds=wanted.grace_seconds,
        image=_quoted(wanted.image),
        arguments=f"[{', '.join(arguments)}]",
        environment="\n".join(
            f"            - name: {_quoted(name)}\n              value: {_literal(value)}"
            for name, value in wanted.environment.items()
        ),
        secret=f"\n          envFrom:\n            - secretRef: {{name: {_quoted(wanted.secret)}}}"
        if wanted.secret
        else "",
        resources=resources,
    )


def _quoted(text: str) -> str:
    """Returns a YAML string, written as in JSON, so that `true`, `1` and `null` stay strings."""
    return json.dumps(text, ensure_ascii=False)


def _literal(text: str) -> str:
    """Returns a string in which Kubernetes replaces nothing: it reads `$$` as `$`, and `$(NAME)` as a variable."""
    return _quoted(text.replace("$", "$$"))
