"""Typed, frozen settings: the defaults are the embedded set-up; a YAML file and PAGEGATE_* variables override.

Order: environment over files of secrets over the YAML file over defaults. A nested option's variable has two
underscores: ``PAGEGATE_RENDER__DPI=200``. A secret may lie in a file of the folder that PAGEGATE_SECRETS_DIR names, as
Kubernetes and Docker mount them: ``ledger__url``, ``broker__url``. An unknown option is an error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    NestedSecretsSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    YamlConfigSettingsSource,
)

from pipeline.errors import ConfigurationError
from pipeline.stores.qdrant_options import QdrantOptions
from pipeline.stores.rabbitmq_options import RabbitmqOptions
from pipeline.stores.s3_options import S3Options

SECRETS_DIR = "PAGEGATE_SECRETS_DIR"


class Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RenderOptions(Options):
    """Part of the profile: changes the image, so everything after it."""

    dpi: Annotated[int, Field(ge=36, le=600)] = 150
    max_pixels: Annotated[int, Field(ge=10_000)] = 4_000_000
    """A larger page is rendered at a lower resolution, which is recorded."""
    image_format: Literal["jpeg", "webp", "png"] = "jpeg"
    quality: Annotated[int, Field(ge=1, le=100)] = 85


class TextOptions(Options):
    """Part of the profile: when native text is not good enough."""

    max_unmapped: Annotated[float, Field(ge=0, le=1)] = 0.2
    """Share of visible glyphs without a Unicode mapping above which a page is garbled. Over 3,500 public
    PDFs no healthy page was above 0.103 and no page with missing mappings below 0.5."""
    min_ink: Annotated[float, Field(ge=0, le=1)] = 0.0002
    """Share of inked pixels below which a page without text is blank."""
    stamp_chars: Annotated[int, Field(ge=0)] = 40
    """A page that is mostly picture and has fewer visible characters than this is a stamped scan."""
    stamp_image_share: Annotated[float, Field(ge=0, le=1)] = 0.6
    force_ocr: bool = False


class OcrOptions(Options):
    """Part of the profile."""

    engine: Literal["rapidocr"] = "rapidocr"
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Lines that the engine is less sure of are dropped."""


class EncoderSettings(Options):
    name: Literal["lexical"] = "lexical"


def _off_is_a_word(value: Any) -> Any:
    """YAML 1.1 reads a bare ``off`` as false."""
    return "off" if value is False else value


class PdfLimits(Options):
    """What one file and one page may cost. Not part of the profile: they change failures, not artifacts."""

    file_bytes: Annotated[int, Field(gt=0)] = 500_000_000
    pages: Annotated[int, Field(gt=0)] = 10_000
    longest_side_in: Annotated[float, Field(gt=0)] = 200.0
    seconds_per_page: Annotated[float, Field(gt=0)] = 20.0
    memory_bytes: Annotated[int, Field(gt=0)] = 2 * 1024**3
    """Address space of the child process, the mapped file included."""
    text_bytes: Annotated[int, Field(gt=0)] = 10_000_000
    """Extracted text of one page."""
    pages_per_child: Annotated[int, Field(gt=0)] = 2_000
    """The child is replaced after this many pages."""
    sandbox: Annotated[Literal["required", "off"], BeforeValidator(_off_is_a_word)] = "required"
    """A seccomp filter that leaves the child no file, socket or process to open; off is for machines without one."""


class PoolSettings(Options):
    """Actors of one kind of resource."""

    size: Annotated[int, Field(ge=1)] = 1
    cpus: Annotated[float, Field(ge=0)] = 0.25
    """What Ray reserves for one actor."""
    window: Annotated[int, Field(ge=1, le=1024)] = 16
    """Pages claimed at once."""
    lease_s: Annotated[float, Field(gt=0)] = 60.0
    """Renewed after each page, so it has to cover the slowest single page."""


class Pools(Options):
    pdf: PoolSettings = PoolSettings(size=2, window=16)
    ocr: PoolSettings = PoolSettings(window=2, lease_s=120.0)
    encoder: PoolSettings = PoolSettings(window=32)
    index: PoolSettings = PoolSettings(window=32)


class SearchOptions(Options):
    limit: Annotated[int, Field(ge=1, le=1000)] = 10
    rrf_k: Annotated[int, Field(ge=1)] = 10
    """Constant of reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009; they used 60)."""
    dense_weight: Annotated[float, Field(ge=0)] = 1.0
    sparse_weight: Annotated[float, Field(ge=0)] = 4.0
    """The lexical encoder sees the same words as BM25, and less sharply: with 37 questions over 2,382 pages of
    manuals, 1:4 to 1:6 at k = 10 gave nDCG@10 0.76, 1:1 at k = 60 0.69. Another encoder wants other weights."""


class LedgerSettings(Options):
    url: SecretStr | None = None
    """SQLAlchemy URL; default is a SQLite file in `home`. Secret, since it may hold a password."""
    attempts: Annotated[int, Field(ge=1)] = 3
    """Counted failures after which a page is given up."""


class StoreSettings(Options):
    """Where artifacts are kept."""

    kind: Literal["folder", "s3"] = "folder"
    """A folder in `home`, or a bucket."""
    s3: S3Options | None = None

    @model_validator(mode="after")
    def _s3_is_described(self) -> Self:
        if self.kind == "s3" and self.s3 is None:
            raise ValueError("kind s3 needs the section store.s3 with at least a bucket")
        return self


class IndexSettings(Options):
    """Where points are kept."""

    kind: Literal["edge", "qdrant"] = "edge"
    """A shard in `home`, owned by one process, or a Qdrant server."""
    qdrant: QdrantOptions | None = None

    @model_validator(mode="after")
    def _qdrant_is_described(self) -> Self:
        if self.kind == "qdrant" and self.qdrant is None:
            raise ValueError("kind qdrant needs the section index.qdrant with at least a url")
        return self


class RaySettings(Options):
    address: str | None = None
    """``host:port`` of a Ray cluster to join; default: one is started on this machine for each command."""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="PAGEGATE_", env_nested_delimiter="__", hide_input_in_errors=True
    )

    home: Path = Path(".pagegate")
    """State of the embedded set-up: ledger, objects, index, cluster address."""
    org: str | None = None
    """The tenant, where a command does not name one."""
    ledger: LedgerSettings = LedgerSettings()
    store: StoreSettings = StoreSettings()
    index: IndexSettings = IndexSettings()
    broker: RabbitmqOptions | None = None
    """Where submissions come from and completions go to, beside the command line."""
    ray: RaySettings = RaySettings()
    render: RenderOptions = RenderOptions()
    text: TextOptions = TextOptions()
    ocr: OcrOptions = OcrOptions()
    encoder: EncoderSettings = EncoderSettings()
    limits: PdfLimits = PdfLimits()
    pools: Pools = Pools()
    search: SearchOptions = SearchOptions()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        folder = os.environ.get(SECRETS_DIR)
        secrets = NestedSecretsSettingsSource(
            file_secret_settings, secrets_dir=folder, secrets_dir_missing="error", secrets_prefix=""
        )
        return env_settings, secrets, init_settings

    @model_validator(mode="after")
    def _the_embedded_index_has_one_owner(self) -> Self:
        if self.index.kind == "edge" and self.pools.index.size != 1:
            raise ValueError("pools.index.size must be 1 while index.kind is edge: an edge shard has one owner")
        return self

    @model_validator(mode="after")
    def _nodes_share_their_stores(self) -> Self:
        if self.ray.address is None:
            return self
        if self.ledger_url.startswith("sqlite"):
            raise ValueError(
                "ray.address names several nodes, which cannot share SQLite: set ledger.url to a MySQL one"
            )
        if self.store.kind == "folder":
            raise ValueError("ray.address names several nodes, which cannot share a folder: set store.kind to s3")
        return self

    @property
    def ledger_url(self) -> str:
        if self.ledger.url:
            return self.ledger.url.get_secret_value()
        return f"sqlite:///{(self.home / 'ledger.sqlite').absolute()}"


def load_settings(config: Path | None = None, **overrides: Any) -> Settings:
    """Settings from `config` (YAML), the environment and, over both, `overrides`.

    Raises `ConfigurationError` naming the option that is wrong.
    """
    try:
        values = _read_yaml(config) if config else {}
        settings = Settings(**values)
        return settings.model_copy(update=overrides) if overrides else settings
    except ValidationError as error:
        raise ConfigurationError(_explain(error, config)) from error
    except SettingsError as error:
        raise ConfigurationError(f"{SECRETS_DIR} does not name a folder of secrets that can be read") from error


def _read_yaml(config: Path) -> dict[str, Any]:
    if not config.is_file():
        raise ConfigurationError(f"no configuration file at {config}: check --config")
    try:
        return YamlConfigSettingsSource(Settings, yaml_file=config)()
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigurationError(f"{config} is not a YAML mapping of options: {error}") from error


def _explain(error: ValidationError, config: Path | None) -> str:
    """The first problem in words; never the value, which may be secret."""
    first = error.errors(include_input=False, include_url=False)[0]
    option = ".".join(str(part) for part in first["loc"]) or "settings"
    source = f"{config} or the PAGEGATE_* environment" if config else "the PAGEGATE_* environment"
    return f"option {option}: {first['msg']}; correct it in {source}"
