"""Fork: several outputs. A payment is accepted or held, and noted for the audit, in one transaction."""

import kstreams_py as ks

graph = ks.Graph("route", errors="route.errors")

payments = graph.topic("payments", key=ks.String(), value=ks.Json())
accepted = graph.topic("payments.accepted", key=ks.String(), value=ks.Json())
held = graph.topic("payments.held", key=ks.String(), value=ks.Json())
audit = graph.topic("payments.audit", key=ks.String(), value=ks.Json())


@graph.map(payments, to=[accepted, held, audit])
def route(payment):
    chosen = held if payment["cents"] > 1_000_000 else accepted
    return {chosen: payment, audit: {"cents": payment["cents"], "topic": chosen.name}}
