# make build | demo | test (README's commands) | check | bench | soak [MINUTES=] | experiment [T= SEEDS=] | parity | runtime | test-slurm | test-slurm-all | test-cuda-plans
# Every target first does the set-up (cluster-scripts/setup.sh), which needs no root and runs once.

CARGO ?= cargo
MINUTES ?= 10
T ?= 720
SEEDS ?= 3
REPEAT ?= 1
# No test may hang: the longest one is far below this.
TEST_SECONDS_MAX ?= 1800
# What test-slurm may take; what there is no time for is skipped and counted.
SLURM_SECONDS_MAX ?= 900
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
target := $(or $(CARGO_TARGET_DIR),target)
kintsugi := $(target)/release/kintsugi
one_machine := cluster-scripts/one-machine

.PHONY: build demo test build-tests check bench soak experiment parity runtime test-slurm test-slurm-all test-cuda-plans setup help

help:
	@sed -n '1,2s/^# //p' Makefile

setup:
	@cluster-scripts/setup.sh

build: setup
	$(CARGO) build --release --locked
	@echo "built $(kintsugi): it runs from any directory"

# Four arms in three minutes on two cores: calm, detect/respawn, detect/shrink, checkpoint/restart.
demo: build
	$(kintsugi) experiment configs/experiment/demo.toml --out runs/demo

# For unit tests our crate is compiled once more: unoptimised, since optimising takes longer than they run. CI optimises
# less, so quickly that they get it too.
UNOPTIMISED ?= --config profile.release.package.kintsugi.opt-level=0
unit_tests := $(CARGO) $(UNOPTIMISED) test --release --locked --workspace --lib
other_tests := $(CARGO) test --release --locked --workspace --test '*'

# What `test` runs, compiled: CI measures it as a part of its own, and compiles nothing beside real processes.
build-tests: setup
	$(unit_tests) --no-run
	$(other_tests) --no-run

test: setup
	code=0; timeout --kill-after=10 $(TEST_SECONDS_MAX) $(unit_tests) --no-fail-fast || code=$$?; \
	  timeout --kill-after=10 $(TEST_SECONDS_MAX) $(other_tests) --no-fail-fast || code=$$?; exit $$code

check: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	$(CARGO) test --release --locked --test tidy --test dependencies

bench: build
	$(kintsugi) bench all-reduce
	$(kintsugi) bench recovery
	$(kintsugi) bench calm

# 100,000 simulated schedules; twenty replacements in a row twenty times; every row of the failure matrix three times; everything killed at once
# twenty times; every mode of memory over five models, every design of unified memory; then random kills until the time is over; every job under SLURM five times. Every run must end
# with the calm bits.
soak: build
	$(CARGO) test --release --locked --lib asking_is_cheap -- --ignored --nocapture
	$(kintsugi) simulate cluster --seeds 100000
	KINTSUGI_JOIN_REPEATS=20 timeout --kill-after=10 1800 $(CARGO) test --release --locked --test processes join::twenty
	KINTSUGI_MATRIX_ROUNDS=3 timeout --kill-after=10 3600 \
	  $(CARGO) test --release --locked --test processes matrix::the_whole -- --nocapture
	timeout --kill-after=10 3600 \
	  $(CARGO) test --release --locked --test processes memory:: -- --ignored --nocapture
	KINTSUGI_SOAK_MINUTES=$(MINUTES) timeout --kill-after=10 1800 \
	  $(CARGO) test --release --locked --test processes -- resident::twenty guard::twenty --nocapture
	KINTSUGI_SOAK_MINUTES=$(MINUTES) timeout --kill-after=10 $$(( $(MINUTES) * 60 + 900 )) \
	  $(CARGO) test --release --locked --test processes soak:: -- --nocapture
	$(MAKE) test-slurm-all REPEAT=5

# The paper's comparison: T seconds per run, SEEDS runs per arm.
experiment: build
	$(kintsugi) experiment configs/experiment/paper.toml --out runs/paper --seconds $(T) --seeds $(SEEDS)

# Agreement with torchvision and ONNX Runtime, by the python of KINTSUGI_TORCHVISION_PYTHON or one that gets it here, once (gigabytes).
torchvision := $(CURDIR)/.deps/torchvision
KINTSUGI_TORCHVISION_PYTHON ?= $(torchvision)/bin/python
parity: setup
	@[ "$(KINTSUGI_TORCHVISION_PYTHON)" != $(torchvision)/bin/python ] || [ -e $(torchvision)/.complete ] || \
	  { python3 -m venv $(torchvision) && $(torchvision)/bin/python -m pip install -q torch==2.15.* torchvision==0.29.* \
	      onnx==1.23.* onnxruntime==1.32.* && \
	    touch $(torchvision)/.complete; }
	KINTSUGI_TORCHVISION_PYTHON="$(KINTSUGI_TORCHVISION_PYTHON)" timeout --kill-after=10 $(TEST_SECONDS_MAX) \
	  $(CARGO) test --release --locked --test library -- parity torchvision onnx checkpoint::elsewhere --nocapture

# The newer runtime for test-slurm, where its sources are: minutes, once. Without it those rows skip, and say why.
runtime:
	@$(one_machine)/runtime --install || [ $$? = 77 ]

# Jobs under real SLURM daemons on this machine: eight scenarios in minutes, or all of them REPEAT times in hours.
# SLURM's packages are installed where they are missing and this is root. What cannot run here is skipped, and says why.
test-slurm: build
	SELFTEST_SECONDS_MAX=$(SLURM_SECONDS_MAX) $(one_machine)/selftests few

test-slurm-all: build
	REPEAT=$(REPEAT) $(one_machine)/selftests all

# cuDNN's plan for every convolution of the catalogue in every precision, for a card that need not be here. Gets NVIDIA's
# wheels (1 GB), once.
test-cuda-plans:
	@cluster-scripts/setup.sh --cuda
	$(CARGO) test --release --locked --test library -- cuda::plans --nocapture
