#!/usr/bin/env bash
# Does what README says, word for word, as someone who has nothing but the source: bash tests/newcomer.sh
#
# Builds the source distribution and unpacks it. There it runs the command that installs treeviz in a fresh environment without
# any extra, then all Python of README and its commands in a shell, and fails where README says something else.
# Needs hatchling, and Python with venv. UV=FOLDER/uv installs with uv in place of pip.
set -euo pipefail
unset PYTHONPATH PYTHONHOME
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu} BROWSER=true # what "opens" a page
house=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$house" && python3 -m hatchling build -t sdist -d "$work" >/dev/null 2>&1)
tar -xzf "$work"/jax_treeviz-*.tar.gz -C "$work"
cd "$work"/jax_treeviz-*/
cmp README.md "$house/README.md"

block() { # N: the N-th block of shell commands in README
  awk -v n="$1" '/^```$/ {inside = 0} inside && seen == n; /^```sh$/ {inside = 1; seen++}' README.md
}

bin=$work/bin
mkdir "$bin"
if [ -x "${UV:-}" ]; then
  cat >"$bin/python3" <<END
#!/usr/bin/env bash
"$(command -v python3)" "\$@" --without-pip
printf '#!/bin/sh\nexec "$UV" pip "\$@" -q --python .venv/bin/python\n' >.venv/bin/pip
chmod +x .venv/bin/pip
END
  chmod +x "$bin/python3"
fi

echo '--- Install'
PATH=$bin:$PATH bash -ec "$(block 1)" >"$work/said"
head -n 3 "$work/said"
grep -q 'state · 450 leaves · 124.4 M parameters' "$work/said" && [ -s treeviz-demo.html ]
.venv/bin/python -c 'import sys, importlib.util as util; sys.exit(any(map(util.find_spec, ["optax", "matplotlib", "pytest"])))'

echo '--- Its Python'
python=$PWD/.venv/bin/python readme=$PWD/tests/readme.py shell=$(block 2)
mkdir "$work/empty" && cd "$work/empty" # so that nothing but the installed package can be imported
"$python" "$readme"
[ -s gradients.html ]
"$python" - <<'END'
import json

import numpy as np

import treeviz

assert ".venv" in treeviz.__file__, treeviz.__file__
for step in range(3):
    np.savez(f"step_{step}.npz", w=np.ones(3) * step, b=np.ones(2))
header = json.dumps({"w": {"dtype": "F32", "shape": [26000000], "data_offsets": [0, 104000000]}}).encode()
with open("model.safetensors", "wb") as file:
    file.write(len(header).to_bytes(8, "little") + header)
    file.truncate(8 + len(header) + 104_000_000)
END

echo '--- Its commands'
PATH=$(dirname "$python"):$PATH
while read -r line; do
  status=0
  bash -c "$line" >"$work/said" || status=$?
  printf '%s -> %s\n' "${line%% #*}" "$status"
  case $line in *' diff '*) [ "$status" = 1 ] ;; *) [ "$status" = 0 ] ;; esac
  [ -s "$work/said" ]
done <<<"$shell"
treeviz doctor >/dev/null
echo 'README says what is so.'
