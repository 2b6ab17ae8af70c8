# Three commands do all: `make demo`, `make demo-llm` and `make test`. They need python3 (3.10 or
# later, with venv) and PyPI; no C compiler and no root. All paths are relative, so the checkout may
# lie anywhere.

PYTHON ?= python3
PY := .venv/bin/python
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo demo-llm test lint types clean

demo: .venv/demo.done  ## compile a real model, verify it and race it against ONNX Runtime
	$(PY) examples/demo.py

demo-llm: .venv/llm.done  ## compile a language model from its GGUF file and ask it something
	$(PY) examples/llm.py

test: .venv/dev.done lint  ## ruff and all tests
	$(PY) -m pytest -n 2 --dist loadfile

lint: .venv/dev.done
	$(PY) -m ruff check
	$(PY) -m ruff format --check

types: .venv/dev.done
	$(PY) -m mypy

clean:  ## remove the environment and what tools left; models and artifacts stay in the cache
	rm -rf .venv build dist graphc.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "graphc needs python3 >= 3.10; name one with make PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -m venv .venv || \
	  { echo "python3 has no venv: on Debian and Ubuntu, apt install python3-venv" >&2; exit 2; }

.venv/demo.done: pyproject.toml constraints.txt | $(PY)
	@echo "installing graphc and what it needs into .venv (about 250 MB from PyPI)"
	$(INSTALL) -e .
	@echo "building the C library that artifacts are linked with (half a minute, once)"
	$(PY) -m graphc.codegen.link
	@touch $@

.venv/llm.done: .venv/demo.done
	@echo "installing what reads GGUF files and text into .venv (about 700 MB from PyPI)"
	$(INSTALL) -e '.[llm,torch]'
	@touch $@

.venv/dev.done: .venv/demo.done
	@echo "installing graphc with its test tools into .venv (about 700 MB from PyPI)"
	$(INSTALL) -e '.[dev]'
	@touch $@
