"""The classifier of bench/families.py: an encoder with a head beside transformers' BertForSequenceClassification.

One size on both sides: learned positions, post-norm, GELU, the first position pooled, dropout 0.1, rows of 10 to 64
tokens padded to the longest. BERT has a norm behind its embeddings and a tanh layer before its head, which ours lacks:
less than one hundredth of the work.
"""

from collections.abc import Callable

import numpy as np

SIZES = {
    # layers, d_model, heads, longest row in tokens, rows a batch, vocabulary
    "small": (3, 256, 8, 64, 32, 8000),
    "bert": (4, 512, 8, 64, 32, 30522),
}
DROPOUT = 0.1
PAD = 0
Step = Callable[[np.ndarray], float]


def make_batches(size: str, num_batches: int) -> list[np.ndarray]:
    """Rows of a label and ids, padded on the right; lengths are log-normal with median 27, as sentences have them."""
    _, _, _, length, num_rows, vocab_size = SIZES[size]
    random = np.random.default_rng(1)
    batches = []
    for _ in range(num_batches):
        lengths = np.clip(np.round(np.exp(3.3 + 0.45 * random.normal(size=num_rows))), 6, length)
        lengths[0] = length
        ids = random.integers(4, vocab_size, size=(num_rows, length))
        ids[np.arange(length) >= lengths[:, None]] = PAD
        batches.append(np.concatenate([random.integers(0, 2, size=(num_rows, 1)), ids], axis=1))
    return batches


def peer_step(size: str, bfloat16: bool, *, learning_rate: float, betas: tuple[float, float], decay: float) -> Step:
    """One update of the class of transformers."""
    import torch
    from torch.nn import functional as F
    from transformers import BertConfig, BertForSequenceClassification

    layers, d_model, heads, length, _, vocab_size = SIZES[size]
    torch.manual_seed(1)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=vocab_size,
            hidden_size=d_model,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=4 * d_model,
            max_position_embeddings=length,
            hidden_dropout_prob=DROPOUT,
            attention_probs_dropout_prob=DROPOUT,
            num_labels=2,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=betas, weight_decay=decay)

    def step(rows: np.ndarray) -> float:
        label_B, token_BS = torch.from_numpy(rows[:, 0]), torch.from_numpy(rows[:, 1:])
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            logits_BC = model(input_ids=token_BS, attention_mask=(token_BS != PAD).long()).logits
        loss = F.cross_entropy(logits_BC.float(), label_B)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def our_step(size: str, precision: str, *, learning_rate: float, betas: tuple[float, float], decay: float) -> Step:
    """One update of the same model by `Trainer.train_step`."""
    import torch

    from headloom.build_labelled import build_classifier, build_labelled_task
    from headloom.build_training import build_optimizer
    from headloom.config import saved, schema
    from headloom.data.labelled_batch import LabelledBatch
    from headloom.data.tokenizer import ByteTokenizer
    from headloom.training.precision import autocast_dtype
    from headloom.training.random_state import seed_everything
    from headloom.training.trainer import Trainer

    layers, d_model, heads, length, num_rows, vocab_size = SIZES[size]
    plain = {group: {schema.DISCRIMINATORS[group]: next(iter(choices))} for group, choices in schema.CHOICES.items()}
    plain |= {
        "model": {"kind": "classifier", "d_model": d_model, "num_heads": heads, "num_layers": layers}
        | {"d_ff": 4 * d_model, "dropout": DROPOUT, "pooling": "cls", "scale_embedding": False}
        | {"initialization": "normal"},
        "position": {"kind": "learned", "max_length": length},
        "norm": {"placement": "post"},
        "feed_forward": {"kind": "gelu"},
        "tokenizer": {"kind": "byte"},
        "task": {"kind": "classification"},
        "data": {"kind": "contains_five", "max_length": length},
        "optimizer": {"kind": "adamw", "beta1": betas[0], "beta2": betas[1], "weight_decay": decay},
    }
    config = saved.from_plain(plain)
    device = torch.device("cpu")
    seed_everything(1)
    tokenizer = ByteTokenizer()
    tokenizer.vocab_size = vocab_size
    labels = {"names": ["no", "yes"], "counts": [1, 1]}
    model = build_classifier(config, tokenizer, labels).train()
    trainer = Trainer(
        model,
        build_labelled_task(config, labels),
        build_optimizer(config.optimizer, model, device=device),
        learning_rate=lambda step: learning_rate,
        device=device,
        autocast_dtype=autocast_dtype(precision, device),
    )

    def step(rows: np.ndarray) -> float:
        label_B, token_BS = torch.from_numpy(rows[:, 0]), torch.from_numpy(rows[:, 1:])
        batch = LabelledBatch(token_BS, token_BS != PAD, label_B, num_rows, np.arange(num_rows))
        report = trainer.train_step([batch])
        return report.loss.item() / report.num_targets

    return step
