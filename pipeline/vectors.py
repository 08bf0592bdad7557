"""The vectors artifact: one page's multivector as float16 in safetensors."""

from __future__ import annotations

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from pipeline.domain import Floats
from pipeline.errors import BadVectors

NAME = "page"


def dump_vectors(multivector: Floats) -> bytes:
    """Float16 halves the size; the rounding, at most 2**-11 of a unit row's entries, is what the index stores too."""
    content: bytes = save({NAME: np.ascontiguousarray(multivector, dtype=np.float16)})
    return content


def load_vectors(content: bytes) -> Floats:
    """Shape ``(n_tokens, dim)``, float32. Raises `BadVectors` if the bytes are something else."""
    try:
        multivector: Floats = load(content)[NAME].astype(np.float32)
    except (SafetensorError, KeyError) as error:
        raise BadVectors(f"not a vectors artifact: {error}") from error
    return multivector


def check_vectors(multivector: Floats, dim: int, where: str) -> None:
    """Raises `BadVectors` unless there is at least one row, each of `dim` numbers, finite and not zero."""
    if multivector.ndim != 2 or multivector.shape[0] == 0 or multivector.shape[1] != dim:
        raise BadVectors(f"{where}: vectors of shape {multivector.shape} where (n, {dim}) is the contract")
    if not np.isfinite(multivector).all():
        raise BadVectors(f"{where}: vectors with NaN or infinite entries")
    if not multivector.any(axis=1).all():
        raise BadVectors(f"{where}: a zero row among {multivector.shape[0]}")
