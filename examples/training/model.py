"""A language model with one hidden layer, in numpy: it reads eight characters and predicts the next."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]

CHARACTERS, CONTEXT, EMBEDDING, HIDDEN = 128, 8, 12, 64
BATCH = 128
RATE, KEEP_MEAN, KEEP_SQUARE = 0.004, 0.9, 0.99


@dataclass
class Model:
    """Weights with Adam's two averages of each. `step` counts the updates that made them."""

    weights: dict[str, Floats]
    mean: dict[str, Floats] = field(default_factory=dict)
    square: dict[str, Floats] = field(default_factory=dict)
    step: int = 0

    def __post_init__(self) -> None:
        for name, values in self.weights.items():
            self.mean.setdefault(name, np.zeros_like(values))
            self.square.setdefault(name, np.zeros_like(values))

    @classmethod
    def fresh(cls, seed: int) -> Model:
        draw = np.random.default_rng(seed)
        wide = CONTEXT * EMBEDDING
        return cls(
            {
                "embedding": draw.normal(0, 0.3, (CHARACTERS, EMBEDDING)),
                "into": draw.normal(0, wide**-0.5, (wide, HIDDEN)),
                "bias": np.zeros(HIDDEN),
                "out": draw.normal(0, 0.1, (HIDDEN, CHARACTERS)),
            }
        )

    def learn(self, text: Bytes, seed: int) -> float:
        """One update on a batch that depends on `seed` and `step` alone; returns the loss in nats a character."""
        places = np.random.default_rng((seed, self.step)).integers(0, len(text) - CONTEXT, BATCH)
        context = text[places[:, None] + np.arange(CONTEXT)]
        loss, slopes = self._slopes(context, text[places + CONTEXT])
        self.step += 1
        for name, slope in slopes.items():
            self._update(name, slope)
        return loss

    def _slopes(self, context: Bytes, following: Bytes) -> tuple[float, dict[str, Floats]]:
        w, rows = self.weights, np.arange(len(following))
        seen = w["embedding"][context].reshape(len(rows), -1)
        hidden = np.tanh(seen @ w["into"] + w["bias"])
        scores = hidden @ w["out"]
        scores -= scores.max(axis=1, keepdims=True)
        guess = np.exp(scores)
        guess /= guess.sum(axis=1, keepdims=True)
        loss = -float(np.log(guess[rows, following]).mean())
        guess[rows, following] -= 1
        guess /= len(rows)
        back = (guess @ w["out"].T) * (1 - hidden**2)
        embedding = np.zeros_like(w["embedding"])
        np.add.at(embedding, context, (back @ w["into"].T).reshape(*context.shape, EMBEDDING))
        slopes = {"embedding": embedding, "into": seen.T @ back, "bias": back.sum(axis=0), "out": hidden.T @ guess}
        return loss, slopes

    def _update(self, name: str, slope: Floats) -> None:
        mean, square = self.mean[name], self.square[name]
        mean += (1 - KEEP_MEAN) * (slope - mean)
        square += (1 - KEEP_SQUARE) * (slope**2 - square)
        scaled = mean / (1 - KEEP_MEAN**self.step) / (np.sqrt(square / (1 - KEEP_SQUARE**self.step)) + 1e-8)
        self.weights[name] -= RATE * scaled
