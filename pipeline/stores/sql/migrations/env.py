"""Alembic's entry: runs the migrations on the engine that `SqlLedger.migrate` hands over."""

from alembic import context

from pipeline.stores.sql.tables import metadata

engine = context.config.attributes["engine"]
with engine.connect().execution_options(write=True) as connection, connection.begin():
    context.configure(connection=connection, target_metadata=metadata)
    with context.begin_transaction():
        context.run_migrations()
