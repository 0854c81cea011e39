"""wheel_test.py BUILD: packs a wheel with that build's binaries, installs it into a fresh virtual environment, and uses
it from there. Exit code 77, and a line that says why, where pip cannot get what packs it."""

import glob
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = pathlib.Path(__file__).parents[2] / "python"
USE = """
import numpy as np
import attune

q, k, v = np.random.default_rng(0).standard_normal((3, 1, 16, 2, 8), dtype=np.float32)
o = attune.attention(q, k, v, mask="causal")
s = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8) + np.where(np.tri(16), 0, -np.inf)
p = np.exp(s - s.max(-1, keepdims=True))
np.testing.assert_allclose(o, np.einsum("bhqk,bkhd->bqhd", p / p.sum(-1, keepdims=True), v), atol=1e-5)
print(attune.__file__)
"""


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def skip(reason):
    print(f"Skipped: {reason}")
    sys.exit(77)


def made(done):
    if done.returncode:
        sys.exit(f"{' '.join(map(str, done.args))}\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    with tempfile.TemporaryDirectory(prefix="attune-wheel-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("ATTUNE_", "PYTHON"))}
        environment["ATTUNE_CACHE"] = os.path.join(folder, "attune.db")
        scripts = pathlib.Path(folder, "environment", "bin")
        # Only NumPy comes from outside.
        if run(sys.executable, "-m", "venv", "--system-site-packages", scripts.parent, env=environment).returncode:
            skip("this Python makes no virtual environments")
        pip = (scripts / "python", "-m", "pip")
        got = run(*pip, "download", "-q", "--timeout", "10", "--retries", "1", "--only-binary", ":all:", "-d", folder,
                  "scikit-build-core>=0.10", env=environment)  # fmt: skip
        if got.returncode:
            skip(f"pip cannot get scikit-build-core: {got.stderr.strip().splitlines()[-1:]}")
        settings = {"cmake.define.ATTUNE_BUILD": sys.argv[1], "build-dir": os.path.join(folder, "build")}
        options = [f"--config-settings={name}={value}" for name, value in settings.items()]
        made(run(*pip, "wheel", "-q", "--no-deps", "--no-index", "--find-links", folder, "-w", folder, *options, PACKAGE,
                 env=environment))  # fmt: skip
        (wheel,) = glob.glob(os.path.join(folder, "attune-*.whl"))
        tag = re.fullmatch(r"attune-0\.2\.0-py3-none-manylinux_(\d+)_(\d+)_\w+\.whl", os.path.basename(wheel))
        assert tag is not None, f"{wheel}: no promise of a glibc"
        here = tuple(int(x) for x in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")[:2])
        assert (2, 17) <= (int(tag[1]), int(tag[2])) <= here, f"{wheel}, built on glibc {here}"
        held = set(zipfile.ZipFile(wheel).namelist())
        wanted = {f"attune/{name}" for name in ("libattune.so", "libattune_llvm.so", "attune", "py.typed", "tuning.py")}
        assert wanted <= held, wanted - held
        made(run(*pip, "install", "-q", "--no-deps", "--no-index", wheel, env=environment))
        where = made(run(scripts / "python", "-c", USE, env=environment, cwd=folder)).strip()
        assert where.startswith(str(scripts.parent)), where
        said = made(run(scripts / "attune", "check", "causal", env=environment, cwd=folder))
        assert "causal" in said, said


if __name__ == "__main__":
    main()
