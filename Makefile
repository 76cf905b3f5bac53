# check: what must be green before a commit. test: the whole suite. bench: drafters against plain decoding and mlx-lm. format: the one formatter.
BIN ?= $(if $(wildcard .venv/bin/python),.venv/bin/,)
PYTHON ?= $(BIN)python3

# Linux: MLX's CPU wheel carries the reference BLAS; OpenBLAS is some 20 times faster where it is installed (README, "Linux").
LD_PRELOAD ?= $(wildcard /usr/lib/$(shell uname -m)-linux-gnu/openblas-pthread/libopenblas.so.0)
export LD_PRELOAD

PROMPTS ?= prompts.jsonl
BENCH ?= --drafters none,lookup,redrafter,auto --baselines mlx-lm --prompts $(PROMPTS)

.PHONY: check lint types size test bench format

check: lint types size

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(BIN)lint-imports

types:
	$(PYTHON) -m mypy

# Lines by file, longest last; fails where a file of the package passes 400.
size:
	@git ls-files --cached --others --exclude-standard -- 'mlxspec/*.py' 'audio/*.py' 'models/*.py' 'tui/*.py' | xargs wc -l | sort -n | tail -12
	@git ls-files --cached --others --exclude-standard -- 'mlxspec/*.py' 'audio/*.py' 'models/*.py' 'tui/*.py' | xargs wc -l \
		| awk '$$2 != "total" && $$1 > 400 { print $$2 ": " $$1 " lines; split it past 400"; bad = 1 } END { exit bad }'

test:
	$(PYTHON) -m pytest

bench:
	$(BIN)mlxspec bench $(BENCH)

format:
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
