# What learners, authors and CI run. Needs Python 3.11 or newer, git and make; `make help` lists it.
# The newest Python that runs, also among those that pyenv has: a shim of pyenv's may be on the PATH
# and exit with 127.
ifndef PYTHON
PYTHON := $(shell for version in 3.14 3.13 3.12; do \
  for python in python$$version "$$(pyenv root 2>/dev/null)"/versions/$$version*/bin/python; do \
    "$$python" -c "" 2>/dev/null && { echo "$$python"; exit; }; \
  done; done; echo python3)
endif
PYTEST_ARGS ?=
LAB_ARGS ?=
# Extras of pyproject.toml for `make lab`; on a TPU VM: make lab EXTRAS=lab,tpu
EXTRAS ?= lab
# Without this setting JupyterLab asks whether to show news, even if it has no address for them.
QUIET := {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}
# JupyterLab refuses to run as root unless it is told to.
ROOT := $(if $(filter 0,$(shell id -u)),--allow-root)

# Learners get an environment without libtpu: where there is no TPU, JAX would look for one at
# every start. The tests compile for TPUs and so need it.
LAB := .venv
TEST := .venv-test
COLAB := .venv-colab
BROWSER := .venv-browser
COLAB_JAX := 0.7.2
COLAB_OTHERS := numpy==2.1.3 ipython==7.34.0
# Kernels that serve and train models, to compare ours with: wheels without what they depend on,
# and the few packages that their modules cannot be imported without.
PRODUCTION := tpu-inference==0.32.0 tokamax==0.0.17
AROUND := qwix==0.1.8 flax==0.12.12 msgpack==1.2.4 treescope==0.1.10 rich==15.0.0 optax==0.2.8 \
  einshape==1.0 sympy==1.14.0 mpmath==1.3.0
AROUND_WHOLE := pydantic==2.14.4 immutabledict==4.3.1 absl-py==2.5.1 tqdm==4.70.1
# Versions in between; test and test-colab run both ends. 0.10.2 is the newest for Python 3.11.
MATRIX := 0.8.3 0.9.2 0.10.2 0.11.0 0.11.2

CHECKED := puzzles tests diagrams docs .ci/release.py pytest_pallas_puzzles.py
PYTEST := -m pytest -n 2 --dist loadscope --no-loadscope-reorder --durations=15 $(PYTEST_ARGS)

.DEFAULT_GOAL := help
.PHONY: help python env environments lab copy quick test graduate test-colab test-matrix test-browser lint build verify verdicts receipts mutants bench size steps examine-bench release clean

help: ## list the targets
	@awk -F ':.*## |##@ ' '/^##@ / { printf "%s%s\n", line, $$2; line = "\n" } \
	  /^[a-z-]+:.*## / { printf "  %-14s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ for learners

lab: $(LAB)/.installed-$(EXTRAS) copy ## open the puzzles in JupyterLab, on copies in my/
	@mkdir -p $(LAB)/share/jupyter/lab/settings
	@echo '$(QUIET)' > $(LAB)/share/jupyter/lab/settings/overrides.json
	@echo "Opening basics.ipynb; your copies of all notebooks are in my/. Press Ctrl+C to stop."
	cd my && ../$(LAB)/bin/python -m jupyterlab $(ROOT) basics.ipynb $(LAB_ARGS)

# A copy is never overwritten: it may hold solutions. Its diagrams are copies of the clone's, so that
# they show without a network: JupyterLab serves no file outside of its folder, also by a link.
copy: ## copy notebooks that my/ does not have yet
	@mkdir -p my
	@rm -rf my/diagrams && cp -R diagrams my/diagrams
	@for notebook in *.ipynb; do \
	  if [ ! -e "my/$$notebook" ]; then \
	    sed -E 's#https://raw\.githubusercontent\.com/[^/]+/[^/]+/[^/]+/diagrams/#diagrams/#g' \
	      "$$notebook" > "my/$$notebook" && echo "my/$$notebook is new"; \
	  fi; \
	done

##@ for authors of puzzles

python: ## print the newest Python that runs, which the environments get
	@echo $(PYTHON)

env: $(TEST)/.installed ## the environment of authors and tests, in one to three minutes

quick: export JAX_PLATFORMS = cpu
quick: $(TEST)/.installed ## check what differs from the last commit: NAMES="row_sum" for puzzles
	@$(TEST)/bin/python tests/quick.py $(NAMES)

verify: $(TEST)/.installed ## prove every puzzle that is not proven yet: NAMES="add_ten row_sum" for some
	JAX_PLATFORMS=cpu $(TEST)/bin/python -m puzzles verify $(NAMES)

build: $(TEST)/.installed ## draw the diagrams, write the notebooks and README's table
	JAX_PLATFORMS=cpu $(TEST)/bin/python docs/draw.py
	JAX_PLATFORMS=cpu $(TEST)/bin/python -m puzzles build

mutants: $(TEST)/.installed ## judge every small change of every solution: NAMES="row_sum" for some
	JAX_PLATFORMS=cpu $(TEST)/bin/python tests/mutants.py $(NAMES)

##@ for this repository

environments: $(TEST)/.installed $(COLAB)/.installed $(BROWSER)/.installed ## all that CI needs

# The tests start some hundred Pythons: none should compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# The same small kernels are compiled again and again, by one test after another: keep them.
test graduate test-colab test-jax-% test-browser quick verify verdicts mutants: export JAX_COMPILATION_CACHE_DIR = $(CURDIR)/.jax-cache
test graduate test-colab test-jax-% test-browser quick verify verdicts mutants: export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS = 0
test graduate test-colab test-jax-% test-browser quick verify verdicts mutants: export JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES = -1
# Two processes at a time: NumPy's products would start two threads in each.
test graduate test-colab test-jax-% test-browser quick verify verdicts mutants: export OPENBLAS_NUM_THREADS = 1

# On other JAX versions every solution, and a sixth of what `make test` takes of mistakes, other
# answers and samples; not the tests to which JAX makes no difference.
test-colab test-jax-%: export PUZZLES_SHARE = 6
OLDER := -m 'not newest'

test: $(TEST)/.installed lint ## everything CI runs, on the newest JAX
	$(TEST)/bin/python $(PYTEST)
	@PYTHONPATH=. JAX_PLATFORMS=cpu $(TEST)/bin/python tests/tried.py

graduate: export PUZZLES_GRADUATE = 1
graduate: $(TEST)/.installed $(COLAB)/.installed .production/.installed ## all of what `make test` samples: production, fuzz; wheels and forks
	$(TEST)/bin/python $(PYTEST) -m graduate
	$(COLAB)/bin/python -m pytest tests/author/test_wheel.py

test-colab: $(COLAB)/.installed ## the same tests on the JAX that Colab has
	$(COLAB)/bin/python $(PYTEST) $(OLDER)

test-matrix: test-colab $(MATRIX:%=test-jax-%) test ## the same tests on the oldest JAX, the newest and those between

# test-jax-0.11.2 runs on that version, test-jax-newest on the newest release or release candidate.
test-jax-%: .venv-jax-%/.installed
	.venv-jax-$*/bin/python $(PYTEST) $(OLDER)

test-browser: $(BROWSER)/.installed ## the notebook and diagrams in Chromium; screenshots in tests/browser
	$(BROWSER)/bin/python -m pytest tests/browser -W default $(PYTEST_ARGS)

lint: $(TEST)/.installed ## ruff and mypy
	$(TEST)/bin/ruff check $(CHECKED)
	$(TEST)/bin/ruff format --check $(CHECKED)
	$(TEST)/bin/mypy

verdicts: $(TEST)/.installed ## judge every mistake and alternative, write tests/verdicts: NAMES="row_sum" for some
	JAX_PLATFORMS=cpu $(TEST)/bin/python tests/verdicts.py $(NAMES)

receipts: $(TEST)/.installed ## write tests/receipts.txt, the references' costs at production shapes: NAMES for some
	JAX_PLATFORMS=cpu $(TEST)/bin/python tests/receipts.py $(NAMES)

bench: $(TEST)/.installed ## time every check, and the import; cycles next to JAX's kernels
	JAX_PLATFORMS=cpu PYTHONPATH=. $(TEST)/bin/python tests/cycles.py
	JAX_PLATFORMS=cpu $(TEST)/bin/python tests/bench.py

size: $(TEST)/.installed ## lines of each package, private names and patches of JAX, with their limits
	JAX_PLATFORMS=cpu PYTHONPATH=. $(TEST)/bin/python tests/size.py

steps: $(TEST)/.installed ## what a grid step costs: libtpu's estimate and the receipt's price
	JAX_PLATFORMS=cpu $(TEST)/bin/python tests/steps.py

examine-bench: $(TEST)/.installed .production/.installed ## examine kernels of JAX, tokamax and tpu-inference, and planted faults
	JAX_PLATFORMS=cpu $(TEST)/bin/python tests/examine_bench.py

release: $(TEST)/.installed ## make a release, as RELEASING.md says: VERSION=0.3.0
	$(TEST)/bin/python .ci/release.py $(VERSION)

clean: ## remove environments and caches; my/ stays
	rm -rf $(LAB) $(TEST) $(COLAB) $(BROWSER) .venv-jax-* .production .jax-cache .proofs build dist .mypy_cache .pytest_cache .ruff_cache
	find puzzles tests -name __pycache__ -prune -exec rm -rf {} +

# Prints the Python and refuses one that is too old. $(1): what is installed.
define environment
	@$(PYTHON) -c 'import sys; v = sys.version_info; v < (3, 11) and sys.exit(f"Pallas Puzzles needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.13")'
	@echo "$$($(PYTHON) --version) at $$(command -v $(PYTHON)): installing $(1), in one to three minutes"
endef

# An installation is renewed when pyproject.toml changes. Python compiles what is imported, a tenth
# of what is installed: to compile all of it takes half as long as the rest.
$(LAB)/.installed-$(EXTRAS): pyproject.toml
	$(call environment,JAX and JupyterLab)
	$(PYTHON) -m venv $(LAB)
	$(LAB)/bin/python -m pip install -q --no-compile -e '.[$(EXTRAS)]'
	@touch $@

$(TEST)/.installed: pyproject.toml
	$(call environment,JAX with libtpu and test tools)
	$(PYTHON) -m venv $(TEST)
	$(TEST)/bin/python -m pip install -q --no-compile -e '.[test,tpu]'
	@touch $@

.production/.installed: Makefile | $(TEST)/.installed
	rm -rf .production
	$(TEST)/bin/python -m pip install -q --no-deps --no-compile --target .production $(PRODUCTION) $(AROUND)
	$(TEST)/bin/python -m pip install -q --no-compile --target .production $(AROUND_WHOLE)
	@touch $@

$(BROWSER)/.installed: pyproject.toml
	$(PYTHON) -m venv $(BROWSER)
	$(BROWSER)/bin/python -m pip install -q --no-compile -e '.[browser]'
	@touch $@

.PRECIOUS: .venv-jax-%/.installed .venv-jax-newest/.installed
.venv-jax-newest/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-jax-newest
	.venv-jax-newest/bin/python -m pip install -q --no-compile -e '.[test,tpu]'
	.venv-jax-newest/bin/python -m pip install -q --no-compile --pre -U 'jax[tpu]'
	@touch $@

.venv-jax-%/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-jax-$*
	.venv-jax-$*/bin/python -m pip install -q --no-compile -e '.[test]' 'jax[tpu]==$*' absl-py
	@touch $@

$(COLAB)/.installed: pyproject.toml
	$(call environment,the versions that Colab has)
	$(PYTHON) -m venv $(COLAB)
	$(COLAB)/bin/python -m pip install -q --no-compile -e '.[test]' 'jax[tpu]==$(COLAB_JAX)' $(COLAB_OTHERS)
	@touch $@
