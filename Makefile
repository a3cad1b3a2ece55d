# Everything sets itself up: .venv is made when it is missing, and made again when what it is made from changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TSC := build/npm/node_modules/.bin/tsc

.PHONY: help demo pendulum feedforward controller identification observer youla lightning skorch pictures test test-slow lint types bench docs wheel release-check clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "lben needs Python 3.10 or later: make PYTHON=...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all]'
	touch $@

demo: $(READY)  ## train a bounded and an unbounded network on embedded MNIST and compare them
	$(BIN)/python examples/demo.py

pendulum: $(READY)  ## learn a pendulum by a contracting and by a free neural ODE, and draw build/pendulum.png
	$(BIN)/python examples/pendulum.py

feedforward: $(READY)  ## certify plain and residual networks of growing depth, and draw build/feedforward.png
	$(BIN)/python examples/feedforward.py

controller: $(READY)  ## train a controller that cannot break its limits, and draw build/controller.png
	$(BIN)/python examples/controller.py

identification: $(READY)  ## learn an oscillator by recurrent networks, attack them, and draw build/identification.png
	$(BIN)/python examples/identification.py

observer: $(READY)  ## learn an observer of a reaction-diffusion equation, and draw build/observer.png
	$(BIN)/python examples/observer.py

youla: $(READY)  ## learn to control an unstable system by policies that all stabilise it, and draw build/youla.png
	$(BIN)/python examples/youla.py

lightning: $(READY)  ## train a network with Lightning, and prove its bound
	$(BIN)/python examples/lightning_digits.py

skorch: $(READY)  ## train a network with skorch, and prove its bound
	$(BIN)/python examples/skorch_digits.py

pictures: $(READY)  ## make the pictures and pages of the README again, over those in docs: some minutes
	for example in demo pendulum feedforward controller identification observer youla; do $(BIN)/python examples/$$example.py --docs || exit 1; done
	$(BIN)/python scripts/play.py

test: $(READY)  ## run the tests, in two processes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow'

test-slow: $(READY)  ## run the checks that take minutes
	$(BIN)/python -m pytest -m slow

lint: $(READY)  ## check style, formatting and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(READY)  ## check types, also those of the pages' JavaScript where npm can install TypeScript
	$(BIN)/mypy
	@if test -x $(TSC) || npm install --silent --no-save --no-package-lock --prefix build/npm typescript@7.0.2 2>/dev/null; \
	then $(TSC) --project src/lben/export/page && echo "The types of the pages' JavaScript are right."; \
	else echo "The types of the pages' JavaScript were not checked: npm could not install TypeScript."; fi

bench: $(READY)  ## measure speed ratios and write benchmarks/results
	$(BIN)/python benchmarks/run.py

docs: $(READY)  ## build the site, offline and with every warning an error, into build/site
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/site

wheel: $(READY)  ## build the source archive and the wheel, into dist
	rm -rf dist
	$(BIN)/python -m build --quiet

release-check: $(READY)  ## build what is published, and try it in clean environments: many minutes
	$(BIN)/python scripts/release_check.py

clean:  ## remove everything that was made
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
