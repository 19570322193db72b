"""Spark reads a topic, each way to sign in that Java's client has."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

import kstreams_py as ks
from kstreams_py.errors import SettingsError
from kstreams_py.settings import ClientSettings, Settings
from kstreams_py.spark import view
from tests.contract.rig import KafkaRig
from tests.signing_in import WAYS, Listeners

pytestmark = [
    pytest.mark.long,  # a session and a broker; tests/unit/test_credentials.py has the settings themselves
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # as in test_spark.py
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

OF_JAVA = [way for way in WAYS if way not in ("a callback", "AWS MSK IAM")]
"""Without the jar of Amazon, which is not in the repository of Kafka's jars."""


@pytest.mark.parametrize("way", OF_JAVA)
def test_view_signs_in(spark: Any, listeners: Listeners, way: str) -> None:
    servers, kafka = listeners.clients[way]
    if way == "mTLS from texts":  # Java 17 cannot decrypt the kind that is usual now (docs/spark.md)
        kafka = {**kafka, "ssl.key.pem": listeners.certificates.client.key, "ssl.key.password": ""}
    with closing(KafkaRig(listeners.open_servers)) as rig:
        topic = rig.topic(2)
        rig.append(topic, b"a", b"b")
    settings = Settings(bootstrap_servers=servers, kafka=ClientSettings(kafka))
    declared = ks.Graph("of_spark").topic(topic, value=ks.String())
    assert [row.value for row in view(spark, declared, settings=settings).select("value").collect()] == ["a", "b"]


def test_view_by_a_callback_is_refused_before_it_asks_a_broker(spark: Any) -> None:
    kafka = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": "tests.signing_in:token",
    }
    settings = Settings(bootstrap_servers="127.0.0.1:9", kafka=ClientSettings(kafka))
    with pytest.raises(
        SettingsError, match=r"^oauth_cb is Python, and Spark reads and writes in Java: use sasl\.oauth"
    ):
        view(spark, ks.Graph("of_spark").topic("in", value=ks.String()), settings=settings)
