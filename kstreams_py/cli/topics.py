"""`kstreams topics`: creates, checks, describes and deletes the topics of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from kstreams_py.cli.options import (
    Bootstrap,
    Config,
    DryRun,
    Partitions,
    Target,
    Yes,
    confirm,
    open_environment,
    open_graph,
)
from kstreams_py.cli.streams import echo, echo_lines
from kstreams_py.errors import SettingsError
from kstreams_py.graph.declarations import DEFAULT_PARTITIONS, Topic
from kstreams_py.graph.loading import load
from kstreams_py.graph.names import runs_topic
from kstreams_py.graph.pipelines import RUNS_SETTINGS
from kstreams_py.kafka.administration import GroupAdmin
from kstreams_py.kafka.contracts import TopicInfo
from kstreams_py.kafka.own_topics import ensure_topics
from kstreams_py.operations.topics import DeletableTopic, TopicDeletion
from kstreams_py.operations.transactions.abort import UNCHANGED
from kstreams_py.printable import join_lines
from kstreams_py.processing.dead_letters.marks import MARKS_SETTINGS
from kstreams_py.processing.topics import (
    DescribedTopic,
    check_topics,
    create_own_topics,
    create_topics,
    describe_topics,
    find_topics,
)
from kstreams_py.settings import Settings

app = typer.Typer(help="The topics of a graph: create, check, describe, delete.", no_args_is_help=True)


@app.command()
def create(
    target: Target,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
    partitions: Partitions = None,
) -> None:
    """Create the graph's missing topics, and the framework's own topics (__ks.*).

    Workers, replays of dead letters and pipelines then need no right to create topics.
    """
    with open_graph(target, bootstrap_servers, config, needs_processors=False) as (graph, environment):
        cluster = environment.cluster
        created = create_topics(graph, cluster, partitions or DEFAULT_PARTITIONS)
        created += create_own_topics(graph, cluster, find_topics(graph, cluster))
        if any(processor.uses_marks for processor in graph.processors):
            created += ensure_topics(cluster, {graph.replayed: (1, MARKS_SETTINGS)})
        runs = {
            runs_topic(each.target.name): (1, RUNS_SETTINGS)
            for each in graph.pipelines
            if isinstance(each.target, Topic)
        }
        created += ensure_topics(cluster, runs)
    echo_lines(join_lines(f"created {name}" for name in created) or "all topics exist")


@app.command()
def check(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Check that the graph's topics exist and have the settings that it needs."""
    with open_graph(target, bootstrap_servers, config, needs_processors=False) as (graph, environment):
        found = check_topics(graph, environment.cluster)
    echo_lines(join_lines(f"{name}: {_show_size(info)}" for name, info in found.items()))


@app.command()
def describe(target: Target, bootstrap_servers: Bootstrap = None, config: Config = None) -> None:
    """Print each topic of the graph: whether it exists, its partitions and settings, who reads it and who writes it.

    The settings are those that are set for the topic or declared in the graph; all others are the broker's defaults.
    Changes nothing. Needs DESCRIBE and DESCRIBE_CONFIGS on the topics.
    """
    with open_graph(target, bootstrap_servers, config, needs_processors=False) as (graph, environment):
        topics = describe_topics(graph, environment.cluster)
    echo_lines(join_lines(line for each in topics for line in _rows(each)))


@app.command()
def delete(
    target: Target,
    processor: Annotated[
        str | None,
        typer.Option(
            "--processor", help="instead: the framework's topics of this processor, by its id, declared or not"
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="instead: this topic, which the graph declares; can be repeated"),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap_servers: Bootstrap = None,
    config: Config = None,
) -> None:
    """Delete the framework's topics (__ks.*) of what the graph no longer declares: processors, states, pipelines.

    Prints each topic with its records and what follows, and asks first. Exit status 1 if the answer is no. Refused
    while a group of a processor that uses one of the topics has members. What a processor needs is deleted only with
    --processor, and the topics that the graph declares only with --topic. Needs READ on __ks.GRAPH.beginnings, DESCRIBE
    on the groups, and DELETE on the topics.
    """
    if processor is not None and topic:
        raise SettingsError("--processor and --topic exclude one another: run the command twice")
    graph = load(target)  # not validated: an empty graph may still have topics
    with open_environment(Settings.load(config, bootstrap_servers=bootstrap_servers)) as environment:
        deletion = TopicDeletion(graph, target, environment, GroupAdmin(environment.settings))
        if topic:
            found = deletion.plan_named(topic)
        else:
            found = deletion.plan_unused() if processor is None else deletion.plan_processor(processor)
        echo_lines(join_lines(line for each in found for line in _deletion(each)) or "nothing to delete")
        deletion.check_members(found)
        if not found:
            return
        if dry_run:
            echo(f"would be deleted; {UNCHANGED}")
            return
        confirm("delete these topics, with their records?", yes=yes)
        deletion.delete(found)
    echo_lines(join_lines(f"deleted {each.name}" for each in found))


def _deletion(topic: DeletableTopic) -> Iterator[str]:
    where = f" on cluster {topic.cluster}" if topic.cluster else ""
    yield f"{topic.name}{where}: {topic.partitions} partitions, at most {topic.records:,} records"
    yield from (f"  {each}" for each in topic.follows)


def _rows(topic: DescribedTopic) -> Iterator[str]:
    declared, found = topic.declared, topic.found
    where = f" on cluster {declared.cluster}" if declared.cluster else ""
    if found is None:
        yield f"{declared.name}{where}: does not exist"
    else:
        yield f"{declared.name}{where}: {_show_size(found)}"
    differences = []
    if declared.partitions not in (None, found and found.partitions):
        differences.append(f"{declared.partitions} partitions")
    if declared.replication not in (None, found and found.replication):
        differences.append(f"replication {declared.replication}")
    rows = {
        "declares": differences,
        "settings": list(_settings(topic)),
        "read by": topic.readers,
        "written by": topic.writers,
    }
    yield from (f"  {row:10}  {', '.join(content)}" for row, content in rows.items() if content)


def _show_size(info: TopicInfo) -> str:
    return f"{info.partitions} partitions, replication {info.replication}"


def _settings(topic: DescribedTopic) -> Iterator[str]:
    """Yields the settings that the topic has of its own, and those that the graph declares."""
    declared = topic.declared.config
    if topic.found is None:
        yield from (f"{name}={value}" for name, value in declared.items())
        return
    for name in sorted({*declared, *topic.found.own_settings}):
        actual = topic.found.settings.get(name)
        other = f" (declared: {declared[name]})" if declared.get(name, actual) != actual else ""
        yield f"{name}={actual}{other}"
