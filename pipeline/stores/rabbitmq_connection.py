"""A connection to RabbitMQ, what is declared on it, and what its errors mean. They become ours here, nowhere else."""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.adapters.utils.connection_workflow import AMQPConnectorException
from pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosedByBroker,
    ChannelWrongStateError,
    ConnectionBlockedTimeout,
    ConnectionClosedByBroker,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)

from pipeline.stores.rabbitmq_options import RabbitmqOptions

CLIENT_ERRORS = (AMQPError, AMQPConnectorException, OSError)
"""What pika raises of a broker or a network that fails; the second is not below the first."""

LOGIN = (AuthenticationError, ProbableAuthenticationError)
CLOSED_BY_BROKER = (ChannelClosedByBroker, ConnectionClosedByBroker)
CLOSE_S = 2.0

ADVICE = {
    320: "it is shutting down, or an operator closed the connection",
    403: "let this user configure, write and read everything that begins with `prefix`",
    404: "a queue or exchange was deleted, and is declared anew by the next try",
    405: "another connection has the queue for itself",
    406: "a queue or exchange was declared with other options (delivery_limit): delete it or go back to them; or a "
    "message was held for longer than the broker's consumer_timeout",
    501: "it does not speak AMQP 0-9-1, or a proxy between cut a frame",
    530: "check the virtual host, and that the user may enter it",
}
"""By AMQP reply code. The reply's text is never repeated: it may name the user."""

logging.getLogger("pika").setLevel(logging.CRITICAL)
"""It logs each failure several times over, and message bodies; what it raises is told by our own errors."""


def connect(options: RabbitmqOptions) -> Any:
    """A `pika.BlockingConnection` on which the topology is declared."""
    user, password = options.credentials()
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(
            host=options.host,
            port=options.port,
            virtual_host=options.vhost,
            credentials=pika.PlainCredentials(user, password),
            ssl_options=_tls(options),
            heartbeat=options.heartbeat_s,
            socket_timeout=options.connect_timeout_s,
            stack_timeout=options.connect_timeout_s,
            blocked_connection_timeout=options.confirm_timeout_s,
            client_properties={"connection_name": f"pagegate {options.prefix}"},
        )
    )
    with connection.channel() as channel:
        declare(channel, options)
    return connection


def declare(channel: BlockingChannel, options: RabbitmqOptions) -> None:
    """Exchanges and queues; declaring them again changes nothing.

    ``submissions`` takes our own announcements and S3 notifications. A message that is given back too often goes to
    ``dead``, where those that cannot be taken are sent too. Whoever wants ``events`` binds a queue of their own.
    """
    submissions, dead, events = (f"{options.prefix}.{name}" for name in ("submissions", "dead", "events"))
    quorum = {"x-queue-type": "quorum"}
    limits = {"x-delivery-limit": options.delivery_limit, "x-dead-letter-exchange": dead}
    channel.exchange_declare(dead, "fanout", durable=True)
    channel.queue_declare(dead, durable=True, arguments=quorum)
    channel.queue_bind(dead, dead)
    channel.exchange_declare(submissions, "topic", durable=True)
    channel.queue_declare(submissions, durable=True, arguments=quorum | limits)
    for topic in ("submission.registered", "s3.#"):
        channel.queue_bind(submissions, submissions, topic)
    channel.exchange_declare(events, "topic", durable=True)


def serve(channel: BlockingChannel, seconds: float) -> None:
    """Do what the connection asks for, heartbeats above all, for so long or until something has come.

    Raises what ended the connection or the channel.
    """
    channel.connection.process_data_events(time_limit=seconds)
    if channel.is_closed:
        raise ChannelWrongStateError("closed by the broker")


def close(connection: Any) -> None:
    """Close in good order; a broker that does not answer is left to the heartbeat after two seconds."""
    closing = threading.Thread(target=_close, args=(connection,), daemon=True)
    closing.start()
    closing.join(CLOSE_S)


def explain(error: Exception, options: RabbitmqOptions) -> str:
    """What happened, where, and what to do about it; without user and password."""
    what, advice = type(error).__name__, "check that it runs, and host and port; it is asked again later"
    if isinstance(error, CLOSED_BY_BROKER):
        what = f"{what} {error.reply_code}"
        advice = ADVICE.get(error.reply_code, "look into its log")
    elif isinstance(error, LOGIN):
        advice = "check user and password"
    elif isinstance(error, ProbableAccessDeniedError):
        advice = ADVICE[530]
    elif isinstance(error, ChannelWrongStateError):
        what, advice = "it closed the channel", f"look into its log; perhaps {ADVICE[406]}"
    elif isinstance(error, ConnectionBlockedTimeout):
        advice = "it has stopped all publishers: give it memory or disk"
    elif isinstance(error, ssl.SSLError):
        advice = "set ca_file to the authority of its certificate, or use the port for TLS"
    return f"RabbitMQ at {options.address} failed ({what}): {advice}"


def _tls(options: RabbitmqOptions) -> pika.SSLOptions | None:
    if not options.tls:
        return None
    return pika.SSLOptions(ssl.create_default_context(cafile=options.ca_file), options.host)


def _close(connection: Any) -> None:
    with contextlib.suppress(Exception):  # it is given up anyway
        connection.close()
