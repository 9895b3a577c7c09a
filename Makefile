# `make help` lists the targets. What they need lives in .venv, which they make themselves.

PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
# Touched when everything is installed, so an interrupted install is taken up again; it holds the
# folder it was made for, so a moved checkout is installed anew.
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow check bench dashboard moved

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## make .venv and install the locked packages

ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): moved
moved:
endif

$(STAMP): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "$(PYTHON) is not on PATH; install Python 3.11 or name one: make install PYTHON=/path/to/python" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11) and "headloom needs Python 3.11 or newer; $(PYTHON) is " + sys.version.split()[0])'
	@rm -f $(STAMP)
	"$(PYTHON)" -m venv $(VENV)
	$(RUN) -m pip install --disable-pip-version-check -r requirements.lock
	$(RUN) -m pip install --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@echo '$(CURDIR)' > $(STAMP)

demo: install ## English to German from nothing: prepare, train, score, translate
	@PYTHON=$(RUN) bash demo.sh

test: install ## all tests but the slow ones
	$(RUN) -m pytest --numprocesses 2

test-slow: install ## trainings that must reach a quality: minutes each
	$(RUN) -m pytest tests/slow

check: install ## style, types, and generated docs up to date
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(RUN) -m headloom.config.options --check
	$(RUN) -m headloom.combinations --check
	$(RUN) -m headloom.export.table --check

bench: install ## training speed side by side with torch.nn.Transformer
	$(RUN) bench/train_step.py

dashboard: install ## TensorBoard on every run under outputs/
	$(RUN) -m tensorboard.main --logdir outputs --samples_per_plugin images=100,text=100
