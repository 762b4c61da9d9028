# make build | demo | test (README's commands) | check | bench | soak [MINUTES=] | experiment [T= SEEDS=] | runtime | test-slurm
# Every target first does the set-up (cluster-scripts/setup.sh), which needs no root and runs once.

CARGO ?= cargo
MINUTES ?= 10
T ?= 720
SEEDS ?= 3
# No test may hang: the longest one is far below this.
TEST_SECONDS_MAX ?= 1800
# What test-slurm takes in all.
SLURM_SECONDS_MAX ?= 1800
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
target := $(or $(CARGO_TARGET_DIR),target)
kintsugi := $(target)/release/kintsugi
one_machine := cluster-scripts/one-machine

.PHONY: build demo test check bench soak experiment runtime test-slurm setup help

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

test: setup
	timeout --kill-after=10 $(TEST_SECONDS_MAX) $(CARGO) test --release --locked --workspace

check: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	timeout --kill-after=10 600 $(CARGO) test --release --locked --test tidy --test dependencies

bench: build
	$(kintsugi) bench all-reduce
	$(kintsugi) bench recovery
	$(kintsugi) bench calm

# 100,000 simulated schedules; twenty replacements in a row twenty times; every row of the failure matrix three times; everything killed at once
# twenty times; then random kills until the time is over; every job under SLURM five times. Every run must end
# with the calm bits.
soak: build
	$(kintsugi) simulate cluster --seeds 100000
	KINTSUGI_JOIN_REPEATS=20 timeout --kill-after=10 1800 $(CARGO) test --release --locked --test processes join::twenty
	KINTSUGI_MATRIX_ROUNDS=3 timeout --kill-after=10 3600 \
	  $(CARGO) test --release --locked --test processes matrix::the_whole -- --nocapture
	KINTSUGI_SOAK_MINUTES=$(MINUTES) timeout --kill-after=10 1800 \
	  $(CARGO) test --release --locked --test processes -- resident::twenty guard::twenty --nocapture
	KINTSUGI_SOAK_MINUTES=$(MINUTES) timeout --kill-after=10 $$(( $(MINUTES) * 60 + 900 )) \
	  $(CARGO) test --release --locked --test processes soak:: -- --nocapture
	for round in 1 2 3 4 5; do timeout --kill-after=10 $(TEST_SECONDS_MAX) $(one_machine)/selftest || [ $$? = 77 ] || exit 1; done
	REPEAT=5 timeout --kill-after=30 7200 $(one_machine)/selftest-nodes || [ $$? = 77 ]
	REPEAT=5 timeout --kill-after=30 10800 $(one_machine)/selftest-runtime || [ $$? = 77 ]

# The paper's comparison: T seconds per run, SEEDS runs per arm.
experiment: build
	$(kintsugi) experiment configs/experiment/paper.toml --out runs/paper --seconds $(T) --seeds $(SEEDS)

# The newer runtime for test-slurm, where its sources are: minutes, once. Without it those rows skip, and say why.
runtime:
	@$(one_machine)/runtime --install || [ $$? = 77 ]

# Jobs under real SLURM daemons on this machine; SLURM's packages are installed where they are missing and this
# is root. 77 = it cannot run here; the line above says why. All three together have SLURM_SECONDS_MAX; the last
# one skips and counts what it has no time for, a first build of the newer runtime included (make runtime).
test-slurm: build
	status=0; \
	for test in selftest selftest-nodes selftest-runtime; do \
	  left=$$(($(SLURM_SECONDS_MAX) - SECONDS)); [ $$left -gt 60 ] || left=60; code=0; \
	  SELFTEST_SECONDS_MAX=$$((left - 60)) timeout --kill-after=30 $$left $(one_machine)/$$test || code=$$?; \
	  case $$code in 0 | 77) ;; *) echo "FAIL $$test: exit $$code (124: out of time)" >&2; status=1 ;; esac; \
	done; \
	exit $$status
