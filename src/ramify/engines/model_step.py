"""One step of the model over the rows of a table: tokens in, logits of the next tokens out."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from ramify.engines.decode_graphs import DecodeGraphs
from ramify.engines.decoder import Decoder
from ramify.engines.shared_prefixes import DecodeRows
from ramify.engines.slot_attention import StepAttention, Stretch
from ramify.engines.slots import CacheShape, SlotTable


def cache_shape(model: PreTrainedModel, num_slots: int, context_tokens: int) -> CacheShape:
    """Sizes of the key-value store that `model` needs."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return CacheShape(
        config.num_hidden_layers, num_slots, config.num_key_value_heads, context_tokens, head_dim
    )


class ModelStep:
    """Feeds tokens and updates the table's lengths.

    On a CPU all tokens of a step go through the model at once, packed without padding. On a GPU rows that feed one
    token go through a captured graph, and new context goes through a separate pass.
    """

    def __init__(self, model: PreTrainedModel, table: SlotTable) -> None:
        self._model = model
        self._table = table
        self._decoder: Decoder | None = None
        self._graphs: DecodeGraphs | None = None
        self._addresses: tuple[int, ...] = ()

    def weights_changed(self) -> None:
        """Use the model's current weights."""
        # A GPU reads the weights in place; its graphs stay valid as long as the weights do not move.
        if self._graphs is None or self._addresses != self._weight_addresses():
            self.forget()

    def forget(self) -> None:
        """Drop copies of weights and captured graphs."""
        self._decoder = self._graphs = None

    def __call__(
        self, decode: DecodeRows | None, tokens: npt.NDArray[np.int64], stretches: Sequence[Stretch]
    ) -> torch.Tensor:
        """Feed one token for each of the decode rows, then the stretches.

        Args:
            decode: The decode rows, in order; None if there are none.
            tokens: Tokens of the decode rows. [B]
            stretches: Stretches of new context, whose tokens are already in the table.

        Returns:
            Logits of the next token of the decode rows, then of the stretches. [B + number of stretches, V]
        """
        decoder = self._prepare()
        parts: list[torch.Tensor] = []
        if decode is not None and self._graphs is not None:
            parts.append(self._graphs.logits(decode.rows, tokens))
            self._table.append(decode.rows, tokens)
            decode, tokens = None, tokens[:0]
        if decode is not None or stretches:
            parts.append(self._feed(decoder, decode, tokens, stretches))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _prepare(self) -> Decoder:
        if self._decoder is None:
            self._decoder = Decoder(self._model, self._table.spare_position + 1)
            self._addresses = self._weight_addresses()
            if self._model.device.type == "cuda":
                self._graphs = DecodeGraphs(self._decoder, self._table)
        return self._decoder

    def _weight_addresses(self) -> tuple[int, ...]:
        return tuple(parameter.data_ptr() for parameter in self._model.parameters())

    def _feed(
        self,
        decoder: Decoder,
        decode: DecodeRows | None,
        tokens: npt.NDArray[np.int64],
        stretches: Sequence[Stretch],
    ) -> torch.Tensor:
        attend = StepAttention(self._table, decode, stretches)
        fed = np.concatenate([tokens, *(self._table.tokens[s.row, s.start : s.stop] for s in stretches)])
        hidden = decoder.hidden(torch.from_numpy(fed).to(attend.places.device), attend.places, attend)
        if stretches:
            # Logits in the middle of a stretch are not needed.
            ends = len(tokens) + np.cumsum([stretch.size for stretch in stretches]) - 1
            last = np.concatenate([np.arange(len(tokens)), ends])
            hidden = hidden[torch.from_numpy(last).to(hidden.device)]
        if decode is not None:
            self._table.append(decode.rows, tokens)
        for stretch in stretches:
            self._table.lengths[stretch.row] = stretch.stop
        return decoder.logits(hidden)
