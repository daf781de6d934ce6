# Commands for development and CI; `make help` lists them. They need Python 3.11 or newer with venv and install everything
# else into .venv. If a C++ compiler is available, the native engine (service/native) is built and installed as well.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
TEXT ?= The weather is nice today.
TARGET ?= localhost:50051
FROM ?= en
TO ?= de
MODE ?= full
SCENARIO ?= soak
COMMAND ?= bench
PROFILE ?= sentence
USERS ?= 10
RUN_TIME ?= 1m
VARIANT ?= cpu
DEVICE ?= cuda
MINUTES ?= 60
PRESET ?= base
DATA ?= ../shared/data
RUN ?= build/gpu/run
TAG ?= dragoman:$(VARIANT)
export ORT_DISABLE_TELEMETRY := 1
comma := ,

CXX_FILES = $(shell git ls-files '*.cpp' '*.hpp' '*.inc')
PROMETHEUS_RULE := deploy/kubernetes/components/monitoring/prometheus-rule.yaml

.DEFAULT_GOAL := help
.PHONY: help demo serve translate test test-all check check-types check-generated check-code check-deployment format \
	docs pictures figures loadtest capacity overload soak stress bench image lock gpu-check gpu-train wheels sizes

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '$$1 != "help" {printf "  make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/.serve ## Start the server with the bundled models, translate five texts in both directions over gRPC, stop it
	@$(BIN)/python -m dragoman_service demo

serve: export DRAGOMAN_HTTP__PLAYGROUND ?= true
serve: $(VENV)/.serve ## Serve the bundled models: gRPC on 50051, HTTP on 9464, playground on http://localhost:9464/playground
	@echo "Playground: http://localhost:$${DRAGOMAN_HTTP__PORT:-9464}/playground"
	@$(BIN)/python -m dragoman_service serve

translate: $(VENV)/.serve ## Translate with a running server: make translate TEXT="..." [FROM=de TO=en] [TARGET=host:port]
	@$(BIN)/python -m dragoman_service translate --target "$(TARGET)" --source-language "$(FROM)" --target-language "$(TO)" -- "$$DRAGOMAN_TEXT"
translate: export DRAGOMAN_TEXT = $(value TEXT)

test: check ## Run make check, then all tests except the slow and the end-to-end ones
	$(BIN)/python -m pytest -n auto -m "not slow"

test-all: check ## Run make check, then all tests except the end-to-end ones
	$(BIN)/python -m pytest -n auto

check: $(VENV)/.dev ## Check format, lint, types, imports, prose, generated files, manifests and workflows
	@$(MAKE) --no-print-directory --jobs 2 --output-sync check-types check-generated check-code check-deployment

check-types:
	$(BIN)/mypy

check-generated:
	$(BIN)/python -m docs.generate --check
	$(BIN)/python proto/generate.py --check
	deploy/kubernetes/prometheus_rule.sh | diff $(PROMETHEUS_RULE) -

check-code:
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/prose.py
	$(BIN)/python proto/lint.py

check-deployment:
	$(BIN)/yamllint --strict .github deploy docker-compose.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml deploy/compose/keys.yml
	$(BIN)/check-jsonschema --quiet --schemafile deploy/helm/dragoman/values.schema.json deploy/helm/dragoman/values*.yaml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/zizmor --quiet --offline --pedantic .github

format: $(VENV)/.dev ## Format the code, apply safe fixes, regenerate stubs, rules and the reference
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)
	$(BIN)/ruff check --fix .
	$(BIN)/python proto/generate.py
	deploy/kubernetes/prometheus_rule.sh >$(PROMETHEUS_RULE)
	$(BIN)/python -m docs.generate

docs: $(VENV)/.dev ## Build the documentation into build/site; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/site

pictures: $(VENV)/.dev ## Take the pictures of README and guides from running programs; needs curl and Chromium
	@$(BIN)/python -m docs.pictures

# HOST is not taken from the environment, where shells set it to the name of the machine.
LOCUST_FLAGS = --texts "$(PROFILE)" --users "$(USERS)" --spawn-rate "$(USERS)" --run-time "$(RUN_TIME)" \
	$(if $(HEADLESS),--headless --only-summary) $(if $(filter command,$(origin HOST)),--host "$(HOST)") \
	$(if $(PROCESSES),--processes "$(PROCESSES)") $(if $(SHAPE),--shape "$(SHAPE)") $(if $(SLO),--slo "$(SLO)") \
	$(if $(METRICS_URL),--metrics-url "$(METRICS_URL)") $(if $(HTTP_URL),--http-url "$(HTTP_URL)") \
	$(if $(KEY),--api-key-file "$(KEY)") $(if $(CA),--ca-file "$(CA)") $(FLAGS)

loadtest: $(VENV)/.load ## Load test with Locust and its web page: make loadtest [HOST=host:port] [HEADLESS=1] [USERS=20] [RUN_TIME=5m] [PROCESSES=4] [PROFILE=mixed] [SHAPE=spike] [SLO="p95<400ms"]
	@$(BIN)/python -m loadtests load $(LOCUST_FLAGS)

# Variables of the next two commands: MODE, PROFILE, METHODS and SLO; for a running server TARGET, METRICS_URL, KEY (a
# file with the API key) and CA (a file with the certificate to trust).
LOAD_FLAGS = --mode $(MODE) --profile "$(PROFILE)" $(if $(METHODS),--methods "$(METHODS)") $(if $(SLO),--slo "$(SLO)") \
	$(if $(filter-out file,$(origin TARGET)),--target "$(TARGET)") $(if $(METRICS_URL),--metrics-url "$(METRICS_URL)") \
	$(if $(KEY),--api-key-file "$(KEY)") $(if $(CA),--ca-file "$(CA)")

capacity: $(VENV)/.load $(if $(filter base,$(MODEL)),$(VENV)/.bench) ## Find the highest rate that meets an SLO, and latency by load: make capacity [SLO="p95<1s"] [MODEL=base]
ifeq ($(MODEL),base)
	@flags=$$($(BIN)/python -m loadtests benchmarks prepare --model base) && eval "set -- $$flags" && \
		$(BIN)/python -m loadtests capacity --mode $(MODE) --slo "$(or $(SLO),p95<3s$(comma)goodput>99%)" \
		--title "Transformer-base" --output build/capacity-base "$$@"
else
	@$(BIN)/python -m loadtests capacity $(LOAD_FLAGS)
endif

overload: $(VENV)/.load ## Send ten times the capacity for a minute and check that calls are rejected early with a retry delay [MODE=short]
	@$(BIN)/python -m loadtests overload $(LOAD_FLAGS)

soak stress: $(VENV)/.bench
soak: SCENARIO = soak
soak: ## Run all kinds of requests for half an hour and check for leaks and lost requests [MODE=short]
stress: ## Stress a server: make stress SCENARIO=soak|chaos|bad-inputs [MODE=short] [PART=inputs|attacks] [SHARD=1/3]
soak stress:
	@$(BIN)/python -m loadtests stress $(SCENARIO) --mode $(MODE) $(if $(PART),--part "$(PART)") $(if $(SHARD),--shard "$(SHARD)")

bench: $(VENV)/.bench ## Compare with CTranslate2 and Transformers: make bench [COMMAND=load for servers] [MODE=short] [INSTRUCTION_SET=avx2] [NEIGHBOUR=0.5]
	@$(BIN)/python -m loadtests benchmarks $(COMMAND) --mode $(MODE) $(if $(INSTRUCTION_SET),--instruction-set $(INSTRUCTION_SET)) \
		$(if $(NEIGHBOUR),--neighbour $(NEIGHBOUR))

figures: $(VENV)/.dev $(VENV)/.bench ## Measure the figures of the documentation for two hours and insert them: make figures [SECTIONS="engine overload"]
	$(BIN)/python -m docs.measure $(SECTIONS)
	$(BIN)/python -m docs.generate

# GPU_PYTHON names a Python with all requirements. Without it a separate environment is created from the package index or
# the wheels in WHEELS, as ONNX Runtime for CUDA and for CPUs cannot share one. DEVICE=cpu needs no GPU.
ifdef GPU_PYTHON
GPU_READY :=
else ifeq ($(DEVICE),cpu)
GPU_PYTHON := $(BIN)/python
GPU_READY := $(VENV)/.dev
else
GPU_PYTHON := build/gpu/venv/bin/python
GPU_READY := build/gpu/venv/.installed
endif

gpu-check: $(GPU_READY) ## Check and measure a GPU, write a report: make gpu-check [DEVICE=cpu] [MODE=short]
	@deploy/gpu/check.sh "$(GPU_PYTHON)" "$(DEVICE)" "$(MODE)" "$(abspath $(wildcard $(DATA)))"

gpu-train: $(GPU_READY) ## Train Transformer-base from the last checkpoint and write a bundle: make gpu-train [MINUTES=60] [DATA=DIR]
	@$(GPU_PYTHON) -m dragoman_export train --output "$(RUN)" --max-minutes "$(MINUTES)" $(TRAIN_FLAGS) \
		$(if $(wildcard $(RUN)/checkpoints/step-*),--resume,--preset "$(PRESET)" \
		--train $(wildcard $(DATA)/*/train.tsv.gz) --dev $(wildcard $(DATA)/*/dev.tsv.gz))
	@rm -rf "$(RUN)/models/en-de/1"
	@$(GPU_PYTHON) -m dragoman_export bundle --checkpoint "$(RUN)" --output "$(RUN)/models/en-de/1" --name en-de --version 1 \
		--source-language en --target-language de

wheels: $(VENV)/.serve ## Build the wheels of Dragoman, the bundled models and the native engine into dist/
	@$(BIN)/python -m pip --disable-pip-version-check wheel --quiet --no-deps --wheel-dir dist . ./deploy/models \
		$$(if [ -e $(VENV)/.native ]; then echo ./service/native; fi)

sizes: ## Print the lines of Python of each part
	@for part in service export proto deploy loadtests tests; do \
		printf '%-10s %6d\n' "$$part" "$$(git ls-files -z "$$part" | grep -z '\.py$$' | xargs -0r cat | wc -l)"; \
	done

image: ## Build the container image with Docker or Podman: make image [VARIANT=gpu] [TAG=dragoman:cpu]
	@deploy/image/build.sh "$(VARIANT)" "$(TAG)"

# Python and platform of the images. They copy the bundled models and build the native engine, so neither is pinned.
LOCK = $(BIN)/python -m uv pip compile --quiet --generate-hashes --no-annotate --only-binary :all: --python-version 3.11 \
	--python-platform x86_64-manylinux_2_28 --no-emit-package dragoman-models --custom-compile-command "make lock" \
	$(if $(UPGRADE),--upgrade)
LOCK_EXTRAS := --extra files --extra google

lock: $(VENV)/.dev ## Pin the packages of the images, with hashes: make lock [UPGRADE=1 for the newest versions]
	@$(LOCK) pyproject.toml --extra serve-onnx $(LOCK_EXTRAS) --output-file deploy/image/cpu.lock
	@$(LOCK) pyproject.toml --extra gpu $(LOCK_EXTRAS) --output-file deploy/image/gpu.lock
	@$(LOCK) pyproject.toml --extra convert --output-file deploy/image/convert.lock
	@$(LOCK) deploy/image/tools.in --output-file deploy/image/tools.lock

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ...")'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# The native engine is optional: if the build fails, a message is printed and ONNX Runtime decodes.
NATIVE := $(wildcard $(addprefix service/native/,pyproject.toml CMakeLists.txt dragoman_native/*.py src/*))
WITHOUT_NATIVE := int8 models decode on ONNX Runtime, which is slower.

$(VENV)/.native: $(NATIVE) | $(VENV)/bin/python
	@case "$$(uname -sm)" in "Linux x86_64" | "Linux aarch64") ;; *) exit 0 ;; esac; \
	compiler=$$(command -v "$${CXX:-c++}" || command -v g++) || \
		{ echo "no C++ compiler: $(WITHOUT_NATIVE) With one (apt install g++), the native engine is built." >&2; exit 0; }; \
	echo "building the native engine ..." >&2; \
	CXX=$$compiler $(PIP) ./service/native >$@.log 2>&1 && touch $@ || \
		echo "the native engine cannot be built (see $@.log): $(WITHOUT_NATIVE)" >&2

$(VENV)/.serve: pyproject.toml deploy/models/pyproject.toml | $(VENV)/bin/python $(VENV)/.native
	@echo "installing the server (without PyTorch) ..."
	@$(PIP) --editable '.[serve-onnx]' --editable ./deploy/models
	@touch $@

$(VENV)/.bench: pyproject.toml deploy/models/pyproject.toml | $(VENV)/bin/python $(VENV)/.native
	@echo "installing the requirements of the comparison with other systems ..."
	@$(PIP) --editable '.[serve-onnx,bench]' --editable ./deploy/models
	@touch $@ $(VENV)/.serve

$(VENV)/.load: pyproject.toml deploy/models/pyproject.toml | $(VENV)/bin/python $(VENV)/.native
	@echo "installing the requirements of the load tests ..."
	@$(PIP) --editable '.[serve-onnx,load]' --editable ./deploy/models
	@touch $@ $(VENV)/.serve

# CTranslate2 is built for CUDA 12 and needs its cuBLAS; ONNX Runtime and PyTorch install the libraries of CUDA 13.
build/gpu/venv/.installed: pyproject.toml
	@echo "installing the requirements of the GPU into build/gpu/venv ..."
	@$(PYTHON) -m venv build/gpu/venv
	@build/gpu/venv/bin/python -m pip --disable-pip-version-check install --quiet \
		$(if $(WHEELS),--no-index --find-links "$(WHEELS)") --editable '.[gpu,bench,load,test]' --editable ./deploy/models nvidia-cublas-cu12
	@touch $@

$(VENV)/.dev: pyproject.toml deploy/models/pyproject.toml | $(VENV)/bin/python $(VENV)/.native
	@echo "installing the requirements of training, export and the checks ..."
	@$(PIP) --editable '.[dev]' --editable ./deploy/models
	@touch $@ $(VENV)/.serve $(VENV)/.bench $(VENV)/.load
