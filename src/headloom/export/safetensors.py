"""Weights as model.safetensors: names and shapes of our own modules, readable without running code.

Tensors that are one in the model (tied embeddings, the table of T5's buckets)
are written once; the file's metadata has, under "tied", a JSON object of the
other names and the one that is written.
"""

import json
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from headloom.config.schema import TrainConfig
from headloom.errors import CheckpointError
from headloom.export.base import Runtime
from headloom.export.own import own_runtime
from headloom.nn.init import NothingDrawn
from headloom.training.checkpoint import load_weights
from headloom.work.base import Trained
from headloom.work.families import fresh_model

FILE = "model.safetensors"


class Safetensors:
    """See `base.Format`. It holds every model."""

    name = "safetensors"
    is_exact = True

    def obstacle(self, config: TrainConfig) -> str | None:
        return None

    def write(self, trained: Trained, folder: Path) -> None:
        from safetensors.torch import save_file

        assert trained.model is not None
        weights, tied = untied(trained.model)
        path = folder / FILE
        path.touch()  # made by us it can be read by whom the umask lets; made by save_file, by the owner alone
        mode = path.stat().st_mode
        save_file(weights, path, metadata={"format": "pt", "tied": json.dumps(tied)})
        path.chmod(mode)

    def opened(self, trained: Trained, folder: Path) -> Runtime:
        with NothingDrawn():
            model = fresh_model(trained.config, trained.contents)
        load_weights(model, read_weights(folder / FILE), path=folder / FILE)
        return own_runtime(replace(trained, model=model.eval()))


def untied(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor of a model under its first name, and for its other names the first."""
    weights: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tuple(tensor.shape))
        if key in first:
            tied[name] = first[key]
        else:
            first[key] = name
            weights[name] = tensor.detach().cpu().contiguous()
    return weights, tied


def read_weights(path: Path) -> dict[str, Tensor]:
    """All weights by all of their names.

    Raises:
        CheckpointError: the file is damaged or no file of ours.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
            tied = json.loads((file.metadata() or {}).get("tied", "{}"))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from error
    return weights | {name: weights[kept] for name, kept in tied.items()}
