"""A verl checkpoint as the weights of the model that its configuration describes."""

from pathlib import Path

from ramify.core.errors import DataError
from ramify.modeling.load import is_rotary_buffer, require_fit
from ramify.modeling.lora_merge import MergedWeights, Product, adapter_pairs, is_adapted, plain_names
from ramify.modeling.plain_folder import Weights
from ramify.modeling.verl_files import VerlCheckpoint, read_lora_scale
from ramify.modeling.verl_shards import VerlShards

_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def verl_weights(checkpoint: VerlCheckpoint, config: Path, *, lora: bool) -> tuple[Weights, list[str]]:
    """Return the weights, and the names of those to write, in the order of the shards.

    Args:
        checkpoint: The checkpoint.
        config: The file `config.json` of the model that was trained.
        lora: Merge the adapter of a LoRA run.

    Raises:
        DataError: A shard is damaged; the run has an adapter and `lora` is off, or the other way around; the weights are
            not those of the configuration; the head is tied and differs from the embedding.
    """
    shards = VerlShards(checkpoint.shards)
    if is_adapted(shards.shapes) != lora:
        raise DataError(
            f"--lora: {checkpoint.folder} holds no adapter (no name with lora_A). Remove the option"
            if lora
            else f"{checkpoint.folder}: weights of a LoRA run (names with lora_A and base_layer). Use --lora to merge the "
            "adapter into them"
        )
    stored = plain_names(shards.shapes) if lora else {name: name for name in shards.shapes}
    weights = _adapted(shards, stored, checkpoint) if lora else shards
    names = [name for name in weights.shapes if not is_rotary_buffer(name)]
    model = require_fit(config, {name: weights.shapes[name] for name in names})
    if model.tie_word_embeddings and {_HEAD, _EMBEDDING} <= set(names):
        if not shards.are_same(stored[_HEAD], stored[_EMBEDDING]):
            raise DataError(
                f"{config}: tie_word_embeddings is true, but {_HEAD} and {_EMBEDDING} differ. If they were trained apart, "
                "set --config to a copy of the folder where it is false"
            )
        names.remove(_HEAD)
    return weights, names


def _adapted(shards: VerlShards, stored: dict[str, str], checkpoint: VerlCheckpoint) -> MergedWeights:
    scale = read_lora_scale(checkpoint)
    products = {}
    for name, (a, b) in adapter_pairs(shards.shapes, checkpoint.folder).items():
        if (rank := shards.shapes[a][0]) != scale.rank:
            raise DataError(f"{scale.path}: r = {scale.rank}, but {a} has rank {rank}")
        products[name] = Product(a, b, scale.alpha / scale.rank)
    return MergedWeights(shards, stored, shards, products)
