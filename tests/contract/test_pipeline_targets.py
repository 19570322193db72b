"""Every target of pipelines, in every mode: rows and runs change together, or nothing does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from bench.servers import Server
from kstreams_py.errors import (
    BrokerUnavailable,
    PipelineFailed,
    RowRefused,
    SettingsError,
    SinkUnavailable,
    StaleWriter,
)
from kstreams_py.graph.pipelines import Mode, Pipeline
from kstreams_py.graph.topology import Graph
from kstreams_py.sinks import Parquet
from kstreams_py.spark.frames import reported
from kstreams_py.spark.runs import Published, Run, Target, check_owner
from kstreams_py.spark.targets.opening import open_target
from kstreams_py.spark.targets.postgresql import PostgreSQLTable
from tests.contract.table_rigs import DeltaRig, ParquetRig, PostgreSQLRig, TableRig, TopicRig
from tests.delta_sessions import delta_session
from tests.system.harness import Cluster

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of collect()

MODES: Final = {
    "parquet": tuple(Mode),
    "delta": tuple(Mode),
    "postgresql": tuple(Mode),
    "topic": (Mode.APPEND, Mode.UPSERT),
}
"""The modes that each target takes."""

KEYED: Final = (Mode.COMPLETE, Mode.UPSERT)
"""The modes whose rows are told apart by their key."""

Amounts = Sequence[tuple[str | None, int]]
"""Rows of two columns: the item, which is the key, and an amount."""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with delta_session("test_targets") as made:
        yield made


@pytest.fixture
def rig(request: pytest.FixtureRequest, name: str, mode: Mode, topic_name: str, tmp_path: Path) -> TableRig:
    if name == "parquet":
        return ParquetRig(tmp_path)
    if name == "delta":
        return DeltaRig(tmp_path)
    if name == "topic":
        return TopicRig(Cluster(request.getfixturevalue("broker").bootstrap_servers), topic_name, mode)
    server: Server = request.getfixturevalue("postgresql")
    return PostgreSQLRig(server)


class Case:
    """A pipeline whose runs are made by hand: the rows are given, and no topic is read."""

    def __init__(self, spark: SparkSession, rig: TableRig, mode: Mode, id: str = "totals", key: str = "item") -> None:  # noqa: A002 as of pipelines
        self.spark, self.rig = spark, rig
        graph = Graph("shop")
        topic, keyed = graph.topic("orders"), [] if mode is Mode.APPEND else [key]
        graph.pipeline(topic, to=rig.declare(graph), mode=mode, key=keyed, id=id)(lambda df: df)
        self.pipeline: Pipeline = graph.pipelines[0]

    def open(self) -> closing[Target]:
        return closing(open_target(self.pipeline, self.rig.settings, lambda: self.spark))

    def amounts(self, rows: Amounts) -> DataFrame:
        return self.spark.createDataFrame(list(rows), "item string, amount bigint")

    def publish(
        self, rows: DataFrame, previous: Published | None, before_finish: Callable[[], object] = lambda: None
    ) -> Published:
        """A run; `before_finish` is called once its rows are staged."""

        def finish(count: int) -> Published:
            before_finish()
            number = 1 if previous is None else previous.last.number + 1
            run = Run(number, f"the cut of run {number}", 7, count, 1_700_000_000.5, 0.25)
            return Published(self.pipeline.owner, dict(rows.dtypes), (*(previous.runs if previous else ()), run))

        with self.open() as target, reported(self.pipeline):
            return target.publish(rows, previous, finish)

    def run(self, *rows: tuple[str | None, int]) -> Published:
        return self.publish(self.amounts(rows), self.read())

    def read(self) -> Published | None:
        with self.open() as target:
            return target.read()

    def table(self) -> list[tuple[Any, ...]]:
        """What the target gives to Spark."""
        with self.open() as target:
            return sorted(map(self.rig.decode, target.table(self.spark).collect()), key=repr)

    def reset(self) -> None:
        with self.open() as target:
            target.reset()

    def shown(self) -> tuple[list[tuple[Any, ...]], Published | None]:
        """All that can be seen of the target."""
        return self.rig.rows(), self.read()


@pytest.fixture
def case(spark: SparkSession, rig: TableRig, mode: Mode) -> Case:
    return Case(spark, rig, mode)


def of_each_target(modes: Sequence[Mode] = tuple(Mode)) -> pytest.MarkDecorator:
    """Each target with each of these modes that it takes."""
    return pytest.mark.parametrize(
        ("name", "mode"), [(name, mode) for name, taken in MODES.items() for mode in modes if mode in taken]
    )


PEN_AND_INK: Final = [("ink", 2), ("pen", 1)]


@of_each_target()
def test_target_without_any_run_has_nothing_and_can_be_reset(case: Case) -> None:
    case.reset()
    assert case.shown() == ([], None)
    with pytest.raises(SettingsError, match="pipeline 'totals' has not run yet: run it first"):
        case.table()


@of_each_target()
def test_published_run_is_read_with_its_rows_by_everyone(case: Case) -> None:
    first = case.run(*PEN_AND_INK)
    columns = {"item": "string", "amount": "bigint"}
    run = Run(1, "the cut of run 1", 7, 2, 1_700_000_000.5, 0.25)
    assert first == Published("shop.totals", columns, (run,))
    assert (case.shown(), case.table()) == ((PEN_AND_INK, first), PEN_AND_INK)
    second = case.run(("cup", 4))
    assert (
        case.read()
        == second
        == Published("shop.totals", columns, (run, run._replace(number=2, cut="the cut of run 2", rows=1)))
    )
    assert case.table() == case.rig.rows()


@of_each_target()
def test_rows_of_a_run_replace_what_its_mode_says(case: Case, mode: Mode) -> None:
    case.run(*PEN_AND_INK)
    case.run(("cup", 4), ("pen", 3))
    expected = {
        Mode.COMPLETE: [("cup", 4), ("pen", 3)],
        Mode.APPEND: [("cup", 4), ("ink", 2), ("pen", 1), ("pen", 3)],
        Mode.UPSERT: [("cup", 4), ("ink", 2), ("pen", 3)],
    }[mode]
    assert (case.rig.rows(), case.table()) == (expected, expected)


@of_each_target()
def test_run_without_rows_is_a_run(case: Case, mode: Mode) -> None:
    first = case.run()
    assert (case.shown(), case.table()) == (([], first), [])
    case.run(*PEN_AND_INK)
    third = case.run()
    expected = [] if mode is Mode.COMPLETE else PEN_AND_INK
    assert (third.last.number, third.last.rows, case.shown()) == (3, 0, (expected, third))


@of_each_target()
def test_rows_are_not_seen_before_their_run_is(case: Case) -> None:
    before, seen = case.run(*PEN_AND_INK), []
    case.publish(case.amounts([("cup", 4)]), before, lambda: seen.append(case.shown()))
    assert seen == [(PEN_AND_INK, before)]


@of_each_target()
@pytest.mark.parametrize("is_first", [True, False])
def test_run_that_another_one_has_overtaken_is_refused_and_changes_nothing(case: Case, is_first: bool) -> None:
    before, shown = None if is_first else case.run(*PEN_AND_INK), []

    def overtake() -> None:
        case.publish(case.amounts([("cup", 4)]), before)
        shown.append(case.shown())

    with pytest.raises(StaleWriter, match="pipeline 'totals': another run was published meanwhile: run it again"):
        case.publish(case.amounts([("box", 9)]), before, overtake)
    with pytest.raises(StaleWriter):
        case.publish(case.amounts([("box", 9)]), before)
    assert [case.shown()] == shown


@of_each_target()
@pytest.mark.parametrize("is_first", [True, False])
def test_run_that_fails_changes_nothing_and_the_next_one_publishes(case: Case, is_first: bool) -> None:
    before = None if is_first else case.run(*PEN_AND_INK)
    shown = case.shown()

    def fail() -> None:
        raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError, match="in the middle"):
        case.publish(case.amounts([("cup", 4)]), before, fail)
    price = sf.when(sf.col("item") == "box", sf.raise_error(sf.lit("no price"))).otherwise(sf.col("amount"))
    with pytest.raises(PipelineFailed, match=r"Spark failed: .*no price.*; the last published table stays"):
        case.publish(case.amounts([("cup", 4), ("box", 9)]).withColumn("amount", price), before)
    assert case.shown() == shown
    case.run(("cup", 4))
    assert ("cup", 4) in case.rig.rows()


@of_each_target(KEYED)
@pytest.mark.parametrize("rows", [[("cup", 4), ("pen", 3), ("cup", 5)], [("cup", 4), (None, 3)]], ids=["twice", "null"])
def test_key_that_is_null_or_there_twice_is_refused_and_changes_nothing(case: Case, rows: Amounts) -> None:
    before = case.run(*PEN_AND_INK)
    with pytest.raises(RowRefused, match="pipeline 'totals'"):
        case.publish(case.amounts(rows), before)
    assert case.shown() == (PEN_AND_INK, before)


@of_each_target([Mode.UPSERT])
def test_column_names_of_any_kind_are_those_of_the_table(spark: SparkSession, rig: TableRig, mode: Mode) -> None:
    for key in ("count", "a b.c", 'q"', "a`b"):
        case = Case(spark, rig, mode, key=key)
        case.publish(case.amounts([("pen", 1), ("ink", 2)]).toDF(key, "select"), None)
        case.publish(case.amounts([("pen", 3)]).toDF(key, "select"), case.read())
        assert (rig.rows(), case.table()) == ([("ink", 2), ("pen", 3)],) * 2
        case.reset()


def test_parquet_files_of_many_runs_stay_few_and_those_that_were_merged_stay_for_their_readers(
    spark: SparkSession, tmp_path: Path
) -> None:
    case, read = Case(spark, ParquetRig(tmp_path), Mode.APPEND), []
    target: Parquet = case.pipeline.target  # type: ignore[assignment]
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "5")  # the files that are merged have more
    try:
        for number in range(20):
            case.publish(case.amounts([("pen", number)]).coalesce(1), case.read())
            read += target.files()
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert (sorted(case.rig.rows()), len(target.files())) == ([("pen", number) for number in range(20)], 1 + 4)
    assert [path for path in read if not path.exists()] == []


CHANGED: Final = {
    "RENAME COLUMN amount TO price": r"has no column 'amount' any more: .* `kstreams pipeline reset`",
    "DROP COLUMN amount": r"has no column 'amount' any more: ",
    "ALTER COLUMN amount TYPE numeric": r"its column 'amount' is numeric, and was bigint: ",
    "ALTER COLUMN item TYPE varchar(1)": r"its column 'item' is character varying\(1\), and was text: ",
    "ADD COLUMN price int NOT NULL DEFAULT 1; ALTER TABLE {table} ALTER COLUMN price DROP DEFAULT":
        r"its column 'price' takes no nulls and has no default, .*: drop it, or ",
    "DROP CONSTRAINT {name}_pkey": r"has no unique index of its key \(item\) any more: ",
}  # fmt: skip
"""What others do to a table, and what a run says of it."""


@pytest.mark.parametrize(
    ("mode", "change"),
    [
        *((Mode.APPEND, each) for each in CHANGED if "CONSTRAINT" not in each),
        (Mode.UPSERT, "RENAME COLUMN amount TO price"),
        *((mode, "DROP CONSTRAINT {name}_pkey") for mode in KEYED),
    ],
)
@pytest.mark.parametrize("name", ["postgresql"])
@pytest.mark.parametrize("is_late", [False, True])
def test_table_in_postgresql_whose_columns_others_have_changed_is_a_mistake_that_names_the_column(
    case: Case, change: str, is_late: bool
) -> None:
    """The server is there, and no other attempt succeeds."""
    before = case.run(("x", 2))
    rig = case.rig
    assert isinstance(rig, PostgreSQLRig)

    def alter() -> None:
        rig.execute(f"ALTER TABLE {{table}} {change}")

    if not is_late:
        alter()
    with pytest.raises(SettingsError, match=f"^pipeline 'totals': .*{CHANGED[change]}") as raised:
        case.publish(case.amounts([("y", 4)]), before, alter if is_late else lambda: None)
    assert raised.value.exit_status == 2
    for use in (case.read, case.table):
        with pytest.raises(SettingsError, match=CHANGED[change]):
            use()
    case.reset()
    case.run(*PEN_AND_INK)
    assert case.table() == PEN_AND_INK


@pytest.mark.parametrize(("name", "mode"), [("postgresql", Mode.APPEND)])
def test_table_in_postgresql_takes_columns_and_indexes_of_others_that_need_no_value(case: Case) -> None:
    before = case.run(("ink", 2))
    assert isinstance(case.rig, PostgreSQLRig)
    case.rig.execute("ALTER TABLE {table} ADD COLUMN made timestamptz NOT NULL DEFAULT now(), ADD COLUMN note text")
    case.rig.execute("CREATE INDEX ON {table} (amount)")
    case.publish(case.amounts([("pen", 1)]), before)
    assert case.table() == PEN_AND_INK


@pytest.mark.parametrize(("name", "mode"), [("postgresql", Mode.APPEND)])
def test_table_in_postgresql_that_is_changed_between_the_look_and_the_insert_is_a_mistake_that_names_the_column(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = case.run(("ink", 2))
    rig, move = case.rig, PostgreSQLTable._move
    assert isinstance(rig, PostgreSQLRig)

    def late(*arguments: Any) -> None:
        rig.execute("ALTER TABLE {table} RENAME COLUMN amount TO price")
        move(*arguments)

    monkeypatch.setattr(PostgreSQLTable, "_move", late)
    with pytest.raises(
        SettingsError, match=r'column "amount" of relation .* does not exist: .* `kstreams pipeline reset`'
    ):
        case.publish(case.amounts([("pen", 1)]), before)


VALUES: Final = {
    "text": 'a\tb\nc\\d\r"e",\\N',
    "empty": "",
    "none": None,
    "bytes": b"\x00\xff",
    "yes": True,
    "real": 2.5,
    "price": Decimal("12.50"),
    "at": datetime(2026, 5, 1, 12, 30, tzinfo=UTC),
    "day": date(2026, 5, 1),
}


@of_each_target([Mode.COMPLETE])
def test_values_are_those_of_spark(spark: SparkSession, rig: TableRig, mode: Mode) -> None:
    case = Case(spark, rig, mode, key="text")
    columns = [
        (sf.lit(value).cast("string") if value is None else sf.lit(value)).alias(column)
        for column, value in VALUES.items()
    ]
    rows = spark.range(1).select(*columns)
    case.publish(rows, None)
    with case.open() as target:
        table = target.table(spark)
    assert (rig.rows(), table.dtypes) == ([tuple(VALUES.values())], rows.dtypes)
    assert (rows.exceptAll(table).count(), table.count()) == (0, 1)


@of_each_target()
def test_reset_removes_rows_and_runs_and_the_next_run_is_the_first_with_any_columns(case: Case) -> None:
    case.run(*PEN_AND_INK)
    case.reset()
    assert case.shown() == ([], None)
    made = case.publish(case.amounts([("cup", 4)]).withColumn("price", sf.lit(2)), None)
    assert case.shown() == ([("cup", 4, 2)], made)


@of_each_target()
def test_table_of_another_pipeline_names_its_owner_and_is_not_reset(case: Case, mode: Mode) -> None:
    case.run(*PEN_AND_INK)
    other, shown = Case(case.spark, case.rig, mode, id="others"), case.shown()
    message = r"pipeline 'others': .* is the table of pipeline 'shop\.totals': name another target, or reset that"
    with pytest.raises(SettingsError, match=message):
        check_owner(other.pipeline, other.read())
    with pytest.raises(SettingsError, match=message):
        other.reset()
    assert case.shown() == shown


@of_each_target()
def test_target_that_cannot_be_used_now_is_named_and_takes_the_run_later(case: Case) -> None:
    before = case.run(*PEN_AND_INK)
    rows = case.amounts([("cup", 4)])
    with case.rig.broken() as reason, pytest.raises((SinkUnavailable, BrokerUnavailable), match=reason):
        case.publish(rows, before)
    assert case.shown() == (PEN_AND_INK, before)
    made = case.publish(rows, before)
    assert (made.last.number, case.read()) == (2, made)
