# One verb per job, the same for people and for CI. `make help` lists them.
# Needs Python 3.11 or newer with venv; everything else is installed into .venv. Where there is a C++ compiler, the
# native decoder (service/native) is built, too.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
TEXT ?= The weather is nice today.
TARGET ?= localhost:50051
MODE ?= full
SCENARIO ?= soak
COMMAND ?= bench
PROFILE ?= sentence
RATE ?= 10
VARIANT ?= cpu
DEVICE ?= cuda
MINUTES ?= 60
PRESET ?= base
DATA ?= ../shared/data
RUN ?= build/gpu/run
TAG ?= dragoman:$(VARIANT)
export ORT_DISABLE_TELEMETRY := 1
comma := ,

.DEFAULT_GOAL := help
.PHONY: help demo serve translate test test-all check format docs loadtest capacity overload soak stress bench image \
	gpu-check gpu-train

help: ## Show the verbs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '$$1 != "help" {printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.serve ## Start the server on the shipped model, translate four texts through gRPC, stop it
	@$(BIN)/python -m dragoman_service demo

serve: $(VENV)/.serve ## Serve the shipped model: gRPC on 50051, metrics on 9464
	@$(BIN)/python -m dragoman_service serve

translate: $(VENV)/.serve ## Ask a running server: make translate TEXT="..." [TARGET=host:port]
	@$(BIN)/python -m dragoman_service translate --target "$(TARGET)" -- "$$DRAGOMAN_TEXT"
translate: export DRAGOMAN_TEXT = $(value TEXT)

test: check ## make check, then all tests but the slow ones
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: check ## make check, then all tests
	$(BIN)/python -m pytest -n auto

check: $(VENV)/.dev ## Format, lint, strict types, import contracts, generated files, contract, workflows
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/lint.py
	$(BIN)/python proto/generate.py --check
	$(BIN)/python -m deploy.grafana --check
	$(BIN)/python -m docs.generate --check
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/zizmor --quiet --offline --pedantic .github

format: $(VENV)/.dev ## Format the code, apply safe fixes, regenerate stubs, dashboards, rules and the reference
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python proto/generate.py
	$(BIN)/python -m deploy.grafana
	$(BIN)/python deploy/kubernetes/render_rules.py
	$(BIN)/python -m docs.generate

docs: $(VENV)/.dev ## Build the documentation into build/site; a broken link fails
	@$(BIN)/python -m mkdocs build --quiet --strict --site-dir build/site

# What the next three take alike: MODE, PROFILE, METHODS, SLO; of a server that runs already TARGET, METRICS_URL, KEY (a
# file with the API key) and CA (a file with the certificate to trust).
LOAD_FLAGS = --mode $(MODE) --profile "$(PROFILE)" $(if $(METHODS),--methods "$(METHODS)") $(if $(SLO),--slo "$(SLO)") \
	$(if $(filter-out file,$(origin TARGET)),--target "$(TARGET)") $(if $(METRICS_URL),--metrics-url "$(METRICS_URL)") \
	$(if $(KEY),--api-key-file "$(KEY)") $(if $(CA),--ca-file "$(CA)")

loadtest: $(VENV)/.load ## Offer load, judge latency, write one page: make loadtest [RATE=20] [SLO="p95<400ms"] [TARGET=host:port] [MODE=short]
	@$(BIN)/python -m loadtests load $(LOAD_FLAGS) --rate "$(RATE)" $(if $(BASELINE),--baseline "$(BASELINE)")

capacity: $(VENV)/.load $(if $(filter base,$(MODEL)),$(VENV)/.bench) ## Find the highest rate that holds an SLO, and latency against load: make capacity [SLO="p95<1s"] [MODEL=base]
ifeq ($(MODEL),base)
	@flags=$$($(BIN)/python -m loadtests benchmarks prepare --model base) && eval "set -- $$flags" && \
		$(BIN)/python -m loadtests capacity --mode $(MODE) --slo "$(or $(SLO),p95<3s$(comma)goodput>99%)" \
		--title "Transformer-base" --output build/capacity-base "$$@"
else
	@$(BIN)/python -m loadtests capacity $(LOAD_FLAGS)
endif

overload: $(VENV)/.load ## Offer ten times the capacity for a minute: are calls rejected early, with a time to retry after? [MODE=short]
	@$(BIN)/python -m loadtests overload $(LOAD_FLAGS)

soak stress: $(VENV)/.bench
soak: SCENARIO = soak
soak: ## Half an hour of everything at once: does anything leak, is anything lost? [MODE=short]
stress: ## Stress a server: make stress SCENARIO=soak|chaos|bad-inputs|cancellations [MODE=short] [PART=inputs|attacks]
soak stress:
	@$(BIN)/python -m loadtests stress $(SCENARIO) --mode $(MODE) $(if $(PART),--part "$(PART)")

bench: $(VENV)/.bench ## Compare with CTranslate2, Transformers and PyTorch: make bench [COMMAND=load: as servers] [MODE=short]
	@$(BIN)/python -m loadtests benchmarks $(COMMAND) --mode $(MODE)

# GPU_PYTHON names a Python that has all that is needed; without it an environment of its own is made, as ONNX Runtime for
# CUDA and that for CPUs cannot share one: from the package index, or from the wheels in WHEELS. DEVICE=cpu needs no GPU.
ifdef GPU_PYTHON
GPU_READY :=
else ifeq ($(DEVICE),cpu)
GPU_PYTHON := $(BIN)/python
GPU_READY := $(VENV)/.dev
else
GPU_PYTHON := build/gpu/venv/bin/python
GPU_READY := build/gpu/venv/.installed
endif

gpu-check: $(GPU_READY) ## Check and measure everything on a GPU within ten minutes, one page: make gpu-check [DEVICE=cpu] [MODE=short]
	@$(GPU_PYTHON) -m loadtests benchmarks gpu --gpu "$(DEVICE)" --mode $(MODE) $(if $(wildcard $(DATA)),--data "$(DATA)") \
		$(if $(STAGES),--stages "$(STAGES)")

gpu-train: $(GPU_READY) ## Train Transformer-base, go on where the last call ended, make a bundle: make gpu-train [MINUTES=60] [DATA=DIR]
	@$(GPU_PYTHON) -m dragoman_export train --output "$(RUN)" --max-minutes "$(MINUTES)" $(TRAIN_FLAGS) \
		$(if $(wildcard $(RUN)/checkpoints/step-*),--resume,--preset "$(PRESET)" \
		--train $(wildcard $(DATA)/*/train.tsv.gz) --dev $(wildcard $(DATA)/*/dev.tsv.gz))
	@rm -rf "$(RUN)/models/en-de/1"
	@$(GPU_PYTHON) -m dragoman_export bundle --checkpoint "$(RUN)" --output "$(RUN)/models/en-de/1" --name en-de --version 1 \
		--source-language en --target-language de

image: ## Build the container image with docker or podman: make image [VARIANT=gpu] [TAG=dragoman:cpu]
	@deploy/image/build.sh "$(VARIANT)" "$(TAG)"

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ...")'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Nothing needs the native decoder: where it cannot be built, a line says so each time, and ONNX Runtime decodes.
NATIVE := $(wildcard $(addprefix service/native/,pyproject.toml setup.py dragoman_native/*.py src/*))
WITHOUT_NATIVE := int8 models decode on ONNX Runtime, which is slower.

$(VENV)/.native: $(NATIVE) | $(VENV)/bin/python
	@[ "$$(uname -sm)" = "Linux x86_64" ] || exit 0; \
	compiler=$$(command -v "$${CXX:-c++}" || command -v g++) || \
		{ echo "no C++ compiler: $(WITHOUT_NATIVE) With one (apt install g++), the native engine is built." >&2; exit 0; }; \
	echo "building the native engine ..." >&2; \
	CXX=$$compiler $(PIP) ./service/native >$@.log 2>&1 && touch $@ || \
		echo "the native engine cannot be built ($@.log says why): $(WITHOUT_NATIVE)" >&2

$(VENV)/.serve: pyproject.toml deploy/models/pyproject.toml | $(VENV)/bin/python $(VENV)/.native
	@echo "installing what serving needs (no PyTorch) ..."
	@$(PIP) --editable '.[serve]' --editable ./deploy/models
	@touch $@

$(VENV)/.bench: pyproject.toml deploy/models/pyproject.toml | $(VENV)/bin/python $(VENV)/.native
	@echo "installing what the comparison with other systems needs ..."
	@$(PIP) --editable '.[serve,bench]' --editable ./deploy/models
	@touch $@ $(VENV)/.serve

$(VENV)/.load: pyproject.toml deploy/models/pyproject.toml | $(VENV)/bin/python $(VENV)/.native
	@echo "installing what the load tests need ..."
	@$(PIP) --editable '.[serve,load]' --editable ./deploy/models
	@touch $@ $(VENV)/.serve

# CTranslate2 is built for CUDA 12, of which it needs cuBLAS; ONNX Runtime and PyTorch bring the libraries of CUDA 13.
build/gpu/venv/.installed: pyproject.toml
	@echo "installing what the GPU needs into build/gpu/venv ..."
	@$(PYTHON) -m venv build/gpu/venv
	@build/gpu/venv/bin/python -m pip --disable-pip-version-check install --quiet \
		$(if $(WHEELS),--no-index --find-links "$(WHEELS)") --editable '.[gpu,bench,load,test]' --editable ./deploy/models nvidia-cublas-cu12
	@touch $@

$(VENV)/.dev: pyproject.toml deploy/models/pyproject.toml | $(VENV)/bin/python $(VENV)/.native
	@echo "installing what training, export and the checks need ..."
	@$(PIP) --editable '.[dev]' --editable ./deploy/models
	@touch $@ $(VENV)/.serve $(VENV)/.bench $(VENV)/.load
