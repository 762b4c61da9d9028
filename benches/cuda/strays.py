"""What `prove` started and what that left: processes by a mark in their environment, since ranks and
guardians have sessions of their own, and files in shared folders by the names of their runs."""

import os
import re
import shutil
import signal
import time
from pathlib import Path

MARK = "KINTSUGI_PROVE"
SHARED_FOLDERS = ["/dev/shm", "/tmp"]
HEAD_BYTES = 1 << 16
RUN = re.compile(rb"kintsugi-[0-9a-f]{8}-")


def marked(work):
    """(pid, what names it has of runs) of every such process but this one."""
    mark = f"{MARK}={work}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            around = (entry / "environ").read_bytes()
            if mark in around.split(b"\0"):
                words = around + (entry / "cmdline").read_bytes()
                yield int(entry.name), set(RUN.findall(words))
        except OSError:
            continue  # it has ended


def runs(work):
    return set().union(*(names for _, names in marked(work)))


def forget(names):
    """Removes what those runs have in folders that all share."""
    for name in names:
        for folder in SHARED_FOLDERS:
            for path in Path(folder).glob(name.decode() + "*"):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def forget_kept(work):
    """Removes the state of runs that ended early: nobody will go on with them, and a file of it says
    in its head whose it is."""
    folder = os.fsencode(f"{work}/runs/")
    for file in Path("/dev/shm").glob("kintsugi-*.slots"):
        try:
            with file.open("rb") as kept:
                if folder in kept.read(HEAD_BYTES):
                    file.unlink()
        except OSError:
            continue  # it is gone, or another's


def end(work):
    """Ends all of them: some start others meanwhile."""
    names = set()
    for _ in range(5):
        found = list(marked(work))
        for pid, own in found:
            names |= own
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        if not found:
            break
        time.sleep(0.1)
    forget(names)
    forget_kept(work)
