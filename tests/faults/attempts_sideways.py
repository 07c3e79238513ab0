"""Attempts to see hidden tests and other episodes."""

from __future__ import annotations

from .attempts import Attempt, python, syscall

HIDDEN = (
    Attempt(
        "files of tests anywhere",
        "hidden",
        "find / \\( -path /proc -o -path /sys -o -path /dev \\) -prune -o "
        "\\( -path '*/src/*' -o -name '*runner*' -o -name 'problems*.jsonl' \\) -name '*.[pj]*' "
        "-not -path '/venv/*' -not -path '/usr/lib/*' -size -2000k -exec cat {} + 2>&1 | head -c 900000",
        ("-v", "@HIDDEN@:/src"),
    ),
    Attempt(
        "the folders of the harness",
        "hidden",
        "ls -A /src /code/src /code/harness /harness 2>&1; cat /src/*",
        ("-v", "@HIDDEN@:/src"),
    ),
    Attempt(
        "environments and command lines of all processes",
        "hidden",
        "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>&1 | tr '\\0' '\\n' | head -c 900000",
        ("-e", "TESTS=@HIDDEN_LINE@"),
    ),
    Attempt(
        "files that others have open",
        "hidden",
        "for f in /proc/[0-9]*/fd/*; do timeout 0.3 head -c 20000 $f; done 2>&1 | strings | head -c 900000",
        ("-v", "@HIDDEN@:/src"),
        before="exec 7</src/test_fixed_priority_arbiter.py",
    ),
    Attempt(
        "the memory of process 1",
        "hidden",
        python("""
            import sys
            for line in open('/proc/1/maps'):
                if 'rw-p' in line:
                    begin, end = (int(part, 16) for part in line.split()[0].split('-'))
                    with open('/proc/1/mem', 'rb') as memory:
                        memory.seek(begin)
                        print('won', len(memory.read(4096)))
                    break
        """),
        ("--user", "0", "--cap-add", "SYS_PTRACE"),
    ),
    Attempt(
        "a folder to record",
        "hidden",
        "for f in test_fixed_priority_arbiter test_runner; do ln -s /src/$f.py rtl/$f.py; cat rtl/$f.py; done; "
        "ln -s /src rtl/peek",
        ("-v", "@HIDDEN@:/src", "-w", "/tmp"),
        before="mkdir -p rtl",
    ),
    Attempt(
        "disks",
        "hidden",
        "for d in /dev/[shv]d* /dev/mapper/* /dev/mem /dev/loop0; do head -c 1 $d >/dev/null && echo won; done 2>&1",
        ("--device", "/dev/null:/dev/loop0"),
    ),
)
KEEP = (
    python("""
        import ctypes, os, socket, time
        secret = '@KEPT@'
        for path in ('/tmp/kept', '/dev/shm/kept', '/home/agent/kept'):
            open(path, 'w').write(secret)
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        number = libc.shmget(0, 4096, 0o1666)
        if number >= 0:  # refused where nothing counts such memory
            ctypes.memmove(libc.shmat(number, None, 0), secret.encode(), len(secret))
        made = [socket.socket(socket.AF_UNIX), socket.socket()]
        made[0].bind(chr(0) + 'kept')
        made[1].bind(('127.0.0.1', 0))
        for one in made:
            one.listen()
            if os.fork() == 0:
                os.setsid()
                while True:
                    one.accept()[0].sendall(secret.encode())
        if os.fork() == 0:
            os.setsid()
            os.dup2(os.open('/dev/null', os.O_RDWR), 1)
            os.dup2(1, 2)
            os.execv('/usr/bin/sleep', [secret, '3600'])
    """)
    + "\nsleep 1"
)
"""Puts the secret of a neighbour where another episode could look for it: files, memory, sockets, a command line."""
NEIGHBOURS = (
    Attempt("its processes", "neighbour", "cat /proc/[0-9]*/cmdline 2>&1 | tr '\\0' ' '", ()),
    Attempt("its files", "neighbour", "cat /tmp/* /dev/shm/* /code/* /rundir/* /home/*/* /dev/mqueue/* 2>&1", ()),
    Attempt(
        "its System V memory",
        "neighbour",
        python("""
            import ctypes
            libc = ctypes.CDLL(None)
            libc.shmat.restype = ctypes.c_void_p
            for line in open('/proc/sysvipc/shm').readlines()[1:]:
                at = libc.shmat(int(line.split()[1]), None, 0o10000)
                print(ctypes.string_at(at, 64))
        """),
        (),
    ),
    Attempt(
        "its sockets",
        "neighbour",
        python("""
            import socket
            found = [(socket.AF_UNIX, line.split()[-1].replace('@', chr(0), 1)) for line in open('/proc/net/unix')]
            rows = [line.split() for line in open('/proc/net/tcp')][1:]
            found += [(socket.AF_INET, ('127.0.0.1', int(row[1].split(':')[1], 16))) for row in rows if row[3] == '0A']
            for family, address in found:
                try:
                    with socket.socket(family) as made:
                        made.settimeout(1)
                        made.connect(address)
                        print(made.recv(100))
                except OSError as error:
                    print(error)
        """),
        (),
    ),
    Attempt("to end its processes", "neighbour", "kill -9 -1; (trap '' TERM; kill -TERM -- -1); echo tried", None),
    Attempt("the kernel's keys", "neighbour", syscall(250, "0", "-4", "1"), ("--security-opt", "seccomp=unconfined")),
)
