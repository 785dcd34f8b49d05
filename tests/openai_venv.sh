#!/bin/sh
# Makes $B/openai-venv with the OpenAI SDK, which tests/e2e/test_openai_sdk.py runs against tpd. Quiet, and no
# failure, where it cannot (no network): the test then says that it was skipped. A marker keeps it from trying
# again and again.
B=${B:-build}
venv=$B/openai-venv
[ -e "$venv/tried" ] && exit 0
mkdir -p "$venv" && touch "$venv/tried"
{
    ${PYTHON:-/usr/bin/python3} -m venv "$venv" || ${PYTHON:-/usr/bin/python3} -m venv --without-pip "$venv"
    if [ -x "$venv/bin/pip" ]; then "$venv/bin/pip" install -q 'openai>=2,<3'
    else ${PYTHON:-/usr/bin/python3} -m pip --python "$venv/bin/python" install -q 'openai>=2,<3'; fi
} >"$venv/log" 2>&1 || true
exit 0
