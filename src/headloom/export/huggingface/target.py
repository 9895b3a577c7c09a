"""A class of transformers that some of our models are exported to: what it holds, its options, its weights.

To add a class, write a `Target` in lm.py, seq2seq.py or encoder.py and put it in the list there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headloom.export.huggingface.limits import Limits
from headloom.work.base import Trained


@dataclass(frozen=True)
class Target:
    name: str
    """Of the class, such as LlamaForCausalLM."""
    limits: Limits
    options: Callable[[Trained], dict[str, Any]]
    """Of its configuration, beside those of the tokenizer."""
    weights: Callable[[Trained], Mapping[str, Tensor]]
    """By their names there; a bias that is not among them is zero, another weight stays as the class makes it."""
