import numpy as np
import torch

from ramify.engines.slots import CacheShape, SlotTable


def table():
    shape = CacheShape(num_layers=1, num_slots=4, num_kv_heads=1, context_tokens=8, head_dim=2)
    return SlotTable(shape, torch.float32, torch.device("cpu"))


def context(*ids):
    return np.array(ids, np.int32)


def test_after_a_change_of_weights_rows_are_given_out_as_by_a_new_table():
    used, new = table(), table()
    rows = [match.row for match in used.seat([context(1, 2), context(3, 4), context(5, 6)])]
    for row in reversed(rows):
        used.park(row)
    used.clear()
    for several in ([context(7, 8), context(9, 1)], [context(2, 3)]):
        assert used.seat(several) == new.seat(several)
