import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.decoding.step_model import IntArray
from dragoman_service.runtimes.onnx.kv_pool import LENGTH_BUCKET, SegmentBuffers, SlotTable, round_up


class Histories:
    """Reference of a slot table: a list of tokens for each row, and a pool that is written through the slots."""

    def __init__(self) -> None:
        self.table = SlotTable()
        self.rows: list[list[tuple[int, ...]]] = []
        self.pools: list[dict[int, int]] = []
        self._next_token = 0

    def add(self, count: int) -> None:
        self.table.add_segments(count)
        self.rows += [[()] for _ in range(count)]
        self.pools += [{} for _ in range(count)]

    def append(self, parents: IntArray) -> None:
        slots = self.table.append(parents)
        for segment, rows in enumerate(self.rows):
            tokens = [self._next_token + row for row in range(parents.shape[1])]
            self.rows[segment] = [
                (*rows[parent], token) for parent, token in zip(parents[segment], tokens, strict=True)
            ]
            self.pools[segment].update(zip(slots[segment].tolist(), tokens, strict=True))
        self._next_token += parents.shape[1]

    def keep(self, keep: list[int]) -> None:
        self.table.keep_segments(keep)
        self.rows = [self.rows[index] for index in keep]
        self.pools = [self.pools[index] for index in keep]

    def check(self) -> None:
        assert self.table.num_slots % LENGTH_BUCKET == 0
        for segment, rows in enumerate(self.rows):
            for row, tokens in enumerate(rows):
                seen = np.flatnonzero(self.table.visible[segment, row])
                assert sorted(self.pools[segment][slot] for slot in seen.tolist()) == sorted(tokens)


@given(st.data())
def test_each_row_sees_exactly_the_tokens_of_its_hypothesis(data: st.DataObject) -> None:
    model = Histories()
    num_rows = 0
    for _ in range(data.draw(st.integers(1, 25))):
        count = len(model.rows)
        event = data.draw(st.sampled_from(["add", "keep", "append", "append", "append"])) if count else "add"
        if event == "add":
            model.add(data.draw(st.integers(1, 3)))
            # Each segment has the same number of rows; rows of new segments are empty.
            model.rows = [rows if len(rows) == max(num_rows, 1) else [()] * max(num_rows, 1) for rows in model.rows]
        elif event == "keep":
            model.keep(data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))])
        else:
            new_rows = data.draw(st.integers(1, 5))
            parent = st.integers(0, max(num_rows, 1) - 1)
            rows = st.lists(parent, min_size=new_rows, max_size=new_rows)
            model.append(np.array(data.draw(st.lists(rows, min_size=count, max_size=count)), dtype=np.int64))
            num_rows = new_rows
        model.check()


def test_slots_of_dead_branches_are_reused() -> None:
    table = SlotTable()
    table.add_segments(1)

    for _ in range(50):
        slots = table.append(np.zeros((1, 4), dtype=np.int64))  # all rows continue row 0

    # 49 shared ancestors and four newest tokens; slots of the 3 * 49 dead tokens are reused.
    assert slots.max() < 49 + 2 * 4
    assert table.num_slots == 64


def test_new_tokens_use_the_lowest_free_slots_in_row_order() -> None:
    table = SlotTable()
    table.add_segments(1)
    table.append(np.zeros((1, 3), dtype=np.int64))

    slots = table.append(np.array([[1, 1]]))

    assert slots.tolist() == [[0, 2]]


def test_slots_of_a_segment_do_not_depend_on_other_segments() -> None:
    alone, together = SlotTable(), SlotTable()
    alone.add_segments(1)
    together.add_segments(2)

    for step in range(30):
        parents = np.array([[0, step % 2]])
        # Another segment has four rows; the two padding rows of this segment continue row 0.
        joint_parents = np.array([[0, step % 2, 0, 0], [0, 1, 2, 3]]) if step else np.zeros((2, 4), dtype=np.int64)
        own = alone.append(parents if step else np.zeros((1, 2), dtype=np.int64))

        assert together.append(joint_parents)[0, :2].tolist() == own[0].tolist()


def grown_table() -> SlotTable:
    """Return a table with two segments, of which the first one needs twice the minimum number of slots."""
    table = SlotTable()
    table.add_segments(1)
    for _ in range(LENGTH_BUCKET + 1):
        table.append(np.zeros((1, 1), dtype=np.int64))
    table.add_segments(1)
    return table


def test_trailing_slots_are_dropped_some_steps_after_their_segment() -> None:
    table = grown_table()

    sizes = [table.num_slots]
    table.keep_segments([1])
    for num_steps in (3, 5):
        for _ in range(num_steps):
            table.append(np.zeros((1, 1), dtype=np.int64))
        table.keep_segments([0])
        sizes.append(table.num_slots)

    assert sizes == [2 * LENGTH_BUCKET, 2 * LENGTH_BUCKET, LENGTH_BUCKET]


def test_trailing_slots_are_dropped_immediately_with_the_last_segment() -> None:
    table = grown_table()

    table.keep_segments([])

    assert table.num_slots == LENGTH_BUCKET


def test_num_bytes_includes_spare_capacity_and_depends_on_float_type() -> None:
    sizes = {}
    float_types: tuple[FloatType, ...] = ("float32", "float16")
    for float_type in float_types:
        buffers = SegmentBuffers(["a", "b"], lambda length: (length, 3), float_type)
        buffers.resize(1, 5)
        sizes[float_type] = buffers.num_bytes

    assert sizes == {"float32": 2 * 8 * 5 * 3 * 4, "float16": 2 * 8 * 5 * 3 * 2}


@given(st.data())
def test_buffers_preserve_the_parts_of_their_segments(data: st.DataObject) -> None:
    buffers = SegmentBuffers(["a", "b"], lambda length: (2, length, 3), "float32")
    expected: list[float] = []
    for value in range(1, data.draw(st.integers(1, 12))):
        count, length = len(expected), data.draw(st.integers(1, 5))
        if data.draw(st.booleans()):
            keep = data.draw(st.permutations(range(count)))[: data.draw(st.integers(0, count))]
            buffers.keep_segments(keep)
            expected = [expected[index] for index in keep]
        buffers.resize(len(expected) + 1, length)
        expected.append(float(value))
        assert not any(array[-1].any() for array in buffers.live().values())
        buffers.live()["a"][-1] = buffers.live()["b"][-1] = value

        assert buffers.length == length
        for array in buffers.live().values():
            assert array.shape == (len(expected), 2, length, 3)
            assert array.flags.c_contiguous
            assert array[:, :, 0].tolist() == [[[old] * 3] * 2 for old in expected]
            assert np.isin(array, [0.0, *expected]).all()


def test_round_up_returns_at_least_one_bucket() -> None:
    assert [round_up(count, 8) for count in (0, 1, 8, 9)] == [8, 8, 8, 16]
