"""Decoding speed beside `transformers` and CTranslate2, all with one set of weights: python bench/decode.py --help.

Each candidate is a process of its own. All are loaded at once and take the same
batches in turn, first A B C, then C B A, so that whatever else the machine does
meets them alike. A ratio is the median over paired batches. Outputs have a
forced length, which every candidate reaches in as many steps; with --check the
tokens of the float32 candidates are compared and must be the same.

The model is an encoder-decoder that all can hold: post-norm, ReLU, sinusoids,
one table for everything. `transformers` is its Marian class with `generate`.
Peers are not among our requirements: pip install transformers ctranslate2.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PAD, UNK, BOS, EOS, FIRST = 0, 1, 2, 3, 4
SIZES = {
    # layers a stack, d_model, d_ff, heads, vocabulary
    "tiny": (4, 128, 256, 4, 10_000),
    "base": (6, 512, 2048, 8, 32_000),
}
CANDIDATES = (
    "transformers",
    "CTranslate2 float32",
    "CTranslate2 int8",
    "Headloom float32",
    "Headloom float16",
    "Headloom bfloat16",
)
FLOAT32 = ("transformers", "CTranslate2 float32", "Headloom float32")
JOBS = [(1, 1), (5, 1), (1, 64), (5, 64)]
"""Beam size and lines of a batch."""
SOURCE_LENGTH, STEPS = 20, 20
Decode = Callable[[int, np.ndarray], list[list[int]]]
"""Of a beam size and source_BS (eos behind each) the ids of each output, without eos."""


def our_model(size: str) -> Any:
    import torch

    from headloom.build_model import build_model
    from headloom.config import saved, schema

    layers, d_model, d_ff, heads, vocab_size = SIZES[size]
    plain = {group: {schema.DISCRIMINATORS[group]: next(iter(choices))} for group, choices in schema.CHOICES.items()}
    plain["model"] |= {"d_model": d_model, "num_heads": heads, "d_ff": d_ff, "tying": "all"}
    plain["model"] |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    plain["position"], plain["norm"] = {"kind": "sinusoidal"}, {"placement": "post"}
    torch.manual_seed(1)
    return build_model(saved.from_plain(plain), source_vocab_size=vocab_size, target_vocab_size=vocab_size).eval()


def our_decode(size: str, precision: str) -> Decode:
    import torch

    from headloom.data.tokenizer import ByteTokenizer
    from headloom.decoding.ranking import Ranking
    from headloom.decoding.requests import Beam, Limits
    from headloom.decoding.searcher import Sentence
    from headloom.decoding.translator import Translator
    from headloom.nn.packing import hold_in_float16, pack_weights
    from headloom.training.memory import keep_freed_memory
    from headloom.training.precision import dtype_of_use

    keep_freed_memory()
    model, device = our_model(size), torch.device("cpu")
    dtype = dtype_of_use(precision, device)
    # As translate.py does.
    if precision == "float16":
        hold_in_float16(model)
    else:
        pack_weights(model, dtype or torch.float32)
    tokenizer = ByteTokenizer()  # has the special ids; texts are not asked for
    translators = {
        beam: Translator(
            model,
            tokenizer,
            tokenizer,
            search=Beam(beam_size=beam, ranking=Ranking(length_penalty=1.0)),
            limits=Limits(max_length=STEPS, max_ratio=9.0),
            max_tokens=10**9,
            device=device,
            autocast_dtype=dtype,
        )
        for beam in (1, 5)
    }

    def decode(beam: int, source_BS: np.ndarray) -> list[list[int]]:
        translator = translators[beam]
        sentences = [Sentence(source[:-1], longest=STEPS, shortest=STEPS) for source in source_BS.tolist()]
        with translator.computing():
            return [best.ids for best, *_ in translator.searcher.search(sentences)]

    return decode


def numpy_weights(size: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Our weights by name, and the table of positions."""
    import torch

    model = our_model(size)
    positional = model.encoder.embedding.positional
    zeros = torch.zeros(1, SOURCE_LENGTH + STEPS, SIZES[size][1])
    return {name: weight.numpy() for name, weight in model.state_dict().items()}, positional.embed(zeros)[0].numpy()


def transformers_decode(size: str) -> Decode:
    import torch
    from transformers import MarianConfig, MarianMTModel

    layers, d_model, d_ff, heads, vocab_size = SIZES[size]
    model = MarianMTModel(
        MarianConfig(
            vocab_size=vocab_size,
            d_model=d_model,
            encoder_layers=layers,
            decoder_layers=layers,
            encoder_ffn_dim=d_ff,
            decoder_ffn_dim=d_ff,
            encoder_attention_heads=heads,
            decoder_attention_heads=heads,
            pad_token_id=PAD,
            eos_token_id=EOS,
            bos_token_id=BOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
            activation_function="relu",
            scale_embedding=True,
            max_position_embeddings=SOURCE_LENGTH + STEPS,
        )
    ).eval()
    weights, positions = numpy_weights(size)
    names = {
        "self_attention.query": "self_attn.q_proj",
        "self_attention.output": "self_attn.out_proj",
        "cross_attention.query": "encoder_attn.q_proj",
        "cross_attention.output": "encoder_attn.out_proj",
        "self_residual.norm": "self_attn_layer_norm",
        "cross_residual.norm": "encoder_attn_layer_norm",
        "feed_forward_residual.norm": "final_layer_norm",
        "feed_forward.up": "fc1",
        "feed_forward.down": "fc2",
    }
    theirs: dict[str, np.ndarray] = {}
    for name, weight in weights.items():
        if ".blocks." not in name:
            continue
        stack, _, layer, part = name.split(".", 3)
        module, kind = part.rsplit(".", 1)
        prefix = f"model.{stack}.layers.{layer}"
        if module.endswith("key_value"):
            attention = "self_attn" if module.startswith("self") else "encoder_attn"
            for projection, half in zip(("k_proj", "v_proj"), np.split(weight, 2), strict=True):
                theirs[f"{prefix}.{attention}.{projection}.{kind}"] = half
        else:
            theirs[f"{prefix}.{names[module]}.{kind}"] = weight
    own = model.state_dict()
    for name in own:
        if name.endswith("embed_positions.weight"):
            theirs[name] = positions
        elif name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            theirs[name] = weights["output.weight"]
        elif name == "final_logits_bias":
            theirs[name] = np.zeros((1, vocab_size), dtype=np.float32)
    model.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(weight)) for name, weight in theirs.items()})

    def decode(beam: int, source_BS: np.ndarray) -> list[list[int]]:
        source = torch.from_numpy(source_BS)
        with torch.inference_mode():
            output = model.generate(
                input_ids=source,
                attention_mask=torch.ones_like(source),
                num_beams=beam,
                do_sample=False,
                min_new_tokens=STEPS,
                max_new_tokens=STEPS,
                length_penalty=1.0,
            )
        return [row[1:] for row in output.tolist()]

    return decode


def ctranslate2_decode(size: str, compute_type: str, threads: int) -> Decode:
    import ctranslate2
    from ctranslate2.specs import common_spec, transformer_spec

    layers, _, _, heads, vocab_size = SIZES[size]
    weights, positions = numpy_weights(size)
    spec = transformer_spec.TransformerSpec.from_config(
        layers, heads, pre_norm=False, activation=common_spec.Activation.RELU
    )

    def put(module: Any, *names: str) -> None:
        module.weight = np.concatenate([weights[f"{name}.weight"] for name in names])
        module.bias = np.concatenate([weights[f"{name}.bias"] for name in names])

    def put_norm(module: Any, name: str) -> None:
        module.gamma, module.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]

    for stack, name in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        table = stack.embeddings[0] if name == "encoder" else stack.embeddings
        table.weight = weights["output.weight"]
        stack.position_encodings.encodings = positions
        for number, layer in enumerate(stack.layer):
            block = f"{name}.blocks.{number}"
            put(layer.self_attention.linear[0], f"{block}.self_attention.query", f"{block}.self_attention.key_value")
            put(layer.self_attention.linear[1], f"{block}.self_attention.output")
            put_norm(layer.self_attention.layer_norm, f"{block}.self_residual.norm")
            if name == "decoder":
                for linear, part in zip(layer.attention.linear, ("query", "key_value", "output"), strict=True):
                    put(linear, f"{block}.cross_attention.{part}")
                put_norm(layer.attention.layer_norm, f"{block}.cross_residual.norm")
            put(layer.ffn.linear_0, f"{block}.feed_forward.up")
            put(layer.ffn.linear_1, f"{block}.feed_forward.down")
            put_norm(layer.ffn.layer_norm, f"{block}.feed_forward_residual.norm")
    spec.decoder.projection.weight = weights["output.weight"]
    words = ["<blank>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(FIRST, vocab_size))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token = "<s>"
    spec.validate()
    spec.optimize()
    place = {word: i for i, word in enumerate(words)}
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = ctranslate2.Translator(folder, compute_type=compute_type, intra_threads=threads)

    def decode(beam: int, source_BS: np.ndarray) -> list[list[int]]:
        tokens = [[words[i] for i in source] for source in source_BS.tolist()]
        results = translator.translate_batch(
            tokens, beam_size=beam, min_decoding_length=STEPS, max_decoding_length=STEPS, length_penalty=1.0
        )
        return [[place[word] for word in result.hypotheses[0]] for result in results]

    return decode


def work(candidate: str, size: str, threads: int) -> None:
    """A worker: job and batch numbers on stdin, a line of seconds and ids on stdout for each."""
    match candidate.split(" "):
        case ["transformers"]:
            decode = transformers_decode(size)
        case ["CTranslate2", compute_type]:
            decode = ctranslate2_decode(size, compute_type, threads)
        case [_, precision]:
            decode = our_decode(size, precision)
    print("ready", flush=True)
    for line in sys.stdin:
        job, number = map(int, line.split())
        beam, lines = JOBS[job]
        source_BS = np.random.default_rng([job, number]).integers(FIRST, SIZES[size][4], (lines, SOURCE_LENGTH))
        source_BS[:, -1] = EOS
        started_at = time.perf_counter()
        ids = decode(beam, source_BS)
        seconds = time.perf_counter() - started_at
        print(json.dumps({"seconds": seconds, "ids": ids}), flush=True)


class Worker:
    def __init__(self, candidate: str, size: str, threads: int) -> None:
        command = [sys.executable, __file__, "--worker", candidate, "--size", size, "--threads", str(threads)]
        environment = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.questions, self.answers = self.process.stdin, self.process.stdout
        assert self.answers.readline() == "ready\n", f"{candidate} failed"

    def decode(self, job: int, number: int) -> dict[str, Any]:
        self.questions.write(f"{job} {number}\n")
        self.questions.flush()
        answer: dict[str, Any] = json.loads(self.answers.readline())
        return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batches", type=int, default=8, help="batches a job and candidate; one more is not timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--jobs", nargs="+", type=int, choices=range(len(JOBS)), default=list(range(len(JOBS))))
    parser.add_argument("--check", action="store_true", help="compare the tokens of the float32 candidates")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments.size, arguments.threads)
        return
    candidates = arguments.candidates
    workers = {candidate: Worker(candidate, arguments.size, arguments.threads) for candidate in candidates}
    reference = candidates[0]
    print(f"| beam | lines | candidate | lines/s | times {reference} (p10..p90) | same outputs |")
    print("| --- | --- | --- | --- | --- | --- |")
    for job in arguments.jobs:
        beam, lines = JOBS[job]
        answers: dict[str, list[dict[str, Any]]] = {candidate: [] for candidate in candidates}
        for number in range(arguments.batches + 1):
            for candidate in candidates if number % 2 else reversed(candidates):
                answers[candidate].append(workers[candidate].decode(job, number))
        for candidate in candidates:
            pairs = list(zip(answers[reference], answers[candidate], strict=True))
            ratios = sorted(theirs["seconds"] / ours["seconds"] for theirs, ours in pairs[1:])
            low, high = ratios[len(ratios) // 10], ratios[-1 - len(ratios) // 10]
            rate = lines / statistics.median(answer["seconds"] for answer in answers[candidate][1:])
            # Ours ends with eos, which the others were kept from: the last step is not compared.
            same = [
                a[: STEPS - 1] == b[: STEPS - 1]
                for theirs, ours in pairs
                for a, b in zip(theirs["ids"], ours["ids"], strict=True)
            ]
            share = sum(same) / len(same)
            middle = f"{statistics.median(ratios):.2f} ({low:.2f}..{high:.2f})"
            print(f"| {beam} | {lines} | {candidate} | {rate:.1f} | {middle} | {share:.0%} |", flush=True)
            # Of a beam ours is ranked with its eos and theirs without: another hypothesis may win.
            if arguments.check and beam == 1 and {candidate, reference} <= set(FLOAT32) and share < 0.98:
                sys.exit(f"{candidate} and {reference} do not decode one model alike")


if __name__ == "__main__":
    main()
