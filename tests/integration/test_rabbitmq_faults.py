"""What happens when the broker, the network or the login fails."""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline import messaging
from pipeline.domain import Message
from pipeline.errors import BrokerUnavailable
from pipeline.messaging import Messenger
from pipeline.stores.rabbitmq import RabbitmqBroker
from pipeline.stores.rabbitmq_options import NotificationRule, RabbitmqOptions
from tests import ledger_driver as driver
from tests.rabbitmq_bench import Consumer, RabbitmqBench, wait_until

USER, PASSWORD = "someone-special", "hunter2-and-more"


class Proxy:
    """Stands between one client after the other and the broker, and fails when it is told to."""

    def __init__(self, host: str, port: int) -> None:
        self.accepted = 0
        self.mute = False
        """What the broker says is read and dropped."""
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        """End all connections."""
        pairs, self._pairs = self._pairs, []
        for end in (end for pair in pairs for end in pair):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                pair = client, socket.create_connection(self._target)
                self._pairs.append(pair)
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, client: socket.socket, broker: socket.socket) -> None:
        with selectors.DefaultSelector() as selector, client, broker, contextlib.suppress(OSError):
            selector.register(client, selectors.EVENT_READ, broker)
            selector.register(broker, selectors.EVENT_READ, client)
            while True:
                for key, _ in selector.select():
                    said = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not said:
                        return
                    if not (self.mute and key.fileobj is broker):
                        key.data.sendall(said)


@pytest.fixture
def rabbit(amqp_url: str) -> Iterator[RabbitmqBench]:
    bench = RabbitmqBench(amqp_url)
    yield bench
    bench.close()


@pytest.fixture
def proxy(rabbit: RabbitmqBench) -> Iterator[Proxy]:
    proxy = Proxy(rabbit.options.host, rabbit.options.port)
    yield proxy
    proxy.close()


@pytest.fixture
def through(rabbit: RabbitmqBench, proxy: Proxy) -> Iterator[Callable[..., RabbitmqBroker]]:
    """Brokers that speak through the proxy."""
    opened: list[RabbitmqBroker] = []

    def connect(**options: Any) -> RabbitmqBroker:
        url = rabbit.options.url.get_secret_value().replace(f":{rabbit.options.port}", f":{proxy.port}")
        opened.append(RabbitmqBroker(RabbitmqOptions(**{**dict(rabbit.options), "url": url, **options})))
        return opened[-1]

    yield connect
    for broker in opened:
        broker.close()


def a_message(number: int = 1, topic: str = "submission.registered") -> Message:
    return Message(topic=topic, id=f"{topic}:{number}", body=b'{"number": %d}' % number)


def failing(url: str, **options: Any) -> tuple[BrokerUnavailable, float]:
    """How publishing fails, and after how many seconds."""
    begun = time.monotonic()
    with pytest.raises(BrokerUnavailable) as caught:
        RabbitmqBroker(RabbitmqOptions(url=url, connect_timeout_s=1, **options)).publish([a_message()])
    return caught.value, time.monotonic() - begun


# The connection


@pytest.mark.rabbitmq
def test_a_connection_lost_before_the_confirmation_is_unavailability_and_the_message_is_sent_again(
    rabbit: RabbitmqBench, proxy: Proxy, through: Callable[..., RabbitmqBroker]
) -> None:
    broker = through()
    broker.publish([a_message(1)])
    proxy.mute = True
    threading.Timer(0.5, proxy.cut).start()

    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{proxy.port}"):
        broker.publish([a_message(2)])

    proxy.mute = False
    broker.publish([a_message(2)])
    with Consumer(rabbit.connect()) as consumer:
        consumer.wait(3)
    assert consumer.taken == [a_message(1), a_message(2), a_message(2)], "the broker had it, but could not say so"


@pytest.mark.rabbitmq
def test_a_broker_that_confirms_nothing_is_given_up_after_the_time_set(
    proxy: Proxy, through: Callable[..., RabbitmqBroker]
) -> None:
    broker = through(confirm_timeout_s=1)
    broker.publish([a_message(1)])
    proxy.mute = True
    begun = time.monotonic()

    with pytest.raises(BrokerUnavailable, match="confirmed nothing for 1 s"):
        broker.publish([a_message(2)])

    assert time.monotonic() - begun < 5


@pytest.mark.rabbitmq
def test_a_message_at_work_when_the_connection_is_lost_comes_again_and_its_handler_is_not_cut_off(
    proxy: Proxy, through: Callable[..., RabbitmqBroker]
) -> None:
    finished: set[str] = set()

    def handle(message: Message) -> None:
        if proxy.accepted == 1:
            proxy.cut()
            time.sleep(1)
        finished.add(message.id)

    broker = through()
    broker.publish([a_message()])
    with Consumer(broker, handle) as consumer:
        consumer.join()
    assert type(consumer.error) is BrokerUnavailable
    assert finished == {a_message().id}

    with Consumer(broker, handle) as again:
        again.wait(1)
    assert again.taken == consumer.taken == [a_message()]
    assert finished == {a_message().id}


@pytest.mark.rabbitmq
def test_an_idle_consumer_notices_that_its_connection_is_lost(
    proxy: Proxy, through: Callable[..., RabbitmqBroker]
) -> None:
    broker = through()
    broker.publish([a_message()])
    with Consumer(broker) as consumer:
        consumer.wait(1)
        proxy.cut()
        consumer.join()

    assert type(consumer.error) is BrokerUnavailable


@pytest.mark.rabbitmq
def test_a_handler_may_take_longer_than_heartbeats_allow_silence(
    proxy: Proxy, through: Callable[..., RabbitmqBroker]
) -> None:
    broker = through(heartbeat_s=1)
    broker.publish([a_message(1), a_message(2)])
    with Consumer(broker, lambda message: time.sleep(4 if message == a_message(1) else 0)) as consumer:
        consumer.wait(2)

    assert consumer.taken == [a_message(1), a_message(2)]
    assert consumer.error is None
    assert proxy.accepted == 1


@pytest.mark.rabbitmq
def test_a_publisher_that_was_idle_for_too_long_connects_anew_without_a_failure(
    proxy: Proxy, through: Callable[..., RabbitmqBroker]
) -> None:
    broker = through(heartbeat_s=1)
    broker.publish([a_message(1)])
    time.sleep(4)

    broker.publish([a_message(2)])

    assert proxy.accepted == 2, "the broker gave the silent one up"


@pytest.mark.rabbitmq
def test_publishing_nothing_now_and_then_keeps_the_connection(
    proxy: Proxy, through: Callable[..., RabbitmqBroker]
) -> None:
    broker = through(heartbeat_s=1)
    broker.publish([])
    assert proxy.accepted == 0, "it opens none"
    broker.publish([a_message(1)])
    for _ in range(8):
        time.sleep(0.5)
        broker.publish([])

    broker.publish([a_message(2)])

    assert proxy.accepted == 1


@pytest.mark.rabbitmq
def test_nothing_is_lost_or_done_twice_while_the_connection_is_cut_again_and_again(
    rabbit: RabbitmqBench,
    proxy: Proxy,
    through: Callable[..., RabbitmqBroker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messaging, "pause_s", lambda failures: 0.05)
    monkeypatch.setattr(messaging, "DEFER_S", 0.1)
    ledger = driver.open_ledger(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    with Messenger(ledger, through, [NotificationRule(bucket="inbox", org="acme")]) as messenger:
        for number in range(20):
            driver.submit(ledger, f"file:///{number}.pdf")
            rabbit.send("s3.put", notification(f"{number}.pdf"))
            time.sleep(0.05)
            if number % 4 == 0:
                proxy.cut()
        wait_until(messenger.idle)

    assert proxy.accepted > 4
    assert ledger.views.status(None).submissions == {"queued": 40}
    assert rabbit.waiting() == 0
    assert rabbit.channel.basic_get(rabbit.name("dead"))[0] is None
    ledger.close()


def notification(key: str) -> bytes:
    object = {"key": key, "eTag": "e"}
    return json.dumps(
        {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "inbox"}, "object": object}}]}
    ).encode()


def test_a_closed_port_is_unavailability_within_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    error, seconds = failing(f"amqp://127.0.0.1:{port}/")

    assert seconds < 5
    assert f"127.0.0.1:{port}" in error.message


def test_a_name_that_nobody_knows_is_unavailability() -> None:
    error, _ = failing("amqp://nowhere.invalid/some%2Fhost")

    assert "nowhere.invalid:5672/some/host" in error.message


def test_a_peer_that_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, seconds = failing(f"amqp://127.0.0.1:{silent.getsockname()[1]}/")

    assert seconds < 5


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\0\0\x08\0", b""])
@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
def test_a_peer_that_speaks_something_else_is_unavailability(said: bytes, scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(8)
                connection.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        error, _ = failing(f"{scheme}://{USER}:{PASSWORD}@127.0.0.1:{other.getsockname()[1]}/")

    assert_nothing_is_told(error)


# Secrets


def assert_nothing_is_told(error: BaseException) -> None:
    told = "".join(traceback.format_exception(error)) + repr(error)
    assert PASSWORD not in told
    assert USER not in told


@pytest.mark.rabbitmq
@pytest.mark.parametrize("vhost", ["", "nothing-here"])
def test_a_refused_login_is_told_without_user_and_password(
    rabbit: RabbitmqBench, vhost: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    options = rabbit.options

    error, seconds = failing(f"amqp://{USER}:{PASSWORD}@{options.host}:{options.port}/{vhost}")

    assert seconds < 5
    assert error.message.endswith("check user and password")
    assert_nothing_is_told(error)
    assert PASSWORD not in caplog.text
    assert USER not in caplog.text


@pytest.mark.rabbitmq
def test_a_virtual_host_that_is_not_there_is_named(rabbit: RabbitmqBench) -> None:
    url = rabbit.options.url.get_secret_value().replace("%2F", "nothing-here")

    error, _ = failing(url)

    assert "/nothing-here" in error.message
    assert "check the virtual host" in error.message


@pytest.mark.rabbitmq
def test_the_log_of_an_outage_names_no_secret(
    proxy: Proxy, through: Callable[..., RabbitmqBroker], rabbit: RabbitmqBench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    broker = through()
    broker.publish([a_message()])
    with Consumer(broker) as consumer:
        consumer.wait(1)
        proxy.cut()
        consumer.join()

    assert rabbit.options.url.get_secret_value().partition("@")[0] not in caplog.text
    assert "pika" not in {record.name.partition(".")[0] for record in caplog.records}


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://{USER}:{PASSWORD}@host:port/",
        f"amqp://{USER}:pass/{PASSWORD}@host/",
        f"amqp://{USER}:{PASSWORD}#@host/",
        f"amqp://{USER}:{PASSWORD}@[::1/",
        f"amqp://{USER}:{PASSWORD}@host:99999/",
        f"amqp://{USER}:{PASSWORD}@/",
        f"amqp://{PASSWORD}@host/",
        f"amqp://{USER}:{PASSWORD}@host/a/b",
        f"amqp://{USER}:{PASSWORD}@host/?heartbeat=0",
        f"amqp://{USER}:{PASSWORD}@ho\u2100st/",
        f"http://{USER}:{PASSWORD}@host/",
        PASSWORD,
    ],
)
def test_a_url_that_is_wrong_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        RabbitmqOptions(url=url)

    assert_nothing_is_told(caught.value)
    assert PASSWORD not in caught.value.json(include_input=False)


def test_options_show_neither_user_nor_password() -> None:
    options = RabbitmqOptions(url=f"amqps://{USER}:{PASSWORD}@host/%2Fvhost")

    for shown in (
        repr(options),
        str(options),
        options.model_dump_json(),
        repr(RabbitmqBroker(options)),
        options.address,
    ):
        assert PASSWORD not in shown
        assert USER not in shown
    assert options.credentials() == (USER, PASSWORD)
    assert (options.address, options.vhost, options.tls) == ("host:5671/vhost", "/vhost", True)


@pytest.mark.parametrize(
    ("url", "credentials", "vhost"),
    [
        ("amqp://host", ("guest", "guest"), "/"),
        ("amqp://host/", ("guest", "guest"), "/"),
        ("amqp://host/%2F", ("guest", "guest"), "/"),
        ("amqp://host/a%2Fb", ("guest", "guest"), "a/b"),
        ("amqp://u%40x:p%2F%3A%23@host/v", ("u@x", "p/:#"), "v"),
    ],
)
def test_the_parts_of_a_url_are_percent_decoded(url: str, credentials: tuple[str, str], vhost: str) -> None:
    options = RabbitmqOptions(url=url)

    assert (options.credentials(), options.vhost, options.port) == (credentials, vhost, 5672)
