"""Judges what `kstreams run shop.py:graph` has made of its orders: `PYTHONPATH=. python tests/check_shop.py`."""

from confluent_kafka import Consumer, TopicPartition
from shop import orders, price

from kstreams_py.testing import Expected, History, check, explain

history = History()


def read_all(topic):
    consumer = Consumer(
        {
            "bootstrap.servers": "127.0.0.1:9092",
            "group.id": "check_shop",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic).topics[topic].partitions
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p))[1] for p in partitions}
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    read_out = set()
    while read_out != set(partitions):
        for message in consumer.consume(1_000, 0.1):
            if message.error():
                read_out.add(message.partition())
            else:
                history.read("check_shop", [message])
    history.read_out("check_shop", topic, ends)
    consumer.close()


def priced_or_refused(order):
    try:
        outputs = price(orders.value.deserialize(order.value))
    except KeyError:
        return []  # a dead letter
    return [(topic.name, order.key, topic.value.serialize(value)) for topic, value in outputs.items()]


for topic in ("shop.orders", "shop.priced", "shop.refused"):
    read_all(topic)
anomalies = check(history, [Expected("shop.orders", to=["shop.priced", "shop.refused"], outputs=priced_or_refused)])
print(explain(anomalies, history))
