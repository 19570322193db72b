"""Every target of pipelines, in every mode: rows and runs change together, or nothing does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from kstreams_py.sinks import Parquet, manifest
from kstreams_py.spark.pipelines.frames import reported
from kstreams_py.spark.pipelines.postgresql import PostgreSQLTable
from kstreams_py.spark.pipelines.runs import PipelineRun, PipelineTarget, Published, check_owner
from kstreams_py.spark.pipelines.targets import open_target
from tests.contract.table_rigs import DeltaRig, ParquetRig, PostgreSQLRig, TableRig, TopicRig
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


def local_rows(spark: SparkSession, rows: Amounts) -> DataFrame:
    """A data frame of literals; one of Python's rows starts processes of Python, which cost more than the queries."""
    values = [f"({'NULL' if item is None else repr(item)}, {amount}L)" for item, amount in rows]
    given = f"VALUES {', '.join(values or ['(NULL, 0L)'])} AS given(item, amount)"
    return spark.sql(f"SELECT CAST(item AS STRING), amount FROM {given} LIMIT {len(values)}")


class Case:
    """A pipeline whose runs are made by hand: the rows are given, and no topic is read."""

    def __init__(
        self,
        spark: SparkSession,
        rig: TableRig,
        mode: Mode,
        id: str = "totals",  # noqa: A002 as of pipelines
        key: Sequence[str] = ("item",),
    ) -> None:
        self.spark, self.rig = spark, rig
        graph = Graph("shop")
        topic, keyed = graph.topic("orders"), [] if mode is Mode.APPEND else list(key)
        graph.pipeline(topic, to=rig.declare(graph), mode=mode, key=keyed, id=id)(lambda df: df)
        self.pipeline: Pipeline = graph.pipelines[0]

    def open(self) -> closing[PipelineTarget]:
        return closing(open_target(self.pipeline, self.rig.settings, lambda: self.spark))

    def amounts(self, rows: Amounts) -> DataFrame:
        return local_rows(self.spark, rows)

    def publish(
        self, rows: DataFrame, previous: Published | None, before_finish: Callable[[], object] = lambda: None
    ) -> Published:
        """A run; `before_finish` is called once its rows are staged."""

        def finish(count: int) -> Published:
            before_finish()
            number = 1 if previous is None else previous.last.number + 1
            run = PipelineRun(number, f"the cut of run {number}", 7, count, 1_700_000_000.5, 0.25)
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


def of_each_target(modes: Sequence[Mode] = tuple(Mode), names: Sequence[str] = tuple(MODES)) -> pytest.MarkDecorator:
    """Each target with each of these modes that it takes; quick is PostgreSQL, whose statements are ours, in the last.

    The life of a table by key has what is refused in all modes; that a table as a whole is replaced, its values show. A
    cell of Parquet, of a topic or of Delta Lake takes several times the CPU. The quick tier shows these targets in
    test_pipelines, test_pipeline_topics and test_pipeline_delta, and by the deaths of their drivers.
    """
    cells = [(name, mode) for name in names for mode in modes if mode in MODES[name]]
    return pytest.mark.parametrize(
        ("name", "mode"),
        [pytest.param(*cell, marks=() if cell == ("postgresql", modes[-1]) else pytest.mark.long) for cell in cells],
    )


PEN_AND_INK: Final = [("ink", 2), ("pen", 1)]


@of_each_target()
def test_rows_and_runs_of_a_table_change_together_or_not_at_all(case: Case, mode: Mode) -> None:
    """The life of a table: each run finds what all that was refused or failed before has left."""
    case.reset()
    assert case.shown() == ([], None)
    with pytest.raises(SettingsError, match="pipeline 'totals' has not run yet: run it first"):
        case.table()
    fail_runs(case, None)
    overtake(case, None, lambda: case.publish(case.amounts(PEN_AND_INK), None))
    run = PipelineRun(1, "the cut of run 1", 7, 2, 1_700_000_000.5, 0.25)
    first = Published("shop.totals", {"item": "string", "amount": "bigint"}, (run,))
    assert (case.shown(), case.table()) == ((PEN_AND_INK, first), PEN_AND_INK)

    seen = list[object]()
    second = case.publish(case.amounts([("cup", 4), ("pen", 3)]), first, lambda: seen.append(case.shown()))
    assert seen == [(PEN_AND_INK, first)], "no rows are seen before their run is"
    assert second == first._replace(runs=(run, run._replace(number=2, cut="the cut of run 2")))
    rows = {
        Mode.COMPLETE: [("cup", 4), ("pen", 3)],
        Mode.APPEND: [("cup", 4), ("ink", 2), ("pen", 1), ("pen", 3)],
        Mode.UPSERT: [("cup", 4), ("ink", 2), ("pen", 3)],
    }[mode]
    assert (case.shown(), case.table()) == ((rows, second), rows)

    fail_runs(case, second)
    if mode in KEYED:
        for refused in ([("cup", 4), ("pen", 3), ("cup", 5)], [("cup", 4), (None, 3)]):
            with pytest.raises(RowRefused, match="pipeline 'totals'"):
                case.publish(case.amounts(refused), second)
    other = Case(case.spark, case.rig, mode, id="others")
    message = r"pipeline 'others': .* is the table of pipeline 'shop\.totals': name another target, or reset that"
    with pytest.raises(SettingsError, match=message):
        check_owner(other.pipeline, other.read())
    with pytest.raises(SettingsError, match=message):
        other.reset()
    with case.rig.broken() as reason, pytest.raises((SinkUnavailable, BrokerUnavailable), match=reason):
        case.publish(case.amounts([("cup", 9)]), second)
    assert case.shown() == (rows, second)

    overtake(case, second, lambda: case.publish(case.amounts([]), second))
    rows = [] if mode is Mode.COMPLETE else rows
    third = case.read()
    assert third is not None
    assert (third.last.number, third.last.rows, case.shown(), case.table()) == (3, 0, (rows, third), rows)

    case.reset()
    assert case.shown() == ([], None)
    made = case.publish(case.amounts([("cup", 4)]).withColumn("price", sf.lit(2)), None)
    assert case.shown() == ([("cup", 4, 2)], made)


def fail_runs(case: Case, before: Published | None) -> None:
    """Runs that fail, in their own code and in Spark's, change nothing."""
    shown = case.shown()

    def fail() -> None:
        raise ZeroDivisionError("in the middle")

    with pytest.raises(ZeroDivisionError, match="in the middle"):
        case.publish(case.amounts([("cup", 8)]), before, fail)
    price = sf.when(sf.col("item") == "box", sf.raise_error(sf.lit("no price"))).otherwise(sf.col("amount"))
    with pytest.raises(PipelineFailed, match=r"Spark failed: .*no price.*; the last published table stays"):
        case.publish(case.amounts([("cup", 4), ("box", 9)]).withColumn("amount", price), before)
    assert case.shown() == shown


def overtake(case: Case, before: Published | None, publish: Callable[[], object]) -> None:
    """Runs that another one has overtaken, while they ran or before, are refused and change nothing."""
    shown = list[object]()

    def publish_other() -> None:
        publish()
        shown.append(case.shown())

    with pytest.raises(StaleWriter, match="pipeline 'totals': another run was published meanwhile: run it again"):
        case.publish(case.amounts([("box", 9)]), before, publish_other)
    with pytest.raises(StaleWriter):
        case.publish(case.amounts([("box", 9)]), before)
    assert [case.shown()] == shown


@of_each_target([Mode.UPSERT], ["parquet", "delta", "postgresql"])  # the key of a record in a topic is one column
def test_column_names_of_any_kind_are_those_of_the_table(spark: SparkSession, rig: TableRig, mode: Mode) -> None:
    names = ("count", "a b.c", 'q"', "a`b", "select")
    case = Case(spark, rig, mode, key=names[:-1])
    rows = local_rows(spark, [("pen", 1), ("ink", 2)])
    table = rows.select(*(sf.col("item").alias(name) for name in names[:-1]), sf.col("amount").alias(names[-1]))
    case.publish(table, None)
    case.publish(table.where("`select` = 1").withColumn("select", sf.lit(3).cast("bigint")), case.read())
    assert (rig.rows(), case.table()) == ([("ink",) * 4 + (2,), ("pen",) * 4 + (3,)],) * 2


def test_parquet_files_of_many_runs_stay_few_and_merged_ones_stay_for_their_readers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "MERGED_AT_ONCE", 3)
    case, read = Case(spark, ParquetRig(tmp_path), Mode.APPEND), []
    target: Parquet = case.pipeline.target  # type: ignore[assignment]
    spark.conf.set("spark.sql.files.maxRecordsPerFile", "2")  # the files that are merged have more
    try:
        for number in range(4):
            case.publish(case.amounts([("pen", number)]).coalesce(1), case.read())
            read += target.files()
    finally:
        spark.conf.unset("spark.sql.files.maxRecordsPerFile")
    assert (sorted(case.rig.rows()), len(target.files())) == ([("pen", number) for number in range(4)], 1 + 1)
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


UNINDEXED: Final = "DROP CONSTRAINT {name}_pkey"

CHANGES: Final = [
    *((Mode.APPEND, change) for change in CHANGED if change != UNINDEXED),
    (Mode.UPSERT, "RENAME COLUMN amount TO price"),
    *((mode, UNINDEXED) for mode in KEYED),
]
QUICK_CHANGES: Final = [(False, Mode.APPEND, "RENAME COLUMN amount TO price"), (True, Mode.UPSERT, UNINDEXED)]
"""One look finds all columns, and one all indexes: a change of either."""


@pytest.mark.parametrize("name", ["postgresql"])
@pytest.mark.parametrize(
    ("is_late", "mode", "change"),
    [
        pytest.param(*each, marks=() if each in QUICK_CHANGES else pytest.mark.long)
        for each in ((is_late, *change) for is_late in (False, True) for change in CHANGES)
    ],
)
def test_table_in_postgresql_whose_columns_others_have_changed_names_the_column(
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
    assert case.rig.rows() == PEN_AND_INK


@pytest.mark.parametrize(("name", "mode"), [("postgresql", Mode.APPEND)])
def test_table_in_postgresql_takes_columns_and_indexes_of_others_that_need_no_value(case: Case) -> None:
    before = case.run(("ink", 2))
    assert isinstance(case.rig, PostgreSQLRig)
    case.rig.execute("ALTER TABLE {table} ADD COLUMN made timestamptz NOT NULL DEFAULT now(), ADD COLUMN note text")
    case.rig.execute("CREATE INDEX ON {table} (amount)")
    case.publish(case.amounts([("pen", 1)]), before)
    assert case.table() == PEN_AND_INK


@pytest.mark.parametrize(("name", "mode"), [("postgresql", Mode.APPEND)])
def test_table_in_postgresql_that_is_changed_before_the_insert_names_the_column(
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
    case = Case(spark, rig, mode, key=["text"])
    columns = [
        (sf.lit(value).cast("string") if value is None else sf.lit(value)).alias(column)
        for column, value in VALUES.items()
    ]
    rows = spark.range(1).select(*columns)
    before = case.publish(rows.withColumn("text", sf.lit("before")), None)
    case.publish(rows, before)
    with case.open() as target:
        table = target.table(spark)
    assert (rig.rows(), table.dtypes) == ([tuple(VALUES.values())], rows.dtypes)
    assert table.collect() == rows.collect()


@of_each_target([Mode.APPEND], ["postgresql"])
@pytest.mark.parametrize(
    ("column", "error", "message"),
    [
        ("CAST(X'ff' AS STRING) AS text", PipelineFailed, "INVALID_UTF8_STRING"),
        ("CAST(X'610062' AS STRING) AS text", SettingsError, "invalid byte sequence"),
        (f"'a' AS {'x' * 64}", SettingsError, "has 64 bytes, of which PostgreSQL keeps 63: choose a shorter"),
    ],
    ids=["no UTF-8", "NUL", "long name"],
)
def test_text_that_postgresql_would_change_is_refused(
    spark: SparkSession, case: Case, column: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        case.publish(spark.range(1).selectExpr(column), None)
    assert case.shown() == ([], None)
