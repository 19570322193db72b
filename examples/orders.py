"""Writes ten orders for shop.py; number 7 has no price and becomes a dead letter."""

import json

from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": "127.0.0.1:9092"})
for number in range(10):
    order = {"quantity": number % 4, "unit_price": 5} if number != 7 else {"quantity": 1}
    producer.produce("shop.orders", json.dumps(order), key=f"order-{number}")
producer.flush()
