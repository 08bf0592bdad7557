"""The ledger in SQL: SQLite on one machine, MySQL or MariaDB on a cluster.

Each class here owns one kind of row and takes a `Database`; `SqlLedger` joins them. Every public method is one
transaction.
"""

from pipeline.stores.sql.ledger import SqlLedger

__all__ = ["SqlLedger"]
