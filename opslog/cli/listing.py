"""Commands on all documents: ls, count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import orjson

from opslog.cli.options import READS, StoreCommand
from opslog.cli.output import answer, documents, id_text, rows, write_json
from opslog.cli.session import Session
from opslog.cli.values import Count, as_of_option, columns_option, order, path, where_option
from opslog.format.commits import Set
from opslog.format.documents import Document
from opslog.query.conditions import Condition, paths_of
from opslog.query.paths import BY_ID, Path
from opslog.query.question import Grouping, Order, Question, all_of, count_of, groups_of, names_of
from opslog.store import replica_of

if TYPE_CHECKING:
    from opslog.history import Point


@click.command("ls", cls=StoreCommand, options=READS)
@where_option("Only documents that fulfil this: 'status = active and hours > 3'. May be repeated.")
@click.option(
    "--sort",
    "orders",
    type=order,
    multiple=True,
    metavar="PATH",
    help="In order of this field; may be repeated. Default: in order of id.",
)
@click.option("--desc", is_flag=True, help="Reverse the order.")
@click.option("--limit", type=Count(), metavar="N", help="At most N documents.")
@click.option("--offset", type=Count(), default=0, metavar="N", help="Skip the first N.")
@click.option("--ids", is_flag=True, help="Only the ids.")
@columns_option
@click.option("--stamp", is_flag=True, help="Print stamp and author after the id, as get does.")
@as_of_option
@click.pass_obj
def ls_command(
    session: Session,
    *,
    conditions: Sequence[Condition],
    orders: Sequence[Order],
    desc: bool,
    limit: int | None,
    offset: int,
    ids: bool,
    columns: Sequence[Path] | None,
    stamp: bool,
    as_of: Point | None,
) -> None:
    """List documents, one per line: the id, a tab, the document."""
    if ids and (stamp or columns is not None):
        raise click.UsageError("--ids prints only ids: leave out --stamp and --columns")
    if desc:
        orders = [Order(each.path, not each.is_descending) for each in [*orders, Order(BY_ID, is_descending=False)]]
    asked = Question(all_of(conditions), tuple(orders), limit, offset)
    with session.reading(as_of) as store:
        rows = replica_of(store).questions.rows(asked.names)
        found = (record for record, _ in asked.matches(rows, _document_of))
        if ids:
            for record in found:
                answer(session, {"id": record.id}, id_text(record.id))
        else:
            documents(session, found, columns, stamps=stamp)


@click.command("count", cls=StoreCommand, options=READS)
@where_option("Only documents that fulfil this, as for ls; may be repeated.")
@click.option("--by", type=path, metavar="PATH", help="Count the documents with each value of this field.")
@as_of_option
@click.pass_obj
def count_command(session: Session, conditions: Sequence[Condition], by: Path | None, as_of: Point | None) -> None:
    """Print how many documents there are; with --by the number, a tab and the value, the most frequent first."""
    with session.reading(as_of) as store:
        condition, questions = all_of(conditions), replica_of(store).questions
        if by is None:
            documents = questions.rows(names_of(paths_of(condition)))
            count = len(store) if not conditions else count_of(condition, documents, _document_of)
            answer(session, {"count": count}, str(count))
            return
        asked = Grouping(by, condition)
        groups = groups_of(asked, questions.rows(asked.names), _document_of)
    if session.json:
        for value, count in groups:
            write_json({"value": value, "count": count})
    else:
        rows(["count", "value"], ([str(count), orjson.dumps(value).decode()] for value, count in groups))


def _document_of(record: Set) -> Document:
    return record.document
