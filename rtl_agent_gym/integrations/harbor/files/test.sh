#!/bin/sh
# Grades what the agent left, for everybody who runs this task without the package rtl-agent-gym.
#
# It works in the image of tests/Dockerfile only. There, compilers, simulators and the tests that load a design run as
# the user 1001. These two folders are root's: that user reads no test program and writes no reward.
set -eu
umask 022
export PATH=/venv/bin:/usr/local/bin:/usr/bin:/bin
chmod 700 /tests /logs
test -e /opt/rtl-agent-gym/guard || { echo "no verdict: this is not the image of tests/Dockerfile"; exit 3; }
exec /usr/bin/python3 -IBc "import sys; sys.path.insert(0, '/tests')
from rtl_agent_gym.integrations.harbor.grade import main; main()"
