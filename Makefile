# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ZEPHYR := .build/zephyr

# The tests start hundreds of processes, so Python must keep compiled modules, even if the environment forbids that.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test tests collected test-long test-stress test-containers models histories chaos fuzz mutants check types schemas vectors drawing clean bench bench-jobs bench-actors bench-drain bench-startup bench-cli bench-queues bench-actor-creation bench-pool bench-hints bench-scaler bench-environments bench-gangs bench-zephyr bench-backends example-gang example-autoscale zephyr ray iris simulate simulate-variants scale

# virtualenv rather than venv: a Debian without python3-venv has no ensurepip.
$(VENV)/bin/python:
	$(PYTHON) -m pip install --quiet --target .build/virtualenv virtualenv
	PYTHONPATH=.build/virtualenv $(PYTHON) -m virtualenv --quiet $(VENV)

# Python compiles the modules that are imported, at their first import. To compile all takes longer than to install all.
INSTALL := $(BIN)/pip install --quiet --no-compile --editable

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) '.[demo]'
	touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) '.[dev,demo]'
	touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/python examples/demo/main.py

# A gang on two slices trains with JAX over four processes, loses a host and continues: two minutes. JAX is large (370 MB),
# so it has an environment of its own.
GANG := .build/gang

$(GANG)/.ready: pyproject.toml | $(VENV)/bin/python
	PYTHONPATH=.build/virtualenv $(PYTHON) -m virtualenv --quiet $(GANG)
	$(GANG)/bin/pip install --quiet jax --editable .
	touch $@

example-gang: $(GANG)/.ready
	$(GANG)/bin/python examples/gang/main.py

# A pool gets and loses machines as its work comes and goes: half a minute. It draws .build/autoscale.png.
example-autoscale: $(VENV)/.demo
	mkdir -p .build
	$(BIN)/python examples/autoscale/main.py --output .build/autoscale.png

# Lint, types and layers, and at the same time every test that is neither slow nor a campaign. Seeds are the same each time.
# There are more workers than cores because many tests wait.
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

test: $(VENV)/.dev
	@echo "lint, types and some 7,050 tests: four to five minutes on two idle cores, longer beside other work"
	$(MAKE) --jobs=2 check tests

tests: collected
	$(PYTEST) -m 'not slow and not campaign'

# pytest rewrites and caches the test files once, because otherwise each worker would do it. The workers report errors.
collected: $(VENV)/.dev
	-$(BIN)/python -m pytest --collect-only --quiet >/dev/null

# CI runs this after `make test`, 25 to 40 minutes on two cores: types, slow tests, more fixed seeds and malformed bytes,
# and the release of Zephyr that needs no newer Python. Fresh seeds are for `make simulate` and `make fuzz`.
test-long: $(VENV)/.dev $(ZEPHYR)/old/.ready
	$(MAKE) types
	$(PYTEST) -m 'slow and not campaign'
	$(PYTEST) --timeout 900 --hypothesis-profile=long -m hypothesis tests/fuzz tests/unit tests/histories
	$(BIN)/python -m tests.simulation --first 1001 --seeds 120
	$(BIN)/python -m tests.simulation.actors --first 1001 --seeds 40
	$(BIN)/python -m tests.simulation.gangs --first 1004 --seeds 9
	$(BIN)/python -m tests.simulation.queues --first 1001 --seeds 200
	$(BIN)/python -m tests.simulation.machines --first 1001 --seeds 12
	$(ZEPHYR)/old/bin/python -m pytest tests/zephyr

# The tests of `make test`, again and again, beside busy loops: no test may fail by chance.
STRESS_ROUNDS ?= 10
STRESS_LOOPS ?= 6
test-stress: $(VENV)/.dev
	$(BIN)/python tests/stress.py $(STRESS_ROUNDS) $(STRESS_LOOPS) -- $(PYTEST) -q -m 'not slow and not campaign'

# Longer recordings than those in `make test` and `make test-long`, on every store: 10 minutes.
histories: $(VENV)/.dev
	$(BIN)/python -m pytest -m campaign tests/histories

# Larger scopes of the models than those in `make test`: a few minutes.
models: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow tests/model

# Three minutes of havoc on each kind of storage, with real processes; see docs/chaos.md.
chaos: $(VENV)/.dev
	$(BIN)/python -m pytest -m campaign -s tests/chaos

# Tasks in real containers, with podman (`apt-get install podman`) or docker; the image is built from this host's files.
test-containers: $(VENV)/.dev
	$(BIN)/python -m pytest tests/containers

# A fleet of 200 in virtual time against the limits of GCS; docs/scale.md has larger ones.
scale: $(VENV)/.dev
	$(BIN)/python -m benchmarks.scale

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# mypy also over tests, benches and examples. Scripts import the modules beside them, so each of their folders is a root.
# Tests replace names in the modules that import them, so here imported names count as a module's own.
TYPES := $(BIN)/mypy --implicit-reexport --cache-dir .mypy_cache/types
BENCH_MODULES := benchmarks/cli.py benchmarks/queues.py benchmarks/scale
SCRIPT_FOLDERS := tests/zephyr $(patsubst %/,%,$(sort $(dir $(wildcard examples/*/*.py)))) examples/project/src

types: $(VENV)/.dev
	$(TYPES) --exclude '^tests/(zephyr|acceptance/seed_programs)/' tests $(BENCH_MODULES)
	MYPYPATH=benchmarks:benchmarks/peers $(TYPES) $(filter-out $(BENCH_MODULES),$(wildcard benchmarks/*.py)) benchmarks/peers
	set -e; for folder in $(SCRIPT_FOLDERS); do MYPYPATH=$$folder $(TYPES) $$folder; done

# Figures: each bench prints one JSON line on stdout, and notes on stderr. The peers have an environment of their own.
BENCH := .build/bench

$(BENCH)/.ready: | $(VENV)/bin/python
	PYTHONPATH=.build/virtualenv $(PYTHON) -m virtualenv --quiet $(BENCH)
	$(BENCH)/bin/pip install --quiet 'ray[default]'
	touch $@

$(BENCH)/.actors: $(BENCH)/.ready
	$(BENCH)/bin/pip install --quiet distributed numpy
	touch $@

bench: bench-jobs bench-drain bench-startup bench-cli bench-queues bench-actor-creation bench-actors bench-gangs

bench-jobs: $(VENV)/.demo $(BENCH)/.ready
	@$(BIN)/python benchmarks/jobs.py --ray $(BENCH)/bin/python

bench-actors: $(VENV)/.dev $(BENCH)/.actors
	@$(BIN)/python benchmarks/actors.py --ray $(BENCH)/bin/python --dask $(BENCH)/bin/python

bench-drain: $(VENV)/.demo
	@$(BIN)/python benchmarks/drain.py

bench-startup: $(VENV)/.demo
	@$(BIN)/python benchmarks/startup.py

bench-cli: $(VENV)/.dev
	@$(BIN)/python -m benchmarks.cli

bench-actor-creation: $(VENV)/.demo $(BENCH)/.ready
	@$(BIN)/python benchmarks/actor_creation.py --ray $(BENCH)/bin/python

bench-pool: $(VENV)/.demo $(BENCH)/.ready
	@$(BIN)/python benchmarks/pool.py --ray $(BENCH)/bin/python

bench-environments: $(VENV)/.dev $(BENCH)/.ready
	@$(BIN)/python benchmarks/environments.py --ray $(BENCH)/bin/python

bench-gangs: $(VENV)/.demo $(BENCH)/.ready
	@$(BIN)/python benchmarks/gangs.py --ray $(BENCH)/bin/python

bench-scaler: $(VENV)/.demo
	@$(BIN)/python benchmarks/scaler.py

bench-hints: $(VENV)/.demo
	@$(BIN)/python benchmarks/hints.py

# Real Zephyr, unchanged, on this project's client: two releases, each with a Python that it supports. About 700 MB.
ZEPHYR_OLD := 0.2.1.dev202605292307
ZEPHYR_NEW := 0.2.227.dev40316220070
PYTHON312 ?= $(or $(shell pyenv prefix 3.12 2>/dev/null),/usr)/bin/python3.12
ZEPHYR_ENVIRONMENT := PYTHONPATH=.build/virtualenv $(PYTHON) tests/zephyr/environment.py

$(ZEPHYR)/old/.ready: pyproject.toml | $(VENV)/bin/python
	$(ZEPHYR_ENVIRONMENT) $(ZEPHYR)/old $(ZEPHYR_OLD)
	touch $@

$(ZEPHYR)/new/.ready: pyproject.toml | $(VENV)/bin/python
	$(ZEPHYR_ENVIRONMENT) $(ZEPHYR)/new $(ZEPHYR_NEW) --python $(PYTHON312)
	touch $@

# Everything on Ray, against a real Ray that starts and ends with the tests: 300 MB. Its actors use uvloop if it is installed.
RAY := .build/ray

$(RAY)/.ready: pyproject.toml | $(VENV)/bin/python
	PYTHONPATH=.build/virtualenv $(PYTHON) -m virtualenv --quiet $(RAY)
	$(RAY)/bin/pip install --quiet 'ray[default]==2.60.*' uvloop hypothesis pytest pytest-asyncio pytest-timeout --editable '.[agent,demo]'
	touch $@

ray: $(RAY)/.ready
	$(RAY)/bin/python -m pytest tests/on_ray

# Everything on Iris, against its own local controller: 550 MB, with Python 3.12.
IRIS := .build/iris
FINELOG := 0.2.71.dev40003900277

$(IRIS)/.ready: pyproject.toml | $(VENV)/bin/python
	PYTHONPATH=.build/virtualenv $(PYTHON) -m virtualenv --quiet --python $(PYTHON312) $(IRIS)
	$(IRIS)/bin/pip install --quiet 'marin-iris[controller]' marin-finelog-server==$(FINELOG) hypothesis pytest pytest-asyncio pytest-timeout --editable '.[iris]'
	touch $@

iris: $(IRIS)/.ready
	$(IRIS)/bin/python -m pytest tests/on_iris

# The published Zephyr, with marin-fray, for comparison.
$(ZEPHYR)/published/.ready: | $(VENV)/bin/python
	$(ZEPHYR_ENVIRONMENT) $(ZEPHYR)/published $(ZEPHYR_NEW) --python $(PYTHON312) --published
	touch $@

zephyr: $(ZEPHYR)/old/.ready $(ZEPHYR)/new/.ready
	$(ZEPHYR)/old/bin/python -m pytest tests/zephyr
	$(ZEPHYR)/new/bin/python -m pytest tests/zephyr

bench-zephyr: $(ZEPHYR)/new/.ready $(ZEPHYR)/published/.ready
	@$(ZEPHYR)/new/bin/python benchmarks/pipelines.py --peer $(ZEPHYR)/published/bin/python

# One program on threads, on agents and on Ray, side by side.
bench-backends: $(ZEPHYR)/new/.ready
	@$(ZEPHYR)/new/bin/python benchmarks/backends.py

$(BENCH)-queues/.ready: | $(VENV)/bin/python
	PYTHONPATH=.build/virtualenv $(PYTHON) -m virtualenv --quiet $(BENCH)-queues
	$(BENCH)-queues/bin/pip install --quiet huey persist-queue
	touch $@

bench-queues: $(VENV)/.dev $(BENCH)-queues/.ready
	@$(BIN)/python -m benchmarks.queues --peers $(BENCH)-queues/bin/python

# Simulated clusters under every fault, 20 minutes on two idle cores; see docs/simulation.md.
simulate: $(VENV)/.dev
	$(BIN)/python -m tests.simulation --cpu-seconds 1800
	$(BIN)/python -m tests.simulation.actors --cpu-seconds 300
	$(BIN)/python -m tests.simulation.gangs --cpu-seconds 600
	$(BIN)/python -m tests.simulation.queues --cpu-seconds 300
	$(BIN)/python -m tests.simulation.machines --cpu-seconds 300

# Says which invariant catches each deliberately broken variant of the code, and after how many seeds.
simulate-variants: $(VENV)/.dev
	$(BIN)/python -m tests.simulation.strength

# Ten minutes of fresh malformed bytes for every reader; see docs/simulation.md.
fuzz: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --timeout 1200 --hypothesis-profile=fresh tests/fuzz

# Mutants of the decisions and of what calls them that no quick test notices; see docs/simulation.md.
mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants

schemas: $(VENV)/.dev
	$(BIN)/python -m fray_layouts.schemas layouts/schemas

# Writes what the code makes of fixed inputs, for the tests of clients in other languages.
vectors: $(VENV)/.dev
	$(BIN)/python -m tests.vectors layouts/vectors

# The drawing in ARCHITECTURE.md, from docs/architecture.txt.
drawing: $(VENV)/.dev
	$(BIN)/python docs/draw.py docs/architecture.txt docs/architecture.svg

clean:
	rm -rf $(VENV) .build
