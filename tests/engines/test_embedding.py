"""Mean embeddings of records: what one adds to the sum follows from it alone."""

from __future__ import annotations

import numpy as np
import pytest

from ..helpers.data import tiny_data
from .embeddings import as_bytes, embedded

RECORDS = 10


@pytest.mark.parametrize("gone", [0, 4, RECORDS - 1])
@pytest.mark.parametrize("micro_batch", [3, 8, 9, 2000])  # of nine and ten records the last chunk has 0 to 10
def test_without_a_record_no_bit_of_what_others_add_changes(gone, micro_batch, tmp_path, rows_added):
    data = tiny_data(records=RECORDS, nominal=RECORDS)
    totals, rows = [], []
    for number, each in enumerate((data, data.subset(np.delete(np.arange(RECORDS), gone)))):
        totals.append(embedded(tmp_path / str(number), each, micro_batch=micro_batch))
        rows.append(as_bytes(rows_added))
        rows_added.clear()
    assert [len(each) for each in rows] == [RECORDS, RECORDS - 1]
    assert set(rows[1]) < set(rows[0])
    assert 1 - 1e-5 < float((totals[0] - totals[1]).norm()) <= 1
