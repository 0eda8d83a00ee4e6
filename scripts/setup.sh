#!/bin/sh
# Creates .venv from requirements.lock and downloads Spark's jars; returns at once if nothing has changed.
# Needs only Python and a JDK, and reports what is missing.
#
#   PYTHON     interpreter to use; otherwise the one .venv has, otherwise the first that fits
#   JAVA_HOME  JDK to use; otherwise the java on the PATH
set -eu
cd "$(dirname "$0")/.."

venv=.venv/bin/python
stamp=.venv/.setup-done

fail() {
  echo "setup: $*" >&2
  exit 1
}

fits() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null
}

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    fits "$PYTHON" || fail "PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13; point it at one, or unset it."
    echo "$PYTHON"
    return
  fi
  for candidate in "$venv" python3 python3.13 python3.12 python3.11; do
    if fits "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "Python 3.11, 3.12 or 3.13 is needed and none was found; install one, or name it with PYTHON=/path/to/python."
}

find_java() {
  java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  command -v "$java" || fail "Spark needs a JDK 17 or 21 and $java was not found;" \
    "install one (on Debian: apt-get install openjdk-17-jdk-headless), or set JAVA_HOME."
}

check_java() {
  version=$("$1" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' | head -n 1)
  case $version in
    17 | 17[.-]* | 21 | 21[.-]*) ;;
    *) fail "Spark needs a JDK 17 or 21 and $1 is version ${version:-unknown}; install one, or set JAVA_HOME." ;;
  esac
  # Reduced Java runtimes start, but fail inside Spark.
  "$1" --add-modules jdk.incubator.vector -version >/dev/null 2>&1 ||
    fail "$1 lacks the module jdk.incubator.vector that Spark needs; install a full JDK 17 or 21, or set JAVA_HOME."
}

# What a finished setup depends on, including its folder, because scripts in a .venv contain absolute paths.
fingerprint() {
  "$python" -c 'import sys; print(sys.version, sys.base_prefix)'
  echo "$java" "${FLOE_SPARK_JARS:-}"
  cat pyproject.toml requirements.lock scripts/setup.sh scripts/fetch_spark_jars.py
}

place_of_setup() {
  sed -n 1p "$stamp" 2>/dev/null || true
}

python_version() {
  "$1" -c 'import sys; print(sys.version)' 2>/dev/null
}

# A .venv that was created manually has no stamp and can be reused; one that was moved or is incomplete cannot.
reusable() {
  { [ ! -e "$stamp" ] || [ "$(place_of_setup)" = "$PWD" ]; } &&
    "$venv" -c 'import pip' 2>/dev/null &&
    [ "$(python_version "$venv")" = "$(python_version "$python")" ]
}

make_venv() {
  if [ -e .venv ]; then
    reusable && return
    echo "setup: .venv has another Python, comes from another folder, or is incomplete; recreating it"
    # The interpreter may be the one that is about to be removed.
    python=$("$python" -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))')
  fi
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot create virtual environments; install its venv module (on Debian: apt-get install python3-venv)."
  echo "setup: creating .venv with Python $("$python" -c 'import platform; print(platform.python_version())')"
  "$python" -m venv --clear .venv
}

install_packages() {
  requirement=.venv/uv.txt
  awk '/^uv==/ { found = 1 } found { print } found && !/\\$/ { exit }' requirements.lock >"$requirement"
  "$venv" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r "$requirement" ||
    fail "pip could not install uv; see its message above."
  echo "setup: installing the $(grep -c '^[a-z].*==' requirements.lock) packages of requirements.lock"
  "$venv" -m uv pip sync --quiet --python "$venv" --require-hashes requirements.lock ||
    fail "uv could not install the locked packages; see its message above."
  # The build backend is locked too, so there is no isolated build, which would download another one.
  "$venv" -m uv pip install --quiet --python "$venv" --no-deps --no-build-isolation --editable . ||
    fail "the package itself could not be installed; see the message above."
}

python=$(find_python)
java=$(find_java)
wanted="$(fingerprint | cksum)"
if [ "$(place_of_setup)" = "$PWD" ] && [ "$(sed -n 2p "$stamp")" = "$wanted" ]; then
  exit 0
fi

check_java "$java"
make_venv
install_packages
"$venv" scripts/fetch_spark_jars.py
# Without them, only the tests on real servers cannot run.
PYTHONPATH=tests "$venv" -m support.servers.downloads ||
  echo "setup: some test servers could not be downloaded; tests that need them will try again" >&2
python=$venv
printf '%s\n%s\n' "$PWD" "$(fingerprint | cksum)" >"$stamp"
echo "setup: ready"
