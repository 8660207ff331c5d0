# Pagewire's commands. CI calls these targets and adds nothing to them.
# PYTHON picks the interpreter for .venv (3.11 or newer); TORCH_INDEX picks another package index for PyTorch.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
TORCH_VERSION := 2.13.0
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.pagewire-setup
PROTO_OUT ?= src
PROTO_PYTHON ?= $(BIN)/python

# Without it "python -m" puts the repository root on sys.path, where our kernels/ would shadow a package of that name.
export PYTHONSAFEPATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup demo up test cluster-test exact-test fault-test check protos generate model help

setup: $(STAMP) model  ## .venv with everything in it, and the default model

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; ok = v >= (3, 11); \
	  print(f"[1/5] creating $(VENV) with Python {v[0]}.{v[1]}.{v[2]}") if ok else \
	  print(f"Pagewire needs Python 3.11 or newer; $(PYTHON) is {v[0]}.{v[1]}.{v[2]}. Name another: make PYTHON=python3.11 ..."); \
	  sys.exit(0 if ok else 1)'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "[2/5] installing PyTorch $(TORCH_VERSION)"
	@$(BIN)/python -m pip install $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==$(TORCH_VERSION)
	@echo "[3/5] installing Pagewire and what it needs"
	@$(BIN)/python -m pip install --constraint constraints.txt torch==$(TORCH_VERSION) --editable '.[dev]'
	@echo "[4/5] checking that the installed versions fit together"
	@$(BIN)/python -m pip check
	@touch $@

model: $(STAMP)
	@echo "[5/5] getting the default model"
	@$(BIN)/pagewire model get smollm2

demo: setup  ## the main job on real weights: two questions behind one long system prompt, with their timelines
	@$(BIN)/pagewire demo

up: setup  ## the same cluster, left running in the foreground; its URLs as one JSON line
	@$(BIN)/pagewire up

test: setup  ## every test but those of the next three
	HF_HUB_OFFLINE=1 $(BIN)/pytest --ignore tests/cluster --ignore tests/exact --ignore tests/faults

cluster-test: setup  ## tests that start clusters of tiny models: answers, losses, ends, drains
	HF_HUB_OFFLINE=1 $(BIN)/pytest tests/cluster

exact-test: setup  ## the real model through real clusters, 128 answers token for token as transformers gives them
	HF_HUB_OFFLINE=1 $(BIN)/pytest tests/exact

fault-test: setup  ## 200 requests with a random fault each, pods killed in every state of a shipment (FAULT_SEED=1)
	HF_HUB_OFFLINE=1 $(BIN)/pytest tests/faults

check: $(STAMP)  ## format, lint, types, architecture
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	HF_HUB_OFFLINE=1 $(BIN)/pytest -q tests/architecture

protos: $(STAMP) generate  ## protos/*_pb2* anew from protos/*.proto

# Only inference and link have services; the other two *_pb2_grpc.py files would be empty.
generate:
	@$(PROTO_PYTHON) -m grpc_tools.protoc -Isrc --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) \
	  src/pagewire/protos/common.proto src/pagewire/protos/engine.proto
	@$(PROTO_PYTHON) -m grpc_tools.protoc -Isrc --python_out=$(PROTO_OUT) --pyi_out=$(PROTO_OUT) \
	  --grpc_python_out=$(PROTO_OUT) src/pagewire/protos/inference.proto src/pagewire/protos/link.proto

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 18
