"""Run a command on a kernel, with settings or on a machine that this one has not: a virtual machine over our own files.

    python benchmarks/guest.py --sysctl kernel.yama.ptrace_scope=1 --user -- .venv/bin/loadgen doctor
    python benchmarks/guest.py --arch aarch64 --root /srv/arm64 -- python3 -m loadgen.cli.main gil 1 --duration 5

Boots Debian's kernel for `--arch` (fetched once by apt into `--cache`) in QEMU. Its file system is `--root` (by default
this machine's own), seen read-only over 9p; what is written stays in memory and is lost at the end. It has no network
but loopback. The command runs in this directory where the root has it, with this PATH, as root or as a user without
rights (`--user`); its exit status is ours. Instructions are emulated unless `--kvm` is given: what is
tried here is whether something works, not how fast. Needs root and Debian's qemu-system, kmod, cpio and
busybox-static (that of another architecture inside `--root`).
"""

import argparse
import gzip
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
CONSOLE = {"x86_64": "ttyS0", "aarch64": "ttyAMA0"}
BEGUN = "guest: begins"
DONE = "guest: exit status "
NOBODY = 65534
INIT = """#!/bin/busybox sh
B=/bin/busybox
for dir in proc sys lower upper new; do $B mkdir -p /$dir; done
$B mount -t proc proc /proc
for module in {modules}; do $B insmod $module || exit 1; done
$B mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=1048576 root /lower || exit 1
$B mount -t tmpfs -o mode=755 tmpfs /upper
$B mkdir /upper/files /upper/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /new || exit 1
cd /new
$B mount -t proc proc proc; $B mount -t sysfs sys sys; $B mount -t devtmpfs dev dev
$B mkdir -p dev/shm dev/pts; $B mount -t tmpfs shm dev/shm; $B mount -t devpts pts dev/pts
$B mount -t tmpfs -o mode=1777 tmp tmp; $B mount -t tracefs tracefs sys/kernel/tracing
$B chmod 755 root; $B rm -f .dockerenv  # neither the lock nor the trace of the machine whose files these are
$B ifconfig lo 127.0.0.1 up
{sysctls}
$B echo "{begun}"
$B cp /command.sh /new/tmp/command.sh
$B chroot /new {become} /bin/sh /tmp/command.sh
$B echo "{done}$?"
$B poweroff -f
"""


def fetch_kernel(arch: str, cache: Path) -> Path:
    """Have Debian's newest kernel package for the architecture unpacked; return the folder."""
    folder = cache / f"kernel-{arch}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    meta = f"linux-image-{DEBIAN[arch]}:{DEBIAN[arch]}"
    told = subprocess.run(["apt-cache", "show", meta], capture_output=True, text=True, check=True).stdout
    package = re.search(r"Depends: (linux-image-\S+)", told)
    if package is None:
        raise SystemExit(f"apt knows no kernel for {arch}: dpkg --add-architecture {DEBIAN[arch]} && apt-get update")
    subprocess.run(["apt-get", "download", "-qq", f"{package[1]}:{DEBIAN[arch]}"], cwd=cache, check=True)
    (archive,) = cache.glob(f"linux-image-*_{DEBIAN[arch]}.deb")
    unpacking = cache / f"unpacking-{arch}"
    shutil.rmtree(unpacking, ignore_errors=True)
    subprocess.run(["dpkg-deb", "-x", archive, unpacking], check=True)
    archive.unlink()
    return unpacking.rename(folder)


def module_files(kernel: Path) -> list[Path]:
    """Return the files of MODULES and of what they need, in the order to load them in. Built-in ones have none."""
    (modules,) = (kernel / "lib/modules").iterdir()
    subprocess.run(["depmod", "-b", kernel, modules.name], check=True)
    needs: dict[str, list[str]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[Path(file).name.partition(".ko")[0]] = [*reversed(others.split()), file]
    files = [modules / file for name in MODULES for file in needs.get(name, ())]
    return list(dict.fromkeys(files))


def first_files(modules: list[Path], busybox: Path, init: str, command: str, folder: Path) -> Path:
    """Make the file system that the kernel starts from: it only looks for the real one."""
    inside = folder / "first"
    (inside / "bin").mkdir(parents=True)
    (inside / "bin/busybox").write_bytes(busybox.read_bytes())
    (inside / "init").write_text(init)
    (inside / "command.sh").write_text(command)
    for file in modules:
        (inside / file.name).write_bytes(file.read_bytes())
    for program in ("init", "bin/busybox"):
        (inside / program).chmod(0o755)
    names = "\n".join(str(path.relative_to(inside)) for path in sorted(inside.rglob("*")))
    argv = ["cpio", "--quiet", "-o", "-H", "newc"]
    packed = subprocess.run(argv, input=names.encode(), cwd=inside, stdout=subprocess.PIPE, check=True).stdout
    archive = folder / "first.gz"
    archive.write_bytes(gzip.compress(packed, 1))
    return archive


def machine(arch: str, *, kvm: bool, cpus: int, memory_mib: int) -> list[str]:
    """Return QEMU's words for a machine."""
    words = [f"qemu-system-{arch}", "-accel", "kvm" if kvm else "tcg,thread=multi", "-cpu", "host" if kvm else "max"]
    words += ["-smp", str(cpus), "-m", str(memory_mib)]
    if arch == "aarch64":
        words += ["-M", "virt"]
    return [*words, "-nographic", "-no-reboot", "-nic", "none"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", choices=sorted(DEBIAN), default=platform.machine())
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--sysctl", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--user", action="store_true", help="without rights, as nobody")
    parser.add_argument("--busybox", type=Path, help="a static one of --arch (/bin/busybox, inside --root for another)")
    parser.add_argument("--cache", type=Path, default=Path("/var/cache/loadgen-guest"))
    parser.add_argument("--kvm", action="store_true", help="run by KVM: --arch must be this machine's own")
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--memory", type=int, default=6144, metavar="MIB")
    parser.add_argument("--limit", type=float, default=900.0, metavar="S")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    needed = {f"qemu-system-{options.arch}": "qemu-system", "cpio": "cpio", "depmod": "kmod", "dpkg-deb": "dpkg"}
    missing = [package for program, package in needed.items() if shutil.which(program) is None]
    busybox = options.busybox or (options.root if options.arch != platform.machine() else Path("/")) / "bin/busybox"
    if missing or not busybox.exists():
        raise SystemExit(f"not here: {', '.join([*missing, *([] if busybox.exists() else [str(busybox)])])}")
    kernel = fetch_kernel(options.arch, options.cache)
    modules = module_files(kernel)
    (image,) = (kernel / "boot").glob("vmlinuz-*")
    here = Path.cwd()
    command = "\n".join(
        [
            f"export PATH={shlex.quote(os.environ['PATH'])} HOME=/tmp",
            f"cd {shlex.quote(str(here))} 2>/dev/null || cd /tmp",
            f"exec {shlex.join(options.command)}",
        ]
    )
    become = f"/usr/bin/setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups --inh-caps=-all"
    init = INIT.format(
        modules=" ".join(f"/{file.name}" for file in modules),
        sysctls="\n".join(f"$B sysctl -w {shlex.quote(setting)} || exit 1" for setting in options.sysctl),
        become=become if options.user else "",
        begun=BEGUN,
        done=DONE,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the machine goes with us
    with tempfile.TemporaryDirectory() as scratch:
        archive = first_files(modules, busybox, init, command, Path(scratch))
        argv = machine(options.arch, kvm=options.kvm, cpus=options.cpus, memory_mib=options.memory)
        argv += ["-kernel", str(image), "-initrd", str(archive)]
        argv += ["-append", f"console={CONSOLE[options.arch]} panic=-1 quiet rdinit=/init"]
        argv += ["-fsdev", f"local,id=root,path={options.root},security_model=none,multidevs=remap,readonly=on"]
        argv += ["-device", "virtio-9p-pci,fsdev=root,mount_tag=root"]
        return show(argv, options.limit)


def show(argv: list[str], limit_s: float) -> int:
    """Run the machine, pass on what it writes, and return the exit status that it told; 1 when it told none."""
    status = None
    begun = False
    boot = []
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace") as guest:
        assert guest.stdout is not None
        stopper = threading.Timer(limit_s, guest.kill)
        stopper.start()
        try:
            for line in guest.stdout:
                text = line.rstrip("\r\n")
                if text.startswith(DONE):
                    status = int(text[len(DONE) :])
                elif begun and status is None:
                    print(text, flush=True)
                else:
                    boot.append(text)
                    begun |= text == BEGUN
        finally:
            stopper.cancel()
            guest.kill()
    if not begun or status is None:
        print(*boot, "the machine ended without an answer", sep="\n", file=sys.stderr)
    return 1 if status is None else status


if __name__ == "__main__":
    sys.exit(main())
