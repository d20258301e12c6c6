"""What the review code asks of a database: three small contracts, of which SQLite's is one.

Everything but `database` (which opens SQLite) and `schema` (its tables) is written against these,
so that a store in PostgreSQL can take their place without a query being changed.

**The SQL in use.** Statements keep to what SQLite and PostgreSQL both read; a test refuses
what only SQLite does:

- values are given as ``?`` with a sequence or as ``:name`` with a mapping, never both in one
  statement; neither sign stands in a literal. A driver with other signs rewrites these two;
- ``INSERT … ON CONFLICT (columns) DO UPDATE SET column = excluded.column``, the table named
  wherever its old value is read, or ``ON CONFLICT DO NOTHING``; never ``INSERT OR …``;
- what an insert or update made is read by ``RETURNING``, never by a row number or count;
- the lesser or greater of two values is a ``CASE``; ``min`` and ``max`` are aggregates;
- `NULL` is sorted by ``column IS NULL`` before the column, wherever it can come up;
- no JSON, date or regular-expression function: those happen in Python, times are integers (UTC
  milliseconds since 1970), truth is 0 or 1, and a condition is a comparison, never a number;
- a value that may be `NULL` stands where a column gives its type, ``coalesce(?, column)``.

**What another database must bring.** With this schema in PostgreSQL's words, PostgreSQL 15 prepares
every statement; these differences are left:

- a column is called ``offset``, a reserved word there: its driver quotes it, where no number or
  ``?`` follows;
- text is compared and sorted byte by byte (the "C" collation);
- a `sum` of whole numbers is an `int`, which PostgreSQL makes a decimal;
- `lower` changes ASCII letters alone in SQLite and all letters elsewhere: a search finds more;
- the tables of `schema` are written for SQLite: ``STRICT``, ``WITHOUT ROWID``, ``AUTOINCREMENT``,
  ``BLOB``, ``INTEGER`` and ``REAL`` of 64 bits, and triggers that raise;
- `rebuild` puts one file in the place of another: it has no counterpart yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

__all__ = ["Connection", "Database", "Row", "Rows", "Values"]

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Row(Protocol):
    """One row: ``row["name"]``, ``row[0]`` and ``name, other = row`` give the same values.

    Values are `int`, `float`, `str`, `bytes` or `None`, as they were stored.
    """

    def __getitem__(self, key: str | int, /) -> Any:  # noqa: ANN401
        """Return one value, by the column's name or position."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the values, in the order of the columns."""

    def keys(self) -> list[str]:
        """Return the names of the columns, in order; with them ``dict(row)`` works."""


class Rows(Protocol):
    """What a statement gave, read once from the first row to the last."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over what is left, each a :class:`Row`; fetched as they are asked for."""

    def fetchone(self) -> Any:  # noqa: ANN401
        """Return the next :class:`Row`; ``None`` after the last."""

    def fetchall(self) -> list[Any]:
        """Return what is left, each a :class:`Row`."""


class Connection(Protocol):
    """One transaction, as long as its block runs; used by one thread at a time."""

    def execute(self, sql: str, values: Values = (), /) -> Rows:
        """Run one statement, which sees everything that earlier ones of this block did."""

    def executemany(self, sql: str, values: Iterable[Values], /) -> object:
        """Run one statement, which gives no rows, with each of `values` in turn."""


class Database(Protocol):
    """A review database, used by several threads and several processes at once.

    Every statement runs in a block of :meth:`read` or :meth:`write`. Blocks of one thread do not
    nest into a second write: it would wait for the first.
    """

    @property
    def path(self) -> Path:
        """The file; of a database without one, the name beside which its side files are put."""

    def read(self) -> AbstractContextManager[Connection]:
        """Run a block against one unchanging state; it changes nothing.

        The state is the one its first statement met: every write whose block had ended is in it,
        whole, and none that ends later. It neither waits for writers nor lets them wait.
        """

    def write(self) -> AbstractContextManager[Connection]:
        """Run a block as one transaction, alone among writers; all of it or nothing.

        It begins when every earlier writer, of any process, has ended, and sees all they did:
        what is read in the block still holds when it writes. When the block ends, what it did is
        there for every block that begins later, and outlives the process; when it raises, or the
        process dies, nothing of it is. A writer that waits too long for its turn raises.
        """

    def back_up(self, target: Path) -> None:
        """Write a consistent copy to `target`, which must not exist, beside running writers."""

    def integrity(self) -> str:
        """Return ``ok``, or the first damage that a look at everything finds."""

    def close(self) -> None:
        """Close every connection; the database must not be in use."""
