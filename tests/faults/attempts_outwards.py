"""Attempts to leave the container and to reach a network."""

from __future__ import annotations

from .attempts import Attempt, python, syscall

ROOT = ("--user", "0")
ADMIN = (
    *ROOT,
    "--cap-add",
    "SYS_ADMIN",
    "--security-opt",
    "seccomp=unconfined",
    "--security-opt",
    "apparmor=unconfined",
)
UNFILTERED = ("--security-opt", "seccomp=unconfined")

LEAVING = (
    Attempt("host's file by path", "leave", "cat @SECRET_FILE@ /proc/1/root@SECRET_FILE@ 2>&1", ("-v", "@MOUNT@")),
    Attempt(
        "host's file through /proc of any process",
        "leave",
        "for p in /proc/[0-9]*; do cat $p/root@SECRET_FILE@ $p/cwd/@SECRET_FILE@; done 2>&1",
        (*ROOT, "-v", "@MOUNT@"),
    ),
    Attempt("namespaces of its own", "leave", "unshare -Urm true && echo won", ADMIN),
    Attempt("a mount", "leave", "mkdir -p /tmp/m; mount -t tmpfs none /tmp/m && echo won", ADMIN),
    Attempt("the namespaces of process 1", "leave", "nsenter -t 1 -a true && echo won", ADMIN),
    Attempt("chroot", "leave", python("import os; os.chroot('/tmp'); print('won')"), ROOT),
    Attempt("a device node of a disk", "leave", "mknod /tmp/disk b 8 0 && echo won", ROOT),
    Attempt("root by setuid", "leave", python("import os; os.setuid(0); print('won')"), ROOT),
    Attempt("root by su", "leave", "su -c 'echo won' root </dev/null", ROOT),
    Attempt("a program of root", "leave", "cp /bin/bash /tmp/b; chown 0 /tmp/b && chmod 4755 /tmp/b && echo won", ROOT),
    Attempt("kernel module", "leave", syscall(313, "-1", "b''", "0"), None),
    Attempt("BPF program", "leave", syscall(321, "5", "0", "0"), ADMIN),
    Attempt(
        "a file by handle", "leave", syscall(304, "-1", "b'x' * 64", "0"), (*ADMIN, "--cap-add", "DAC_READ_SEARCH")
    ),
    Attempt("io_uring, past the filter", "leave", syscall(425, "4", "0"), None),
    Attempt(
        "the kernel's settings",
        "leave",
        "for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /proc/sys/vm/drop_caches; do : >> $f && echo won; "
        "done",
        (*ROOT, "--security-opt", "systempaths=unconfined"),
    ),
    Attempt(
        "its own limits",
        "leave",
        "for f in $(find /sys/fs/cgroup -name memory.limit_in_bytes -o -name memory.max -o -name release_agent "
        "-o -name pids.max -o -name cgroup.procs | head -50); do : >> $f && echo won; done",
        ADMIN,
        before="for d in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,bind,rw $d; done 2>/dev/null",
    ),
    Attempt("the system's files", "leave", "for d in /usr/bin /etc /venv/bin /; do touch $d/x && echo won; done", ROOT),
    Attempt(
        "the daemon's socket",
        "leave",
        python("""
            import glob, socket
            for path in glob.glob('/run/**/*.sock', recursive=True) + glob.glob('/var/run/**/*.sock', recursive=True):
                try:
                    socket.socket(socket.AF_UNIX).connect(path)
                    print('won', path)
                except OSError as error:
                    print(path, error)
        """),
        ("--user", "0", "-v", "@SOCKET@:/run/host.sock"),
    ),
    Attempt("a user namespace by clone", "leave", syscall(56, "0x10000000 | 17", "0", "0", "0", "0"), ADMIN),
    Attempt("clone3, whose flags no filter sees", "leave", syscall(435, "0", "0"), UNFILTERED),
    Attempt("another's namespace by a descriptor", "leave", syscall(308, "-1", "0"), UNFILTERED),
    Attempt("another's descriptor", "leave", syscall(438, "-1", "0", "0"), UNFILTERED),
    Attempt("page faults", "leave", syscall(323, "1"), ADMIN),
    Attempt("performance counters", "leave", syscall(298, "0", "0", "-1", "-1", "0"), UNFILTERED),
    Attempt("a key of the kernel's", "leave", syscall(248, "b'user'", "b'x'", "b'y'", "1", "-3"), UNFILTERED),
    Attempt("a mount by a descriptor", "leave", syscall(430, "b'tmpfs'", "0"), ADMIN),
    Attempt("a copy of a mount", "leave", syscall(428, "-100", "b'/'", "0"), UNFILTERED),
    Attempt("fixed addresses", "leave", syscall(135, "0x40000"), UNFILTERED),
    Attempt("more user namespaces", "leave", "echo 100 > /proc/sys/user/max_user_namespaces && echo won"),
    Attempt(
        "a control group of its own",
        "leave",
        "for d in /sys/fs/cgroup /sys/fs/cgroup/*; do mkdir $d/x && rmdir $d/x && echo won; done 2>&1",
        ADMIN,
        before="for d in /sys/fs/cgroup /sys/fs/cgroup/*; do mount -o remount,bind,rw $d; done 2>/dev/null",
    ),
    Attempt(
        "descriptors that were left open",
        "leave",
        python("""
            import os
            for name in os.listdir('/proc/self/fd'):
                try:
                    where = os.readlink(f'/proc/self/fd/{name}')
                except OSError:
                    continue  # of the listing
                print('won' if int(name) > 2 else 'its own', name, where)
        """),
        (),
        before="exec 7</etc/passwd",
    ),
    Attempt(
        "to type into a terminal",
        "leave",
        python("import fcntl; fcntl.ioctl(open('/dev/tty', 'rb'), 0x5412, b'x'); print(); print('won')"),
        ("--tty", *ADMIN),
    ),
)
NETWORK = (
    Attempt(
        "TCP to the host",
        "network",
        python("""
            import socket
            for host in '@HOSTS@'.split():
                try:
                    socket.create_connection((host, @TCP@), 1).sendall(b'@TOKEN@')
                except OSError as error:
                    print(host, error)
        """),
        (),
    ),
    Attempt(
        "UDP to the host",
        "network",
        python("""
            import socket
            for host in '@HOSTS@'.split():
                family = socket.AF_INET6 if ':' in host else socket.AF_INET
                try:
                    socket.socket(family, socket.SOCK_DGRAM).sendto(b'@TOKEN@', (host, @UDP@))
                except OSError as error:
                    print(host, error)
        """),
        (),
    ),
    Attempt(
        "an abstract socket of the host",
        "network",
        python("import socket; s = socket.socket(socket.AF_UNIX); s.connect('\\0@ABSTRACT@'); s.sendall(b'@TOKEN@')"),
        ("--network", "host"),
    ),
    Attempt("an interface", "network", "ls /sys/class/net | grep -qvx lo && echo won", ()),
    Attempt("a route", "network", "awk 'NR > 1' /proc/net/route | grep -q . && echo won", ()),
    Attempt(
        "raw packets",
        "network",
        python("""
            import socket
            for kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW, 1)):
                try:
                    socket.socket(*kind)
                    print('won')
                except OSError as error:
                    print(error)
        """),
        ROOT,
    ),
    Attempt(
        "the virtual machine's host",
        "network",
        python("import socket; socket.socket(40, 1); print('won')"),
        ("--security-opt", "seccomp=unconfined"),
    ),
    Attempt(
        "an address for the loopback interface",
        "network",
        python("""
            import fcntl, socket, struct
            address = struct.pack('16sH2s4s8s', b'lo:1', socket.AF_INET, b'', bytes([10, 9, 8, 7]), b'')
            fcntl.ioctl(socket.socket(), 0x8916, address)
            print('won')
        """),
        (*ROOT, "--cap-add", "NET_ADMIN"),
    ),
)
