"""Rolling windows over a document (METRICS: lm-eval's rolling loglikelihood).

The document is prefixed once. Windows predict `max_length` tokens each, disjointly, so each token is scored exactly
once. The last, shorter window reaches back so that its input still fills `max_length`: its tokens see more context.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from mindeval.service.runtime.models.adapter import Window


def rolling_windows(
    tokens: npt.NDArray[np.int64],
    *,
    prefix: int | None,
    max_length: int,
    scored: npt.NDArray[np.bool_] | None = None,
) -> Iterator[Window]:
    """Cuts a document into windows.

    Args:
        tokens: int64 [tokens].
        prefix: Token put before the first one; with None the first token stands there itself, and is not scored.
        max_length: Longest input.
        scored: bool [tokens], False where a token must not be scored; None for all True.

    Yields:
        Windows in order; a window may have nothing to score. None at all when nothing is to be predicted.
    """
    sequence = tokens if prefix is None else np.concatenate([[prefix], tokens])
    may = np.ones(tokens.size, dtype=bool) if scored is None else scored
    if prefix is not None:
        may = np.concatenate([[False], may])
    predicted = 1
    while predicted < sequence.size:
        end = min(predicted + max_length, sequence.size)
        begin = max(0, end - 1 - max_length)
        # sequence[predicted:end] are predicted from sequence[begin:end - 1].
        wanted = np.arange(predicted, end)[may[predicted:end]]
        yield Window(
            inputs=sequence[begin : end - 1].astype(np.int32),
            targets=sequence[wanted].astype(np.int32),
            positions=(wanted - 1 - begin).astype(np.int32),
        )
        predicted = end
