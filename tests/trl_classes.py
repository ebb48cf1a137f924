"""Environments in the form that TRL documents for `environment_factory`, with clients that stand in for its servers."""

import random


class IncrementEnv:
    """Without a data set: `reset` draws the task from the global generator and returns the prompt."""

    def reset(self, **kwargs) -> str | None:
        self.counter = 0
        self.target = random.randint(1, 6)
        return f"Increment the counter by {self.target}."

    def get_reward(self) -> float:
        return float(self.counter == self.target)

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter


class TargetEnv(IncrementEnv):
    """With a data set: the row's column arrives as a keyword argument."""

    def reset(self, target, **kwargs) -> None:
        self.counter = 0
        self.target = target


class _EchoClient:
    """In the place of an echo server."""

    def step(self, message):
        return message, len(message) / 10


class EchoToolEnv:
    def __init__(self):
        self.client = _EchoClient()
        self.reward = 0.0

    def reset(self, **kwargs) -> str | None:
        self.reward = 0.0
        return None

    def echo(self, message: str) -> str:
        """
        Echo the message back from the environment.

        Args:
            message: The message to echo

        Returns:
            The echoed message.
        """
        text, self.reward = self.client.step(message)
        return text


class _GameClient:
    """In the place of a game server: it sends the whole history each time."""

    def reset(self):
        self.word = random.choice(["crane", "slate", "mound", "light"])
        self.history = f"A word of five letters that begins with {self.word[0]}.\n"
        return self.history

    def step(self, message):
        guess = message.strip("[]")
        self.history += "".join("G" if a == b else "X" for a, b in zip(guess, self.word, strict=False)) + "\n"
        return self.history, float(guess == self.word), guess == self.word


class WordleEnv:
    def __init__(self):
        self.client = _GameClient()

    def reset(self, **kwargs) -> str | None:
        self._last_full_feedback = self.client.reset()
        self.reward = 0.0
        self.done = False
        return self._last_full_feedback

    def guess(self, guess: str) -> str:
        """
        Make a guess in the Wordle environment.

        Args:
            guess: The guessed word, formatted as '[abcde]'

        Returns:
            The feedback message from the environment.
        """
        if self.done:
            raise ValueError("Game over.")
        full, self.reward, self.done = self.client.step(guess)
        feedback = full[len(self._last_full_feedback) :]
        self._last_full_feedback = full
        return feedback


class BrowserEnv:
    """Several tools, one without arguments, and state in private attributes."""

    def __init__(self):
        self.reward = 0.0
        self._done = False
        self._step_count = 0

    def reset(self, **kwargs) -> str:
        self.reward, self._done, self._step_count = 0.0, False, 0
        self._button = str(random.randrange(10, 99))
        return self._observe()

    def click(self, bid: str) -> str:
        """Click an element on the page.

        Args:
            bid: The ID of the element to click.

        Returns:
            The updated page observation.
        """
        return self._act(bid == self._button)

    def fill(self, bid: str, text: str) -> str:
        """Fill an input field with text.

        Args:
            bid: The ID of the input field.
            text: The text to type into the field.

        Returns:
            The updated page observation.
        """
        return self._act(done=False)

    def noop(self) -> str:
        """Do nothing and observe the current page state.

        Returns:
            The current page observation.
        """
        return self._act(done=False)

    def _act(self, done: bool) -> str:
        if self._done:
            raise ValueError("Episode is done.")
        self._step_count += 1
        self._done = done or self._step_count >= 3
        self.reward = float(done)
        return self._observe()

    def _observe(self) -> str:
        return f"Goal: click the button.\n\nPage structure:\n[{self._button}] button 'Click Me!'"


class MultiEnv:
    """One class around two games; the data set's column `env` says which."""

    def __init__(self):
        self.active = None
        self.reward = 0.0
        self.done = False

    def reset(self, **kwargs) -> str | None:
        self.active = kwargs.get("env", "wordle")
        self.reward, self.done = 0.0, False
        if self.active == "wordle":
            self._wordle = WordleEnv()
            return self._wordle.reset()
        self._ball = random.randint(1, 5)
        return f"Ball: column {self._ball}"

    def guess(self, guess: str) -> str:
        """Make a guess.

        Args:
            guess: The guessed word, formatted as '[abcde]'
        """
        if self.active != "wordle":
            raise ValueError("guess is only available in Wordle")
        return self._wordle.guess(guess)

    def move(self, direction: str) -> str:
        """Move the paddle left or right.

        Args:
            direction: Direction to move, either "left" or "right".
        """
        if self.active != "catch":
            raise ValueError("move is only available in Catch")
        self.reward += 0.5
        return f"moved {direction}"


class CodingEnv:
    """For a run of several environments: only this tool is shown in its prompts."""

    def reset(self, **kwargs) -> str:
        self.n = random.randint(1, 20)
        return f"Compute the {self.n}th Fibonacci number."

    def run_code(self, code: str) -> str:
        """Run the given Python code and return its stdout.

        Args:
            code: The Python source to execute.

        Returns:
            The captured standard output.
        """
        return f"ran {len(code)} characters"

    def get_reward(self) -> float:
        return random.random()


class GameEnv:
    def reset(self, **kwargs) -> str:
        self.moves = 0
        return "Reach the goal tile."

    def move(self, action: str) -> str:
        """Apply an action to the game and return the new observation.

        Args:
            action: One of "up", "down", "left", "right".

        Returns:
            The observation after the move.
        """
        self.moves += 1
        return f"moved {action}"

    async def get_reward(self) -> float:
        return float(self.moves > 1)
