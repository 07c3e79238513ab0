#!/bin/sh
# Makes the system of the image in /rootfs out of packages alone, so that it does not depend on the base of the build.
#
#   rootfs.sh PACKAGE...
set -eu
list="$(echo "$@" | tr ' ' ,)"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
# A build without the right to make device files (rootless Docker) gets plain files that the packages' scripts can use.
mmdebstrap --mode=root --variant=minbase --include="$list" --dpkgopt=force-unsafe-io \
    --setup-hook='mkdir -p "$1/etc/apt/preferences.d" && cp /build/pins "$1/etc/apt/preferences.d/rtl-agent-gym"' \
    --setup-hook='mkdir -p "$1/dev" && cd "$1/dev" && for n in null zero random urandom; do [ -e $n ] || { : > $n && chmod 666 $n; }; done' \
    trixie /rootfs - <<END
deb [check-valid-until=no signed-by=$keys] $(cat /build/debian) trixie main
END
cd /rootfs
rm -rf dev/* run/* tmp/* var/tmp/* var/log/* var/cache/* var/lib/apt/lists/* etc/apt/preferences.d/rtl-agent-gym \
    etc/dpkg/dpkg.cfg.d/99mmdebstrap etc/apt/apt.conf.d/99mmdebstrap etc/hostname etc/resolv.conf
mkdir -p var/cache/apt/archives/partial var/lib/apt/lists/partial var/log/apt
echo "deb $(cat /build/mirror) trixie main" > etc/apt/sources.list
# Each container runs as users of its own, whom its first process names in /var/lib/extrausers.
sed -i -E 's/^(passwd|group):(.*files)/\1:\2 extrausers/' etc/nsswitch.conf
mkdir -p code home/agent rundir src var/lib/extrausers
# No program changes users, and builders that keep owners and those that do not leave the same.
chown -Rh 0:0 .
find . -xdev -perm /6000 -exec chmod ug-s {} +
# What this build took instead of a recorded version.
dpkg-query --root=/rootfs -W -f '${Package} ${Version}\n' | LC_ALL=C sort -u > /build/packages
echo "Debian packages that differ from packages.lock: $(grep -v '^#' /build/packages.lock | LC_ALL=C sort -u \
    | LC_ALL=C comm -13 - /build/packages | wc -l)"
