"""`pagewire chat` on a terminal: answers stream, Ctrl-C cuts one off, Ctrl-D leaves."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest
from scripted_server import Context, Responses, ScriptedServer, echo, one, scripted_server

from pagewire.core.errors import InvalidRequest
from pagewire.protos import inference_pb2

ON_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
CTRL_C, CTRL_D = b"\x03", b"\x04"
SILENCE_S = 60.0


@pytest.fixture
def server() -> Iterator[tuple[ScriptedServer, str]]:
    with scripted_server() as running:
        yield running


class Terminal:
    """A `pagewire chat` that believes it talks to a person."""

    def __init__(self, url: str) -> None:
        self._ours, theirs = pty.openpty()
        command = [sys.executable, "-P", "-c", ON_TERMINAL, "-P", "-m", "pagewire.cli.main", "chat", "--url", url]
        environ = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
        os.close(theirs)

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def until(self, text: bytes) -> bytes:
        seen = b""
        while text not in seen:
            ready, _, _ = select.select([self._ours], [], [], SILENCE_S)
            assert ready, f"no {text!r} came after {seen!r}"
            seen += os.read(self._ours, 4096)
        return seen

    def interrupt_line(self) -> None:
        """Type Ctrl-C until it is seen: one that meets readline at work on a key is kept until the next key."""
        for _ in range(10):
            self.type(CTRL_C)
            if select.select([self._ours], [], [], 1.0)[0]:
                return
        raise AssertionError("Ctrl-C is not seen")

    def close(self) -> None:
        os.close(self._ours)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def terminal(server: tuple[ScriptedServer, str]) -> Iterator[Terminal]:
    started = Terminal(server[1])
    yield started
    started.close()


def test_a_conversation_goes_on_after_an_answer_was_cut_off(
    terminal: Terminal, server: tuple[ScriptedServer, str]
) -> None:
    scripted = server[0]
    scripted.script = scripted.endless
    terminal.until(b"> ")
    terminal.type(b"hello\n")
    terminal.until(b"first")
    terminal.type(CTRL_C)
    assert b"[cut off]" in terminal.until(b"> ")
    assert scripted.cancelled.wait(10)
    scripted.script = echo
    terminal.type(b"   \n")
    terminal.until(b"> ")
    terminal.type(b"half a line")
    terminal.until(b"line")
    terminal.interrupt_line()
    terminal.until(b"> ")
    terminal.type(b"go on\n")
    terminal.until(b"> ")
    terminal.type(CTRL_D)
    assert terminal.process.wait(10) == 0
    said = [(message.role, message.content) for message in scripted.requests[-1].chat.messages]
    assert said == [("user", "hello"), ("assistant", "first"), ("user", "go on")]
    assert len(scripted.requests) == 2


@pytest.mark.parametrize("command", [["complete", "hello"], ["chat"]])
def test_a_router_of_several_models_is_told_which(server: tuple[ScriptedServer, str], command: list[str]) -> None:
    scripted, url = server
    for flags, model in (([], ""), (["--model", "code"], "code")):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pagewire.cli.main", *command, "--url", url, *flags],
            input="hello\n", capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert scripted.requests[-1].model == model


def test_reasoning_is_shown_paler_and_goes_back_with_its_answer(
    terminal: Terminal, server: tuple[ScriptedServer, str]
) -> None:
    scripted, url = server

    def thinks(_request: inference_pb2.GenerateRequest, _context: Context) -> Responses:
        for reasoning, text in (("so", ""), (" far", ""), ("", "It"), ("", " is")):
            yield inference_pb2.GenerateResponse(chunk=inference_pb2.Chunk(reasoning=reasoning, text=text))
        yield inference_pb2.GenerateResponse(
            complete=inference_pb2.Complete(endings=[inference_pb2.Ending(finish_reason="stop")])
        )

    scripted.script = thinks
    terminal.until(b"> ")
    terminal.type(b"hello\n")
    seen = terminal.until(b"> ").replace(b"\r", b"")
    assert b"\x1b[2mso\x1b[0m\x1b[2m far\x1b[0m\n\nIt is\n" in seen
    terminal.type(b"again\n")
    terminal.until(b"> ")
    said = [(each.content, each.reasoning) for each in scripted.requests[-1].chat.messages]
    assert said == [("hello", ""), ("It is", "so far"), ("again", "")]
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "chat", "--url", url]
    done = subprocess.run(command, input="hello\n", capture_output=True, text=True, timeout=60)
    assert done.stdout == "It is\n", "what is piped is the answer"


def test_without_a_terminal_an_answer_that_failed_is_in_the_exit_code(server: tuple[ScriptedServer, str]) -> None:
    scripted, url = server
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "chat", "--url", url]
    scripted.failing(1, InvalidRequest("too long", field="max_tokens"))
    done = subprocess.run(command, input="hello\nagain\n", capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "too long" in done.stderr
    assert len(scripted.requests) == 2, "the lines behind it are asked all the same"


def test_bytes_that_are_no_text_are_replaced(server: tuple[ScriptedServer, str]) -> None:
    scripted, url = server
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "chat", "--url", url]
    environ = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C.UTF-8", "PYTHONIOENCODING": "utf-8:strict"}
    done = subprocess.run(command, input=b"caf\xe9 noir\n", capture_output=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stderr
    assert [each.content for each in scripted.requests[-1].chat.messages] == ["caf\ufffd noir"]


@pytest.mark.parametrize("environ", [{"PYTHONIOENCODING": "ascii"}, {"PYTHONUTF8": "0", "LC_ALL": "C"}])
def test_letters_that_the_terminal_does_not_have_end_no_answer(
    server: tuple[ScriptedServer, str], environ: dict[str, str]
) -> None:
    scripted, url = server
    scripted.script = lambda request, context: iter([one("caf\xe9 \u65e5"), *[*echo(request, context)][-1:]])
    command = [sys.executable, "-P", "-m", "pagewire.cli.main", "complete", "--url", url, "hello"]
    environ = {**os.environ, "PYTHONCOERCECLOCALE": "0", **environ}
    done = subprocess.run(command, capture_output=True, timeout=60, env=environ)
    assert (done.returncode, done.stdout) == (0, b"caf\\xe9 \\u65e5\n"), done.stderr
