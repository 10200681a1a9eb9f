# Two commands on a fresh machine that has only Python and make: `make demo` and `make test`.
PYTHON ?= python3
SEED ?= 0
N ?= 50
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRACKERS := .venv-trackers
INTEROP := .venv-interop
OPENENV := .venv-openenv
VERIFIERS := .venv-verifiers
DOCS := .venv-docs
ENVS := .venv-envs
STUDIO := .venv-studio
VLLM := .venv-vllm
SCALE := .venv-scale
GPU_TESTS := tests/engines tests/learner tests/compute tests/runs/test_checkpoints.py

PIP := -m pip install --quiet --disable-pip-version-check

# With everything pinned; torch first and by itself: asked for by another package, its newest build would bring CUDA along.
define make-venv
	test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
	$(1)/bin/python $(PIP) "$$(grep '^torch==' requirements.txt)"
	$(1)/bin/python $(PIP) -r requirements.txt
endef

.DEFAULT_GOAL := help
.PHONY: help install demo test test-gpu test-newcomer test-support test-faults test-trackers test-interop test-envs \
  test-studio test-scale test-vllm check docs mutants format clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

install: $(READY) ## Make the virtual environment, if it is not there or the pins have changed

$(READY): requirements.txt pyproject.toml
	$(call make-venv,$(VENV))
	$(BIN)/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

demo: $(READY) ## Train the embedded agent and compare it with its baselines (minutes on 2 cores; SEED=0)
	$(BIN)/turnwise demo --run runs/demo seed=$(SEED)

test: check ## Lint, type-check and run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-trackers: $(TRACKERS)/.ready ## Test the trackers with their real packages, offline, in a virtual environment of their own
	OMP_NUM_THREADS=1 $(TRACKERS)/bin/python -m pytest tests/training/test_trackers.py

$(TRACKERS)/.ready: requirements.txt pyproject.toml
	$(call make-venv,$(TRACKERS))
	$(TRACKERS)/bin/python $(PIP) --editable ".[tensorboard,wandb,mlflow,trackio]"
	touch $@

test-newcomer: $(READY) ## The first hour as printed, from a wheel in a fresh environment and folder
	$(BIN)/python -m pytest tests/newcomer/whole/first_hour.py
	$(BIN)/python -m pytest tests/newcomer

test-support: $(READY) ## Train the support agent to its end, by recipe and from Python, with three algorithms (20 minutes)
	$(BIN)/python -m pytest tests/newcomer/whole/support_learns.py

test-faults: $(READY) ## Break runs, disks, inputs and the sandbox at length: 200 kills, 133 damages, 112,000 fuzz cases, every escape (half an hour)
	OMP_NUM_THREADS=1 TURNWISE_FAULTS=long $(BIN)/python -m pytest -n 2 tests/faults tests/doctor

test-interop: $(INTEROP)/.ready $(OPENENV)/.ready $(VERIFIERS)/.ready ## Test agents and environments of others with their real packages, training included (minutes)
	OMP_NUM_THREADS=1 TURNWISE_OPENENV_PYTHON=$(CURDIR)/$(OPENENV)/bin/python \
		TURNWISE_VERIFIERS_PYTHON=$(CURDIR)/$(VERIFIERS)/bin/python $(INTEROP)/bin/python -m pytest tests/interop --ignore tests/interop/envs
	OMP_NUM_THREADS=1 TURNWISE_CHAOS_REQUESTS=10000 $(INTEROP)/bin/python -m pytest tests/gateway/test_chaos.py
	$(MAKE) test-envs

$(INTEROP)/.ready: requirements.txt pyproject.toml tests/interop/requirements.txt
	$(call make-venv,$(INTEROP))
	$(INTEROP)/bin/python $(PIP) -r tests/interop/requirements.txt
	$(INTEROP)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

test-envs: $(ENVS)/.ready ## Test the environments of others with their real packages (minutes; ScienceWorld needs Java)
	OMP_NUM_THREADS=1 $(ENVS)/bin/python -m pytest tests/interop/envs

$(ENVS)/.ready: requirements.txt pyproject.toml tests/interop/envs-requirements.txt
	$(call make-venv,$(ENVS))
	$(ENVS)/bin/python $(PIP) -r tests/interop/envs-requirements.txt
	$(ENVS)/bin/python $(PIP) --no-deps "$$(sed -n 's/^# without its dependencies: //p' tests/interop/envs-requirements.txt)"
	$(ENVS)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

test-studio: $(STUDIO)/.ready ## Test the studio in headless Chromium, which Debian's packages bring
	command -v chromium > /dev/null || { apt-get update && apt-get install --yes --no-install-recommends chromium; }
	OMP_NUM_THREADS=1 $(STUDIO)/bin/python -m pytest tests/studio
	OMP_NUM_THREADS=1 $(STUDIO)/bin/python -m pytest tests/studio/browser/in_browser.py

$(STUDIO)/.ready: requirements.txt pyproject.toml tests/studio/browser/requirements.txt
	$(call make-venv,$(STUDIO))
	$(STUDIO)/bin/python $(PIP) -r tests/studio/browser/requirements.txt
	$(STUDIO)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

# Each by itself: what one pins of mcp, the other refuses.
$(OPENENV)/.ready $(VERIFIERS)/.ready: .venv-%/.ready: tests/interop/%.txt
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python $(PIP) -r tests/interop/$*.txt
	touch $@

test-vllm: $(VLLM)/.ready ## Test the vLLM engine with vLLM itself, on a CPU, a training run included (minutes; 3.5 GB)
	OMP_NUM_THREADS=1 $(VLLM)/bin/python -m pytest tests/scale/test_vllm.py

# vLLM's own packages come from a list of theirs; what it wants of vision and sound does not load beside this torch.
$(VLLM)/.ready: requirements.txt pyproject.toml tests/scale/vllm-requirements.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(PIP) "$$(grep '^torch==' requirements.txt)"
	$(VLLM)/bin/python $(PIP) -r tests/scale/vllm-requirements.txt
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python $(PIP) "$$(grep '^pytest==' requirements.txt)" "$$(grep '^hypothesis==' requirements.txt)"
	$(VLLM)/bin/python $(PIP) --editable ".[lora,serve]"
	touch $@

test-gpu: $(READY) ## Run all tests of engines, kernels and the learner on a GPU
	$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "test-gpu: torch sees no GPU")'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(GPU_TESTS)

test-scale: $(SCALE)/.ready ## Test learners that are spread over 2 and 4 processes, and runs on Ray clusters of several nodes (minutes)
	TURNWISE_SCALE=long OMP_NUM_THREADS=1 $(SCALE)/bin/python -m pytest tests/learner/test_sharded.py tests/learner/test_parallel.py tests/training/test_launch.py
	TURNWISE_SCALE=long OMP_NUM_THREADS=1 $(SCALE)/bin/python -m pytest tests/scale tests/planning

$(SCALE)/.ready: requirements.txt pyproject.toml tests/scale/requirements.txt
	$(call make-venv,$(SCALE))
	$(SCALE)/bin/python $(PIP) -r tests/scale/requirements.txt
	$(SCALE)/bin/python $(PIP) --no-deps --no-build-isolation --editable .
	touch $@

mutants: $(READY) ## Plant N random small bugs (N=0: all) in the code that learns and list those no test notices (SEED=0)
	$(BIN)/python tests/mutants --number $(N) --seed $(SEED) --jobs 2 $(MUTANTS)

docs: $(DOCS)/.ready ## Build the documentation as a site, into site/, without a warning
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "read it: $(PYTHON) -m http.server --directory site --bind 127.0.0.1"

$(DOCS)/.ready: docs/requirements.txt
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python $(PIP) -r docs/requirements.txt
	touch $@

check: $(READY) ## Lint and type-check alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## Put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the virtual environment and caches; runs stay
	rm -rf $(VENV) $(TRACKERS) $(INTEROP) $(OPENENV) $(VERIFIERS) $(ENVS) $(STUDIO) $(VLLM) $(SCALE) $(DOCS) site .mypy_cache .ruff_cache .pytest_cache
