#!/usr/bin/env bash
# English to German from nothing: prepare the corpus, train, score, translate. `make demo` installs first.
#
#   make demo                                    the whole of it; a finished training is not repeated
#   echo "Turn off the light." | make demo       translates your lines, too
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=${PYTHON:-.venv/bin/python}
run=outputs/demo
checkpoint=$run/checkpoints/best.pt
demo_seconds=575  # for all of it but the packages
other_seconds=110  # two validations, the scoring and the translations; a processor slow in training is not in these
trap 'exit 130' INT  # train.py ends cleanly on Ctrl-C; the demo must not go on with half a training

title() { printf '\n== %s\n' "$*"; }

# How many updates fit is measured, since machines differ by far: the run itself is then an ordinary one, whose length,
# learning rates and result are fixed.
updates_that_fit() {
    set -e  # what "$(...)" runs does not inherit it: a trial that failed must not become a number of updates
    trial=$(mktemp -d)
    trap 'rm -rf "$trial"' EXIT
    "$python" train.py experiment=demo hydra.run.dir="$trial" trainer.max_steps=120 trainer.log_every=40 \
        trainer.evaluate_every=null trainer.save_every=null task.headline=loss </dev/null >&2
    "$python" - "$trial/metrics.jsonl" $((demo_seconds - other_seconds - SECONDS)) <<'END'
import json
import sys

path, seconds = sys.argv[1:]
records = [json.loads(line) for line in open(path, encoding="utf-8")]
last = [record for record in records if "train/loss" in record][-1]  # the first ones hold the start of everything
fit = int(seconds) * last["train/tokens_per_second"] / last["train/tokens_per_update"]
print(max(200, int(fit)))
END
}

# What follows reads nothing from the user's pipe, which waits for the end.
if [ -e "$run/demo-finished" ]; then
    title "$run is trained already: going on. Remove the folder to train it anew."
else
    mkdir -p "$run"
    if [ ! -s "$run/max-steps" ]; then
        title "Measuring this machine: how many updates fit into ten minutes?"
        max_steps=$(updates_that_fit)
        echo "$max_steps" >"$run/max-steps"
    fi
    max_steps=$(cat "$run/max-steps")
    half=$(((max_steps + 1) / 2))
    title "Training English to German into $run: $max_steps updates"
    "$python" train.py experiment=demo hydra.run.dir="$run" trainer.max_steps="$max_steps" \
        trainer.evaluate_every="$half" resume=auto </dev/null
    touch "$run/demo-finished"
fi

title "Scoring the 1,000 test sentences"
"$python" evaluate.py checkpoint="$checkpoint" data.split=test </dev/null

title "Ten test sentences"
ten() { awk 'NR % 100 == 51' "$run/evaluation/test/$1"; }
translations=$(ten source.txt | "$python" translate.py checkpoint="$checkpoint")
paste -d '\n' <(ten source.txt) <(ten reference.txt) <(printf '%s\n' "$translations") | awk '
    NR % 3 == 1 { print "source:      " $0 }
    NR % 3 == 2 { print "reference:   " $0 }
    NR % 3 == 0 { print "translation: " $0 "\n" }'

if [ ! -t 0 ] && { IFS= read -r first 2>/dev/null || [ -n "${first:-}" ]; }; then
    title "Your lines"
    { printf '%s\n' "$first"; cat; } | "$python" translate.py checkpoint="$checkpoint"
fi

title "What now"
cat <<END
  make dashboard                                   TensorBoard: losses, scores, attention maps, samples
  echo "Turn off the light." | make demo           translate lines of your own, here
  echo "Turn off the light." | $python translate.py checkpoint=$checkpoint
END
