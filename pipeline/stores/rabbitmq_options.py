"""How to reach RabbitMQ and what to take from it; imports no client, so that settings stay light."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FilePath, SecretStr

DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


def _is_printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("use printable characters")
    return name


def _is_amqp(url: SecretStr) -> SecretStr:
    """What is wrong is said without any part of the URL: a slip may have put the password anywhere in it."""
    try:
        parts = urlsplit(url.get_secret_value())
        sound = parts.scheme in DEFAULT_PORTS and parts.hostname and parts.port != 0
    except ValueError:  # its text may repeat the URL
        sound = False
    if not sound or parts.query or parts.fragment or "/" in parts.path[1:]:
        raise ValueError("use amqp(s)://USER:PASSWORD@HOST[:PORT][/VHOST], with reserved characters percent-encoded")
    if (parts.username is None) != (parts.password is None):
        raise ValueError("give both user and password, or neither")
    return url


Org = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_is_printable)]
"""A tenant's name."""


class NotificationRule(BaseModel):
    """S3 notifications of objects of this bucket whose key begins with `prefix` become submissions of `org`."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    bucket: Annotated[str, Field(min_length=1)]
    prefix: str = ""
    org: Org


class RabbitmqOptions(BaseModel):
    """A broker. No value of it is ever shown in an error: the URL holds a password."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: Annotated[SecretStr, AfterValidator(_is_amqp)]
    """``amqp://`` or ``amqps://USER:PASSWORD@HOST[:PORT][/VHOST]``; guest:guest and ``/`` are the defaults."""
    ca_file: FilePath | None = None
    """PEM file of the authority that signed an ``amqps`` server's certificate; default: the public ones."""
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = "pagegate"
    """Of the names of exchanges and queues. Installations that share a virtual host need different ones."""
    prefetch: Annotated[int, Field(ge=1, le=1000)] = 16
    """Messages that a consumer may hold unacknowledged."""
    delivery_limit: Annotated[int, Field(ge=1)] = 20
    """How often a message may come back before it goes to the dead letters; 20 is RabbitMQ 4's default. Quorum
    queues count every return: not only that of a message whose handling crashed, but also those of all that a
    consumer held when it stopped or lost its connection. So it must outlast some restarts during an outage."""
    heartbeat_s: Annotated[int, Field(ge=1, le=600)] = 60
    """A peer that is silent for twice as long is given up."""
    connect_timeout_s: Annotated[float, Field(gt=0)] = 10.0
    confirm_timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """For the broker to confirm what was published, and for it to unblock publishers when its memory or disk is
    short. A quorum queue that has lost its majority confirms nothing."""
    notifications: tuple[NotificationRule, ...] = ()
    """The S3 notifications that may become submissions; the rule with the longest matching prefix decides."""

    @property
    def host(self) -> str:
        return str(self._parts.hostname)

    @property
    def port(self) -> int:
        return self._parts.port or DEFAULT_PORTS[self._parts.scheme]

    @property
    def vhost(self) -> str:
        return unquote(self._parts.path[1:]) or "/"

    @property
    def tls(self) -> bool:
        return self._parts.scheme == "amqps"

    @property
    def address(self) -> str:
        """What messages say: no user, no password."""
        return f"{self.host}:{self.port}/{self.vhost.removeprefix('/')}"

    def credentials(self) -> tuple[str, str]:
        """User and password. Not to be kept where it could be shown."""
        return unquote(self._parts.username or "guest"), unquote(self._parts.password or "guest")

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.url.get_secret_value())
