"""Keys and values of the tokens that a search has seen so far.

Shapes: N rows (hypotheses), S tokens, T new tokens, L layers, G key/value heads, K head width.
"""

from collections.abc import Sequence

from torch import Tensor


class KeyValues:
    """The keys and values of one layer: `length` tokens of each row are filled, from the front."""

    def __init__(self, both_SN2GK: Tensor) -> None:
        self.both_SN2GK = both_SN2GK
        self.length = 0
        self._filled: tuple[Tensor, Tensor] | None = None

    def append(self, key_NGTK: Tensor, value_NGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Add T tokens; returns all that are filled, as key_NGSK and value_NGSK."""
        stop = self.length + key_NGTK.size(2)
        new_2NGTK = self.both_SN2GK[self.length : stop].permute(2, 1, 3, 0, 4)
        new_2NGTK[0] = key_NGTK
        new_2NGTK[1] = value_NGTK
        self.length = stop
        self._filled = None
        return self.filled()

    def append_one(self, both_N2GK: Tensor) -> tuple[Tensor, Tensor]:
        """Add one token; returns as `append`."""
        self.both_SN2GK[self.length] = both_N2GK
        self.length += 1
        self._filled = None
        return self.filled()

    def filled(self) -> tuple[Tensor, Tensor]:
        """key_NGSK and value_NGSK."""
        if self._filled is None:  # of the encoder's output they are the same in every step
            both_2NGSK = self.both_SN2GK[: self.length].permute(2, 1, 3, 0, 4)
            self._filled = both_2NGSK[0], both_2NGSK[1]
        return self._filled

    def use(self, both_SN2GK: Tensor) -> None:
        """Go on with other rows."""
        self.both_SN2GK = both_SN2GK
        self._filled = None


class Cache:
    """The `layers` of a stack in one allocation, with room for `max_length` tokens of `num_rows` rows.

    Tokens come first, so that what is filled lies together; all layers of a
    token lie together too, so that a row moves in few and large pieces.
    `like` gives device and type.
    """

    def __init__(
        self, *, num_layers: int, num_rows: int, max_length: int, num_kv_heads: int, head_width: int, like: Tensor
    ) -> None:
        self._both_SNL2GK = like.new_empty(max_length, num_rows, num_layers, 2, num_kv_heads, head_width)
        self.layers = [KeyValues(self._both_SNL2GK.select(2, layer)) for layer in range(num_layers)]

    @property
    def num_rows(self) -> int:
        return self._both_SNL2GK.size(1)

    @property
    def length(self) -> int:
        return self.layers[0].length

    def reorder(self, index_N: Tensor) -> None:
        """From now on row i is what row `index_N[i]` (on the CPU) was; there may be fewer rows than before.

        Only rows that become another are copied.
        """
        index = index_N.tolist()
        moves = [(row, source) for row, source in enumerate(index) if row != source]
        filled_SNL2GK = self._both_SNL2GK[: self.length]
        if moves and filled_SNL2GK.device.type == "cpu":
            _move_rows(filled_SNL2GK, moves)
        elif moves:
            device = filled_SNL2GK.device
            row_N, source_N = (index_N.new_tensor(column).to(device) for column in zip(*moves, strict=True))
            filled_SNL2GK.index_copy_(1, row_N, filled_SNL2GK.index_select(1, source_N))
        if len(index) < self.num_rows:
            self._both_SNL2GK = self._both_SNL2GK[:, : len(index)]
            for number, layer in enumerate(self.layers):
                layer.use(self._both_SNL2GK.select(2, number))


def _move_rows(x_SN: Tensor, moves: Sequence[tuple[int, int]]) -> None:
    """Copy row by row: PyTorch's kernels that take an index copy element by element, which costs more than the rest."""
    overwritten = {row for row, _ in moves}
    rows = [
        (row, x_SN.select(1, source).clone() if source in overwritten else x_SN.select(1, source))
        for row, source in moves
    ]
    for row, source_S in rows:
        x_SN.select(1, row).copy_(source_S)
