"""A stand-in for a vLLM server: its routes and answers (0.32), with a small model behind them, and faults on demand."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import torch
from safetensors.torch import load_file

import cards
from loopback import HttpRequest, Loopback, Reply, as_json, serve
from ramify.chat.tokenizer import ChatTokenizer
from ramify.engines.vllm.middleware.ramify_weights import Delivery, Meeting, Receiver
from ramify.modeling.load import load_model

START = "default"


class StandIn:
    """What the server is: weights, their label, and what a test makes it do.

    `faults[path]` answers in place of the server, until a test removes it; None: as without.
    """

    def __init__(self, folder: Path, *, context: int = 400, keeps_tied_head: bool = False) -> None:
        self.tokenizer = ChatTokenizer(folder)
        self._first = load_model(folder)
        # As with tie_word_embeddings = false: the head is a tensor of its own.
        self._first.lm_head.weight = torch.nn.Parameter(self._first.lm_head.weight.detach().clone())
        self.model = deepcopy(self._first)
        self.context, self.keeps_tied_head = context, keeps_tied_head
        self.label = START
        self.served, self.key = "model", None
        self.paused = self.asleep = self.is_dead = False
        self.faults: dict[str, Callable[[HttpRequest], Reply | None]] = {}
        self.config = {"dtype": "torch.float32", "logprobs_mode": "processed_logprobs", "max_logprobs": 40}
        self.dev_mode = True
        self.version = "0.32.0"
        self._lock = threading.Lock()
        self.loads = self.loads_asleep = 0
        # What a wire brings, and tensors that it then leaves as they were.
        self.receiver, self.is_open, self._brought = Receiver(), False, {}
        self.forgets: set[str] = set()

    def restart(self) -> None:
        """As after kill -9 and a start: the first weights, and their label."""
        with self._lock:
            self.model, self.label = deepcopy(self._first), START
            self.is_dead = self.paused = self.asleep = self.is_open = False
            self.receiver = Receiver()

    def answer(self, request: HttpRequest) -> Reply:
        path = urlsplit(request.path).path
        if self.is_dead:
            return Reply(write=lambda stream: None)
        fault = self.faults.get(path)
        if fault is not None and (reply := fault(request)) is not None:
            return reply
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            return as_json({"error": "Unauthorized"}, 401)
        if path in _DEV and not self.dev_mode:
            return as_json({"detail": "Not Found"}, 404)
        handler = _ROUTES.get((request.method, path))
        return as_json({"detail": "Not Found"}, 404) if handler is None else handler(self, request)

    def _generate(self, request: HttpRequest) -> Reply:
        body = request.json()
        if body["model"] != self.served:
            return _error(f"The model `{body['model']}` does not exist.", 404)
        ids, wants = body["token_ids"], body["sampling_params"]
        if len(ids) >= self.context:
            return _error(
                f"The decoder prompt (length {len(ids)}) is longer than the maximum model length", 400
            )
        while self.paused:
            time.sleep(0.005)
        with self._lock:
            choice, prompt = self._write(ids, wants)
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(choice["token_ids"])}
        return as_json(
            {"choices": [choice], "usage": usage, "prompt_logprobs": prompt, "output_mode": "tokens"}
        )

    @torch.no_grad()
    def _write(self, ids: list[int], wants: dict) -> tuple[dict, list | None]:
        prompt = None
        if wants.get("prompt_logprobs") is not None:
            raw = torch.log_softmax(self.model(torch.tensor([ids])).logits[0, :-1].float(), -1)
            prompt = [
                None,
                *({str(i): {"logprob": float(row[i])}} for row, i in zip(raw, ids[1:], strict=True)),
            ]
        generator = torch.Generator().manual_seed(wants.get("seed", 0))
        written, content, text, reason = [], [], b"", "length"
        while len(written) < min(wants["max_tokens"], self.context - len(ids)):
            logits = self.model(torch.tensor([[*ids, *written]])).logits[0, -1].float()
            temperature = wants.get("temperature", 1.0)
            logprobs = torch.log_softmax(logits / (temperature or 1.0), -1)
            greedy = temperature == 0
            token = int(
                logprobs.argmax() if greedy else torch.multinomial(logprobs.exp(), 1, generator=generator)
            )
            written.append(token)
            # The sampled token first, then the most likely ones: together as many as were asked for.
            tops = [(token, float(logprobs[token]))]
            best = logprobs.topk(wants["logprobs"]) if wants.get("logprobs") else None
            if best is not None:
                pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
                tops = (tops + [pair for pair in pairs if pair[0] != token])[: wants["logprobs"]]
            content.append(
                {
                    "token_id": token,
                    "logprob": float(logprobs[token]),
                    "top_logprobs": [{"token_id": i, "logprob": value} for i, value in tops],
                }
            )
            if token in wants.get("stop_token_ids", ()):
                reason = "stop"
                break
            text += self.tokenizer.token_bytes[token] if token < self.tokenizer.vocab_size else b""
            if any(stop.encode() in text for stop in wants.get("stop", ())):
                reason = "stop"
                break
        versions = [{"version": self.label, "start": 0, "end": len(written)}]
        choice = {
            "index": 0, "token_ids": written, "finish_reason": reason, "stop_reason": None,
            "weight_versions": versions, "logprobs": {"content": content},
        }  # fmt: skip
        return choice, prompt

    def _rpc(self, request: HttpRequest) -> Reply:
        body = request.json()
        assert body["method"] == "reload_weights"
        try:
            files = sorted(Path(body["kwargs"]["weights_path"]).glob("*.safetensors"))
            tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
            assert tensors
        except Exception as error:  # noqa: BLE001 - as vLLM: the engine's process ends
            self.is_dead = True
            return _error(f"Worker failed with error '{error}'", 500)
        self.loads_asleep += self.asleep
        with self._lock, torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name in tensors and not (name == "lm_head.weight" and self.keeps_tied_head):
                    parameter.copy_(tensors[name])
            self.loads += 1
        return as_json({"results": [None]})

    def _meet(self, request: HttpRequest) -> Reply:
        return self._worker(lambda: self.receiver.join(Meeting(**request.json()["init_info"]), 0))

    def _begin(self, request: HttpRequest) -> Reply:
        if self.is_open:
            return _error("start_weight_update called while a weight update is already active.", 500)
        self.receiver.begin()
        self.is_open, self._brought = True, {}
        return as_json({})

    def _receive(self, request: HttpRequest) -> Reply:
        if not self.is_open:
            return _error("start_weight_update must be called before update_weights.", 500)

        def receive() -> None:
            self.receiver.receive(Delivery(**request.json()["update_info"]), self._take)

        reply = self._worker(receive)
        self.is_open = reply.status == 200
        return reply

    def _take(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self._brought.update(tensors)

    def _put(self, request: HttpRequest) -> Reply:
        def put() -> None:
            self.receiver.require_whole()
            with self._lock, torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    if name not in self.forgets:
                        parameter.copy_(self._brought.pop(name))
            self.loads += 1
            self.is_open = False

        return self._worker(put)

    def _worker(self, work: Callable[[], None]) -> Reply:
        try:
            work()
        except (RuntimeError, ValueError, TypeError) as error:
            return _error(str(error), 500)
        return as_json({})

    def _checksums(self, request: HttpRequest) -> Reply:
        assert request.json() == {"action": "checksum"}
        sums = {
            f"dp0:pp0:pcp0:tp0:{name}": hashlib.sha256(parameter.detach().numpy().tobytes()).hexdigest()
            for name, parameter in self.model.named_parameters()
        }
        return as_json({"checksums": sums})

    def _leave(self, request: HttpRequest) -> Reply:
        self.receiver.leave()
        return as_json({})

    def _label(self, request: HttpRequest) -> Reply:
        self.label = request.json()["new_version"]
        return as_json({"success": True})

    def _pause(self, request: HttpRequest) -> Reply:
        assert parse_qs(urlsplit(request.path).query)["mode"] == ["keep"]
        self.paused = True
        return as_json({"status": "paused"})

    def _resume(self, request: HttpRequest) -> Reply:
        self.paused = False
        return as_json({"status": "resumed"})

    def _sleep(self, request: HttpRequest) -> Reply:
        self.asleep = True
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
        return Reply()

    def _wake(self, request: HttpRequest) -> Reply:
        self.asleep = self.paused = False
        return Reply()

    def _tokenize(self, request: HttpRequest) -> Reply:
        return as_json({"tokens": list(self.tokenizer.encode(request.json()["prompt"]))})

    def _models(self, request: HttpRequest) -> Reply:
        return as_json({"data": [{"id": self.served, "max_model_len": self.context}]})

    def _about(self, request: HttpRequest) -> Reply:
        parts = {"model_config": self.config, "scheduler_config": {"enable_chunked_prefill": False}}
        return as_json({"vllm_config": {**parts, "device_config": {"device": "cpu"}}})


def _error(message: str, code: int) -> Reply:
    return as_json({"error": {"message": message, "code": code}}, code)


_ROUTES = {
    ("GET", "/health"): lambda here, request: Reply(),
    ("GET", "/version"): lambda here, request: as_json({"version": here.version}),
    ("GET", "/v1/models"): StandIn._models,
    ("GET", "/server_info"): StandIn._about,
    ("GET", "/weight_info"): lambda here, request: as_json({"weight_version": here.label}),
    ("POST", "/tokenize"): StandIn._tokenize,
    ("POST", "/inference/v1/generate"): StandIn._generate,
    ("POST", "/pause"): StandIn._pause,
    ("POST", "/resume"): StandIn._resume,
    ("POST", "/collective_rpc"): StandIn._rpc,
    ("POST", "/reset_prefix_cache"): lambda here, request: as_json({"success": True}),
    ("POST", "/update_weight_version"): StandIn._label,
    ("GET", "/get_world_size"): lambda here, request: as_json({"world_size": 1}),
    ("POST", "/init_weight_transfer_engine"): StandIn._meet,
    ("POST", "/shutdown_weight_transfer_engine"): StandIn._leave,
    ("POST", "/start_weight_update"): StandIn._begin,
    ("POST", "/update_weights"): StandIn._receive,
    ("POST", "/finish_weight_update"): StandIn._put,
    ("POST", "/weight_checker"): StandIn._checksums,
    ("POST", "/sleep"): StandIn._sleep,
    ("POST", "/wake_up"): StandIn._wake,
    ("GET", "/is_sleeping"): lambda here, request: as_json({"is_sleeping": here.asleep or here.paused}),
}
_DEV = {
    *("/server_info", "/weight_info", "/pause", "/resume", "/collective_rpc", "/reset_prefix_cache"),
    *("/update_weight_version", "/sleep", "/wake_up", "/is_sleeping"),
}


@contextmanager
def stand_in(folder: Path, **settings: object) -> Iterator[tuple[StandIn, Loopback]]:
    """Serve until the block ends."""
    here = StandIn(folder, **settings)
    with serve(here.answer) as server:
        yield here, server


def sent(server: Loopback, path: str) -> list[dict]:
    """Bodies of the requests to a route."""
    return [json.loads(request.body) for request in server.requests if urlsplit(request.path).path == path]


_SERVER = """
import sys
import vllm_stand_in
vllm_stand_in.run(sys.argv[1:], {log!r})
"""


def install(folder: Path) -> tuple[str, Path]:
    """Write a package vllm whose server is a stand-in.

    Returns the PYTHONPATH with which ramify starts it, and the file in which each server writes down its model.
    """
    log, package = folder / "models.txt", folder / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    (package / "api_server.py").write_text(_SERVER.format(log=str(log)))
    inherited = os.environ.get("PYTHONPATH")
    return os.pathsep.join(
        map(str, (folder, Path(__file__).parent, *([inherited] if inherited else [])))
    ), log


class ServerMemory:
    """What a server takes of its card, in the order of vLLM: it measures as it starts, and is awake until it is put to sleep."""

    def __init__(self, folder: Path) -> None:
        number = os.environ["CUDA_VISIBLE_DEVICES"]
        self.card = cards.Card(Path(os.environ[cards.FOLDER]), number, f"server-{number}")
        self._wakes, self._crash = 0, folder / f"crash-{number}.txt"
        self.card.book(cards.AWAKE, "starts", measures=True)

    def changed(self, request: HttpRequest) -> Reply | None:
        path = urlsplit(request.path).path
        if path == "/inference/v1/generate":
            if self._wakes == 2 and self._crash.exists():
                self._crash.unlink()
                os._exit(9)
            return None
        wakes = path == "/wake_up"
        self._wakes += wakes
        try:
            self.card.book(cards.AWAKE if wakes else cards.ASLEEP, "awake" if wakes else "asleep")
        except cards.OverlapError as error:
            return _error(str(error), 500)
        return None


def run(arguments: list[str], log: str) -> None:
    """Serve as the package's server does, until it is killed."""
    options = dict(pairwise(arguments))
    with Path(log).open("a") as file:
        file.write(options["--model"] + "\n")
    torch.set_num_threads(1)
    memory = ServerMemory(Path(log).parent) if cards.FOLDER in os.environ else None
    here = StandIn(Path(options["--model"]))
    here.served = options["--served-model-name"]
    # A test writes the paths there that this server fails at.
    failing = Path(log).with_name("failing.txt")

    def answer(request: HttpRequest) -> Reply:
        path = urlsplit(request.path).path
        fails = failing.is_file() and path in failing.read_text().split()
        return _error("an assertion failed", 500) if fails else here.answer(request)

    assert options["--middleware"] == "ramify_auth.RequireKey"
    here.key = os.environ["RAMIFY_SERVER_KEY"]
    if memory is not None:
        here.faults = dict.fromkeys(("/sleep", "/wake_up", "/inference/v1/generate"), memory.changed)
        memory.card.book(cards.AWAKE, "awake")
    with serve(answer, socket=Path(options["--uds"])):
        threading.Event().wait()
