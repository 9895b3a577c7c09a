"""What a loss over a large vocabulary costs in memory, in a process of its own."""

import subprocess
import sys

PROGRAM = """
import resource, torch
from headloom.nn.loss import CHUNK_LOGITS, sequence_loss

torch.set_num_threads(1)
V, N, D = 64_000, 8_192, 64
hidden, weight = torch.randn(16, N // 16, D, requires_grad=True), torch.randn(V, D, requires_grad=True)
target = torch.randint(V, (16, N // 16))
small = sequence_loss(hidden[:, :1], target[:, :1], weight, label_smoothing=0.1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
sequence_loss(hidden, target, weight, label_smoothing=0.1).loss.backward()
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
documented = 2 * (hidden.nbytes + weight.nbytes) + 3 * 4 * CHUNK_LOGITS
print(grown / 2**20, documented / 2**20, 4 * N * V / 2**20)
assert grown < documented + 32 * 2**20, (grown, documented)
"""


def test_a_vocabulary_of_64000_and_8192_targets_train_in_the_documented_memory():
    """B107: the logits alone would be 2 GB, and their gradient as much."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
