"""A test of shop.py on a real broker: `python -m pytest tests/test_shop_on_kafka.py`."""

import json

import pytest
from confluent_kafka import Consumer, Producer
from shop import graph

import kstreams_py as ks
from kstreams_py.embedded import EmbeddedKafka


@pytest.fixture(scope="session")
def kafka():
    with EmbeddedKafka() as kafka:
        yield kafka


def test_order_is_priced_on_a_real_broker(kafka, tmp_path):
    settings = ks.Settings(bootstrap_servers=kafka.bootstrap_servers, schema_directory=tmp_path)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    producer = Producer({**client, "partitioner": "murmur2_random"})  # as Java's clients and kstreams_py
    consumer = Consumer(
        {**client, "group.id": "test", "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    )
    with ks.start(graph, settings=settings, create_topics=True):
        producer.produce("shop.orders", json.dumps({"quantity": 2, "unit_price": 5}), key="order-1")
        producer.flush()
        consumer.subscribe(["shop.priced"])
        record = consumer.poll(30)
    consumer.close()
    assert (record.key(), json.loads(record.value())["total"]) == (b"order-1", 10)
