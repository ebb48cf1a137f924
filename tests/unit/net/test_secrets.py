import asyncio
import logging
import subprocess
import sys
import traceback

import pytest

from loopback import HttpRequest, Reply, as_json, serve
from ramify.core.errors import MachineError
from ramify.net.client import HttpClient, HttpSettings
from ramify.net.secrets import hide, names_of, printable, read_key, redact, shown, take_secret

KEY = "sk/very+secret=1234"


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RAMIFY_PROBE_KEY", f" {KEY}\n")
    return read_key("RAMIFY_PROBE_KEY")


def test_a_key_is_read_without_its_line_end(key: str) -> None:
    assert key == KEY
    assert names_of([key, "another"]) == ("RAMIFY_PROBE_KEY",)


@pytest.mark.parametrize("value", [None, "", "  ", "a b", "a\x07b", "schlüssel"])
def test_a_missing_or_impossible_key_names_its_variable(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("RAMIFY_OTHER_KEY", raising=False)
    else:
        monkeypatch.setenv("RAMIFY_OTHER_KEY", value)
    with pytest.raises(MachineError, match="RAMIFY_OTHER_KEY") as caught:
        read_key("RAMIFY_OTHER_KEY")
    assert not (value and value.strip()) or value not in str(caught.value)


def test_keys_are_redacted_as_they_are_and_as_addresses_spell_them(key: str) -> None:
    text = f"a {key} b ?k=sk%2Fvery%2Bsecret%3D1234 c"
    assert redact(text) == "a [key RAMIFY_PROBE_KEY] b ?k=[key RAMIFY_PROBE_KEY] c"


def test_a_key_within_a_longer_key_leaves_nothing_behind() -> None:
    hide(["inner-key", "outer-inner-key-end"])
    assert redact("x outer-inner-key-end y inner-key") == "x [key] y [key]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"key {KEY}", "key [key RAMIFY_PROBE_KEY]"),
        ("at http://joe:hunter2@h.test/x?y=a@b", "at http://[credentials]@h.test/x?y=a@b"),
        ("'HTTPS://joe:p@ss@h.test'", "'HTTPS://[credentials]@h.test'"),
        ("http:/joe:hunter2@h.test/config.json", "http:/[credentials]@h.test/config.json"),
        ("postgres://:hunter2@h/x and ssh://joe@h", "postgres://[credentials]@h/x and ssh://[credentials]@h"),
        ("http://h.test/a@b, mail a@b.test", "http://h.test/a@b, mail a@b.test"),
        ("\x1b[2J \ud800", r"\x1b[2J \ud800"),
    ],
)
def test_what_people_see_holds_no_keys_no_credentials_and_no_escapes(
    key: str, text: str, expected: str
) -> None:
    assert shown(text) == expected


def test_a_warning_of_a_library_is_shown_like_anything_else(
    key: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.Logger("a library's")  # without pytest's handlers, as in a run
    monkeypatch.setattr(logging, "raiseExceptions", False)
    logger.warning("said \x1b[31m%s\nsecond line", key)
    assert capsys.readouterr().err == "said \\x1b[31m[key RAMIFY_PROBE_KEY]\nsecond line\n"


def _reset(stream: object) -> None:
    stream.write(b"HTTP/1.1 200 OK\r\nno header " + KEY.encode() + b"\r\n\r\n")  # type: ignore[attr-defined]


REPLIES = {
    "refused": as_json({"error": f"key {KEY} is unknown"}, 401),
    "client": as_json({"error": f"key {KEY}"}, 400),
    "cut": as_json("x" * 146 + KEY, 400),
    "server": as_json({"error": KEY}, 500),
    "redirect": Reply(302, headers={"location": f"/login?key={KEY}"}),
    "malformed": Reply(200, KEY.encode(), {"content-type": f"text/{KEY}"}),
    "protocol": Reply(write=_reset),
}


@pytest.mark.integration
@pytest.mark.parametrize("name", REPLIES)
def test_no_key_shows_in_messages_reprs_logs_or_tracebacks(
    name: str, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(_: HttpRequest) -> Reply:
        return REPLIES[name]

    async def ask() -> str:
        settings = HttpSettings(attempts=2, backoff_seconds=0.0)
        client = HttpClient("probe", settings, secrets=[key])
        try:
            got = await client.get(
                f"{server.url}/{key}/search",
                params={"api_key": key},
                headers={"Authorization": f"Bearer {key}"},
            )
            shown = repr(got)
            got.json()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not show the key
            shown = repr(error) + str(error) + "".join(traceback.format_exception(error))
        finally:
            await client.close()
        return shown + repr(client)

    with caplog.at_level(logging.DEBUG), serve(answer) as server:
        shown = asyncio.run(ask())
    logged = caplog.text + "".join(record.getMessage() for record in caplog.records)
    assert "[key RAMIFY_PROBE_KEY]" in shown
    for text in (shown, logged):
        assert KEY not in text
        assert "very" not in text
    assert server.requests[0].headers["authorization"] == f"Bearer {key}"


def test_addresses_that_a_library_logs_hold_no_key(key: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("httpx").info("HTTP Request: %s", f"http://h.test/?k={KEY}")
    assert caplog.messages == ["HTTP Request: http://h.test/?k=[key RAMIFY_PROBE_KEY]"]


@pytest.mark.integration
def test_a_header_that_breaks_http_is_not_quoted(key: str) -> None:
    async def ask() -> str:
        client = HttpClient("probe", HttpSettings(), secrets=[key])
        with pytest.raises(Exception, match="rules") as caught:
            await client.get(server.url, headers={"Authorization": f"{key}\r\n"})
        await client.close()
        return "".join(traceback.format_exception(caught.value))

    with serve(lambda _: as_json(1)) as server:
        assert KEY not in asyncio.run(ask())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain, naïve, 日本, 🙂, a\u00a0b", "plain, naïve, 日本, 🙂, a\u00a0b"),
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\rb\x9b31m\x7f", r"a\rb\x9b31m\x7f"),
        ("half \ud800 of a pair", r"half \ud800 of a pair"),
        ("\u202eevil\u2066\u200b\u2028", r"\u202eevil\u2066\u200b\u2028"),
        ("\U000e0041", r"\U000e0041"),
        ("a\n\tb", r"a\n\tb"),
    ],
)
def test_what_would_act_on_a_terminal_is_spelled_out(text, expected):
    assert printable(text) == expected
    printable(text).encode()


def test_line_breaks_stay_where_they_are_asked_for():
    assert printable("a\n\x1b\tb", keep="\n") == "a\n\\x1b\\tb"


def test_a_secret_that_is_taken_is_in_no_child_and_no_text(monkeypatch):
    monkeypatch.setenv("RAMIFY_SECRET", "5eed" * 16)
    assert take_secret("RAMIFY_SECRET") == "5eed" * 16
    show = [sys.executable, "-c", "import os; print(dict(os.environ))"]
    assert "5eed" not in subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert redact(f"with {'5eed' * 16}") == "with [key RAMIFY_SECRET]"
    assert take_secret("RAMIFY_SECRET") is None


def test_a_text_that_is_too_short_for_a_secret_stays_in_messages(monkeypatch):
    monkeypatch.setenv("RAMIFY_SECRET", "a")
    assert take_secret("RAMIFY_SECRET") == "a"
    assert redact("a rank") == "a rank"
