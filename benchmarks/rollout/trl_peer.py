"""The peer of row 3: TRL's GRPOTrainer with tools, transformers generation, playing a token script.

`GRPOTrainer._generate` is driven as it is: chat template, generation (a static batch to the longest turn, or
transformers' continuous batching), parsing, tools one by one, concatenation, generation from the whole context, until
nobody calls a tool. The model's forward passes and the sampling are real; a logits processor then leaves only the
script's token possible (in continuous batching: the token drawn is replaced when its request takes it).
"""

import functools
import inspect
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedTokenizerFast,
)
from transformers.generation.continuous_batching.requests import RequestState
from trl import GRPOConfig, GRPOTrainer

from benchmarks.harness.answer import answer_lines

_SIDE: "TrlSide | None" = None


class ForceScript(LogitsProcessor):
    """Leaves one token possible in each row: the next one of the trajectory that the row belongs to."""

    def __init__(self, scripts: list[list[list[int]]]) -> None:
        self.scripts = scripts
        self.rows: list[list[int]] = []
        self.start = 0

    def begin(self, trajectories: list[int], turn: int, start: int) -> None:
        """A generation of `trajectories` starts with inputs of `start` tokens (padding included)."""
        self.rows = [self.scripts[index][turn] for index in trajectories]
        self.start = start

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Shapes: [B, T], [B, V] -> [B, V]."""
        step = input_ids.shape[1] - self.start
        forced = torch.tensor([[row[min(step, len(row) - 1)]] for row in self.rows])
        return torch.full_like(scores, -torch.inf).scatter_(1, forced, 0.0)  # type: ignore[return-value]

    def token(self, row: int, step: int) -> int:
        """The token of a row of the batch at a step."""
        return self.rows[row][min(step, len(self.rows[row]) - 1)]


class TrlSide:
    """A trainer on the shared model folder, and the texts that make the workload's token counts."""

    def __init__(
        self,
        folder: Path,
        workload: dict[str, Any],
        max_completion: int,
        continuous: dict[str, int] | None,
        batch: int | None = None,
    ) -> None:
        """Build the trainer.

        Args:
            folder: Of the model.
            workload: Token counts.
            max_completion: Tokens of the longest trajectory without its prompt.
            continuous: Sizes of transformers' continuous batching; None: a static batch.
            batch: Trajectories in a forward pass of the update; None: all at once.
        """
        torch.set_num_threads(1)
        self.words: list[str] = json.loads((folder / "words.json").read_text(encoding="utf-8"))
        self.workload = workload
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
        )
        self.tokenizer.chat_template = trl.chat_template_utils.qwen2_5_chat_template
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        self.results: dict[str, str] = {}

        count = len(workload["turns"])
        tools = [self._tool()]
        arguments = GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=batch or count,
            gradient_accumulation_steps=count // (batch or count),
            num_generations=count,
            max_completion_length=max_completion,
            temperature=1.0,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
            use_transformers_continuous_batching=continuous is not None,
            transformers_continuous_batching_config=continuous,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        self.trainer = GRPOTrainer(
            model=model,
            # Half of a group is right: one that is all wrong teaches nothing.
            reward_funcs=lambda completions, **_: [float(i % 2) for i in range(len(completions))],
            args=arguments,
            train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": "x"}]}] * count),
            processing_class=self.tokenizer,
            tools=tools,
        )
        of_kind: list[dict[str, Any]] = [{}, {}]
        of_kind[inspect.iscoroutinefunction(tools[0])]["search"] = tools[0]
        self.trainer._sync_tool_dicts, self.trainer._async_tool_dicts = (
            [tools_by_name] * count for tools_by_name in of_kind
        )
        self.prompt = self._prompt(workload["prompt"])
        self.force = ForceScript(self._scripts())
        self._install(continuous is not None)

    def run(self) -> dict[str, Any]:
        """One rollout of the whole group."""
        self.turn, self.active = 0, list(range(len(self.workload["turns"])))
        started, cpu_started = time.perf_counter(), time.process_time()
        prompt_ids, completion_ids, mask, *_ = self.trainer._generate([self.prompt] * len(self.active))
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "cpu_seconds": time.process_time() - cpu_started,
            "prompt": [len(ids) for ids in prompt_ids],
            "written": [sum(row) for row in mask],
            "all": [len(ids) for ids in completion_ids],
        }

    def _tool(self) -> Callable[[str], Any]:
        """Return the tool that the trainer calls."""

        def search(query: str) -> str:
            """Search.

            Args:
                query: Words.
            """
            return self.results[query]

        return search

    def _install(self, continuous: bool) -> None:
        """Force the script's tokens, and say before every generation which rows it gets."""
        single_turn = self.trainer._generate_single_turn
        model = self.trainer.model
        if continuous:
            update = RequestState.update_and_check_completion

            def forced(state: RequestState, token_id: int, logprob: float | None) -> bool:
                del token_id
                row = int(state.request_id.rpartition("_")[2])
                return update(state, self.force.token(row, state.generated_len()), logprob)

            RequestState.update_and_check_completion = forced  # type: ignore[method-assign,assignment]
        else:
            processors = LogitsProcessorList([self.force])
            model.generate = functools.partial(model.generate, logits_processor=processors)

        @functools.wraps(single_turn)
        def counted(
            prompt_ids: list[list[int]], *arguments: object, **options: object
        ) -> tuple[list[list[int]], None]:
            turns = self.workload["turns"]
            self.active = [index for index in self.active if self.turn < len(turns[index])]
            self.force.begin(self.active, self.turn, max(map(len, prompt_ids)))
            self.turn += 1
            completion_ids, logprobs = single_turn(prompt_ids, *arguments, **options)
            return completion_ids, logprobs

        self.trainer._generate_single_turn = counted

    def _prompt(self, size: int) -> list[dict[str, str]]:
        def of(count: int) -> list[dict[str, str]]:
            return [{"role": "user", "content": "".join(f" {self.words[i % 50]}" for i in range(count))}]

        bare = len(self.trainer._tokenize_prompts([of(1)])[0][0])
        if bare > size:
            raise ValueError(f"the prompt needs {bare} tokens for its tools alone, the workload has {size}")
        return of(1 + size - bare)

    def _scripts(self) -> list[list[list[int]]]:
        """Token ids of every turn, and the texts of the tool results."""
        scripts = []
        for index, sizes in enumerate(self.workload["turns"]):
            turns = []
            for turn, size in enumerate(sizes):
                query = self.words[index * len(sizes) + turn]
                call = {"name": "search", "arguments": {"query": query}}
                last = turn == len(sizes) - 1
                text = "" if last else f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
                ids = [*self.tokenizer.encode(text), self.tokenizer.eos_token_id]
                filler = "".join(f" {self.words[(index + i) % 500]}" for i in range(size - len(ids)))
                turns.append([*self.tokenizer.encode(filler), *ids])
                if len(turns[-1]) != size:
                    raise ValueError(f"a turn of {size} tokens came out as {len(turns[-1])}")
                if not last:
                    self.results[query] = self._result(self.workload["results"][index][turn])
            scripts.append(turns)
        return scripts

    def _result(self, size: int) -> str:
        def wrapped(count: int) -> tuple[str, int]:
            text = "".join(f" {self.words[i % 500]}" for i in range(count))
            message = {"role": "tool", "name": "search", "content": text}
            return text, len(self.trainer._get_tool_suffix_ids([message]))

        text, came_out = wrapped(1 + size - wrapped(1)[1])
        if came_out != size:
            raise ValueError(f"a result of {size} tokens came out as {came_out}")
        return text


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Build the trainer when the question holds a workload, else run it once."""
    global _SIDE
    if "workload" in question:
        _SIDE = TrlSide(
            Path(question["folder"]), question["workload"], question["max_completion"], question["continuous"]
        )
        names = {"trl": trl, "transformers": transformers, "torch": torch}
        return {"versions": {name: module.__version__ for name, module in names.items()}}
    assert _SIDE is not None
    return _SIDE.run()


if __name__ == "__main__":
    answer_lines(answer)
