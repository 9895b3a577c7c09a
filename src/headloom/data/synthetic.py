"""Made-up tasks that a working model learns to do without a fault: copy a sequence, reverse it, or tell two kinds."""

import random
from enum import Enum
from itertools import pairwise

from headloom.data.text import Corpus, PairList
from headloom.errors import ConfigError

_SYMBOLS = "abcdefghijklmnopqrstuvwxyz0123456789"


class SyntheticTask(Enum):
    copy = "copy"  # the target is the source
    reverse = "reverse"  # the target is the source from its last symbol to its first


def synthetic(
    task: SyntheticTask,
    *,
    num_train: int,
    num_valid: int,
    num_symbols: int = 20,
    min_length: int = 1,
    max_symbols: int = 10,
    seed: int = 1,
) -> Corpus:
    """Random sequences of `min_length` to `max_symbols` symbols out of `num_symbols`, with blanks between them.

    There are as many test pairs as validation pairs, and no source occurs
    twice in the corpus. Each length is drawn equally often until its sequences
    run short; a tenth of them at most is held out for validation and test, or
    the share of all that these need where that is more. The same arguments give
    the same corpus on every machine.

    Raises:
        ConfigError: a number is out of its range, or more than half of all sequences there are would be needed.
    """
    for option, value in (("num_train", num_train), ("num_valid", num_valid), ("num_symbols", num_symbols)):
        if value < 1:
            raise ConfigError(f"data.{option}={value} must be at least 1")
    if not 1 <= min_length <= max_symbols:
        raise ConfigError(f"data.min_length={min_length} must be from 1 to data.max_symbols={max_symbols}")
    needed = num_train + 2 * num_valid
    count_of = {length: num_symbols**length for length in range(min_length, max_symbols + 1)}
    possible = sum(count_of.values())
    if 2 * needed > possible:
        raise ConfigError(
            f"data.num_train={num_train} and twice data.num_valid={num_valid} are more than half of the {possible} "
            f"sequences of {min_length} to {max_symbols} out of {num_symbols} symbols: raise data.max_symbols"
        )
    # Half at most, so that drawing until a new one comes does not take long.
    draw = random.Random(f"{seed} {num_symbols} {min_length} {max_symbols}")
    symbols = [_symbol(i) for i in range(num_symbols)]
    # Otherwise training would have none of the shortest sequences, of which there are few.
    room = {length: max(-(-count // 10), -(-count * 2 * num_valid // possible)) for length, count in count_of.items()}
    drawn: set[str] = set()
    held_out: list[str] = []
    train: list[str] = []
    while len(held_out) < 2 * num_valid or len(train) < num_train:
        length = draw.randint(min_length, max_symbols)
        source = " ".join(draw.choices(symbols, k=length))
        if source in drawn:
            continue
        drawn.add(source)
        if len(held_out) < 2 * num_valid and room[length] > 0:
            room[length] -= 1
            held_out.append(source)
        else:
            train.append(source)
    parts = {"train": train[:num_train], "valid": held_out[num_valid:], "test": held_out[:num_valid]}
    pairs = {
        split: PairList([(source, _target(task, source)) for source in sources], name=f"{task.name}, {split}")
        for split, sources in parts.items()
    }
    return Corpus(name=task.name, **pairs)


def _target(task: SyntheticTask, source: str) -> str:
    match task:
        case SyntheticTask.copy:
            return source
        case SyntheticTask.reverse:
            return " ".join(reversed(source.split(" ")))


def _symbol(number: int) -> str:
    """a to z, 0 to 9, then words of two, three, ... of these."""
    quotient, remainder = divmod(number, len(_SYMBOLS))
    return (_symbol(quotient - 1) if quotient else "") + _SYMBOLS[remainder]


class DigitTask(Enum):
    contains_five = "contains_five"  # whether a 5 is among them
    two_big_neighbours = "two_big_neighbours"  # whether two that follow each other are 5 or more


def digits(task: DigitTask, *, num_train: int, num_valid: int, num_digits: int = 5, seed: int = 1) -> Corpus:
    """Rows of `num_digits` digits, labelled yes or no. No row occurs twice, and there are as many test as valid rows.

    Raises:
        ConfigError: a number is out of its range, or more than half of all rows there are would be needed.
    """
    for option, value in (("num_train", num_train), ("num_valid", num_valid), ("num_digits", num_digits)):
        if value < 1:
            raise ConfigError(f"data.{option}={value} must be at least 1")
    needed = num_train + 2 * num_valid
    if 2 * needed > 10**num_digits:
        raise ConfigError(
            f"data.num_train={num_train} and twice data.num_valid={num_valid} are more than half of the "
            f"{10**num_digits} rows of {num_digits} digits: raise data.num_digits"
        )
    draw = random.Random(f"digits {seed} {num_digits}")
    rows = [f"{number:0{num_digits}}" for number in draw.sample(range(10**num_digits), needed)]
    pairs = [(row, "yes" if _is_so(task, row) else "no") for row in rows]
    ends = (0, num_valid, 2 * num_valid, needed)
    test, valid, train = (
        PairList(pairs[start:end], name=f"{task.name}, {split}")
        for start, end, split in zip(ends[:-1], ends[1:], ("test", "valid", "train"), strict=True)
    )
    return Corpus(name=task.name, train=train, valid=valid, test=test)


def _is_so(task: DigitTask, row: str) -> bool:
    match task:
        case DigitTask.contains_five:
            return "5" in row
        case DigitTask.two_big_neighbours:
            return any(a >= "5" and b >= "5" for a, b in pairwise(row))
