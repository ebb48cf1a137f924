"""Attention of one engine step: decode rows in one batch, new stretches of context one by one."""

from dataclasses import dataclass

import torch

from ramify.engines.slots import SlotTable
from ramify.modeling.attention import grouped_sdpa


@dataclass(frozen=True, slots=True)
class Stretch:
    """New context tokens of one row: positions `start` to `stop` of the row, `offset` in the step's tokens."""

    row: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Implements `modeling.attention.AttentionPlan` for the tokens of one step.

    The step's tokens are one token for each of the rows 0..num_decode-1, then the stretches.

    Attributes:
        table: Where keys and values live.
        positions: Of the decode rows' tokens. [num_decode]
        mask: Which keys each decode row sees. [num_decode, 1, 1, K]
        stretches: The rest of the tokens.
    """

    table: SlotTable
    positions: torch.Tensor
    mask: torch.Tensor
    stretches: tuple[Stretch, ...]

    def __call__(
        self, layer_index: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Write the new keys and values, then attend. [1, Hq, T, D] -> [1, T, Hq, D]."""
        keys, values = self.table.keys[layer_index], self.table.values[layer_index]
        outputs: list[torch.Tensor] = []
        count = len(self.positions)
        if count:
            rows = torch.arange(count, device=query.device)
            keys[rows, :, self.positions] = key[0, :, :count].transpose(0, 1)
            values[rows, :, self.positions] = value[0, :, :count].transpose(0, 1)
            size = self.mask.shape[-1]
            attended = grouped_sdpa(
                query[0, :, :count].transpose(0, 1).unsqueeze(2),
                keys[:count, :, :size],
                values[:count, :, :size],
                scaling,
                self.mask,
            )
            outputs.append(attended.squeeze(2))
        for stretch in self.stretches:
            outputs.append(self._attend(stretch, keys, values, query, key, value, scaling))
        return torch.cat(outputs).unsqueeze(0)

    def _attend(
        self,
        stretch: Stretch,
        keys: torch.Tensor,
        values: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float,
    ) -> torch.Tensor:
        size = stretch.stop - stretch.start
        here = slice(stretch.offset, stretch.offset + size)
        keys[stretch.row, :, stretch.start : stretch.stop] = key[0, :, here]
        values[stretch.row, :, stretch.start : stretch.stop] = value[0, :, here]
        seen_keys = keys[stretch.row : stretch.row + 1, :, : stretch.stop]
        seen_values = values[stretch.row : stretch.row + 1, :, : stretch.stop]
        if stretch.start == 0:
            attended = grouped_sdpa(query[:, :, here], seen_keys, seen_values, scaling, causal=True)
        else:
            mask = torch.ones(size, stretch.stop, dtype=torch.bool, device=query.device).tril(stretch.start)
            attended = grouped_sdpa(query[:, :, here], seen_keys, seen_values, scaling, mask)
        return attended[0].transpose(0, 1)
