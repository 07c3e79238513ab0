#!/bin/sh
# Pins Debian's packages in a build stage: to the recorded day of Debian's archive of snapshots, or, where that cannot be
# reached, to the versions of packages.lock as far as the mirror of this base still has them. A version that the mirror
# no longer has does not fail the build: apt takes the mirror's, and the image gets another digest.
#
#   debian.sh SNAPSHOT    the archive's address for that day
#
# Writes /build/debian (the address to install from), /build/pins (apt's preferences) and apt's own configuration.
set -eu
snapshot="$1"
apt-get update -qq
mirror="$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
mkdir -p /build/probe/partial
printf 'deb [check-valid-until=no signed-by=%s] %s trixie main\n' "$keys" "$snapshot" > /build/probe.list
if [ -n "$snapshot" ] && apt-get update -qq -o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o Dir::State::lists=/build/probe \
    -o Dir::Etc::sourcelist=/build/probe.list -o Dir::Etc::sourceparts=- -o APT::Update::Error-Mode=any 2> /dev/null; then
    echo "Debian packages: as of $snapshot"
else
    echo "Debian packages: $snapshot cannot be reached; the recorded versions, as far as $mirror has them"
    snapshot="$mirror"
fi
rm -rf /build/probe /build/probe.list
echo "$snapshot" > /build/debian
# Above 1000, a pin also replaces a newer version that the base came with.
sed -nE 's/^([a-z0-9][^ #]*) (.+)$/Package: \1\nPin: version \2\nPin-Priority: 1001\n/p' /build/packages.lock > /build/pins
cp /build/pins /etc/apt/preferences.d/rtl-agent-gym
rm -f /etc/apt/sources.list.d/*
{
    printf 'deb [check-valid-until=no signed-by=%s] %s trixie main\n' "$keys" "$snapshot"
    # Debian 13 has Icarus 12. The source of 13.0 is in Debian testing's pool.
    printf 'deb-src [check-valid-until=no signed-by=%s] %s forky main\n' "$keys" "$snapshot"
} > /etc/apt/sources.list
echo "$mirror" > /build/mirror
