"""The weight transfer engine "ramify" of a vLLM server (0.32): `ramify_weights` behind vLLM's own routes."""

import torch
from ramify_weights import Delivery, Meeting, Receiver  # type: ignore[import-not-found]
from vllm.distributed.weight_transfer.base import WeightTransferEngine  # type: ignore[import-not-found]
from vllm.model_executor.model_loader.reload import (  # type: ignore[import-not-found]
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)


class RamifyWeights(WeightTransferEngine):  # type: ignore[misc]
    """Loads the buckets that a learner sends, in checkpoint format, one after the other."""

    init_info_cls = Meeting
    update_info_cls = Delivery
    _receiver: Receiver | None = None
    _is_open = False

    def init_transfer_engine(self, init_info: Meeting) -> None:
        """Meet the learner."""
        self._receiver = self._receiver or Receiver()
        parallel = self.parallel_config
        self._receiver.join(init_info, parallel.data_parallel_index * parallel.world_size + parallel.rank)

    def start_weight_update(self) -> None:
        """Prepare all layers for new weights; what a hand-over left half done is forgotten."""
        if self._is_open:
            finalize_layerwise_reload(self.model, self.model_config)
        initialize_layerwise_reload(self.model)
        self._is_open = True
        if self._receiver is not None:
            self._receiver.begin()

    def receive_weights(self, update_info: Delivery) -> None:
        """Load all buckets."""
        if self._receiver is None:
            raise RuntimeError("no learner was joined")
        self._receiver.receive(update_info, self.model.load_weights)

    def update_weights(self, update_info: dict[str, object]) -> None:
        """As vLLM's own, which does not know that a CPU has no accelerator to wait for."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def finish_weight_update(self) -> None:
        """Put the new weights in place; RuntimeError if they are not whole."""
        if self._receiver is None:
            raise RuntimeError("no learner was joined")
        self._receiver.require_whole()
        finalize_layerwise_reload(self.model, self.model_config)
        self._is_open = False

    def shutdown(self) -> None:
        """Close the connections to the learner."""
        if self._receiver is not None:
            self._receiver.leave()
