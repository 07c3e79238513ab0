#!/bin/sh
# Puts the harness support of this folder in its place inside the image. Run once, as root, while the image is built.
set -eu
here=/opt/rtl-agent-gym
real="$here/real"
mkdir -p "$real"
# Where a scoring sandbox gets the grader, which is no part of the image.
mkdir -p "$here/grader"
chmod 755 "$here/tool"

# Each simulator steps behind a guard that bears its name, so that no harness can start it past the guard.
for path in /usr/local/bin/iverilog /usr/local/bin/vvp /usr/bin/verilator; do
    name="${path##*/}"
    mv "$path" "$real/$name"
    ln -s "$here/tool" "$path"
done

# What decides which files a design opens. It is compiled here, as a scoring sandbox has no time for a compiler, and it
# must fit this image's C library; its policy comes from the grader. A loader that cannot load it says so, and then there
# is no image.
gcc -O2 -Wall -Wextra -Werror -shared -fPIC -o "$here/wall.so" "$here/wall.c"
test -z "$(LD_PRELOAD="$here/wall.so" RTL_GYM_WALL='||' "$real/vvp" -h 2>&1 | grep -i preload)"

# Python's share: cocotb 1 names on cocotb 2, and where the grader is found.
packages="$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
cp "$here/site/rtl_gym_site.py" "$here/site/rtl_gym.pth" "$packages/"
cp "$here/site/cocotb_runner.py" "$packages/cocotb/runner.py"
/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash "$packages/cocotb/runner.py" "$packages/rtl_gym_site.py"
