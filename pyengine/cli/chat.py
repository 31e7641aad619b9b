"""pyengine-cli chat: a conversation at the terminal.

History and line editing come from readline where it exists. Ctrl-C stops the reply
and not the program; Ctrl-D ends. Imported by the command line only.
"""
import sys

from . import arguments
from .run import read_prompt, say, timings

HELP = """\
/clear     forget the conversation (the system message stays)
/regen     answer the last message again
/read FILE put a file's text into the next message
/exit      end (also Ctrl-D)
A line that ends in \\ goes on in the next one; \"\"\" opens a block of lines that \"\"\" ends.
Ctrl-C stops a reply."""


def parser():
    from .run import parser

    p = parser()
    p.prog = "pyengine-cli chat"
    p.description = "Talk with a model. " + HELP.replace("\n", "; ")
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    args.conversation = True
    prompt = read_prompt(args)
    system = args.system_prompt
    if system is not None and args.escape:
        system = arguments.unescape(system)
    return talk(args, system, prompt)


def talk(args, system, first) -> int:
    if args.raw or args.json:
        raise SystemExit(f"{'--raw' if args.raw else '--json'} needs a prompt: expected -p, -f or stdin")
    note = say(args)
    with arguments.load(args) as model:
        if not model.has_chat_template:
            from ..errors import TemplateError

            raise TemplateError("this file has no chat template, so there is nothing to talk with: "
                                "-p TEXT completes a text")
        talk = Conversation(model, {**arguments.sampling(args), "template_variables": args.chat_template_kwargs}, system, note)
        note("/help lists the commands; Ctrl-C stops a reply, Ctrl-D ends")
        lines = Lines(args.multiline_input)
        if first is not None:
            talk.say(first)
            if args.single_turn:
                return 0
        while True:
            try:
                text = lines.read()
            except KeyboardInterrupt:
                sys.stdout.write("\n")       # drops the line that was being written
                continue
            if text is None:
                sys.stdout.write("\n")
                return 0
            if not text.strip():
                continue
            if text.startswith("/"):
                if not talk.command(text):
                    return 0
            else:
                talk.say(text)


class Conversation:
    """Messages so far, and the model that answers them."""

    def __init__(self, model, settings: dict, system, note):
        self.model, self.settings, self.note = model, settings, note
        self.system = [{"role": "system", "content": system}] if system is not None else []
        self.messages = []
        self.pending = ""            # text of /read for the next message

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": self.pending + text})
        self.pending = ""
        self._answer()

    def _answer(self) -> None:
        from ..errors import PyengineError
        from . import describe, one_line

        parts, stream = [], None
        try:
            try:
                stream = self.model.chat(self.system + self.messages, stream=True, **self.settings)
                for piece in stream:
                    parts.append(piece)
                    sys.stdout.write(piece)
                    sys.stdout.flush()
            except KeyboardInterrupt:
                if stream is not None:
                    stream.close()
            sys.stdout.write("\n")
        except PyengineError as e:
            # The turn that could not be answered is taken back, so that the next one can be.
            self.messages.pop()
            self.note(f"error: {one_line(describe(e))} (/clear begins again)")
            return
        if stream is None:
            self.messages.pop()
            return
        self.messages.append({"role": "assistant", "content": "".join(parts)})
        if stream.result is not None:
            self.note(timings(stream.result))

    def command(self, text: str) -> bool:
        """Runs /command; false ends the program."""
        name, _, rest = text.strip().partition(" ")
        if name in ("/exit", "/quit"):
            return False
        if name == "/help":
            print(HELP)
        elif name == "/clear":
            self.messages.clear()
            self.note("conversation forgotten")
        elif name == "/regen":
            if self.messages and self.messages[-1]["role"] == "assistant":
                self.messages.pop()
                self._answer()
            else:
                self.note("there is no answer yet")
        elif name == "/read":
            try:
                with open(rest.strip(), encoding="utf-8") as f:
                    self.pending += f.read() + "\n"
                self.note(f"{len(self.pending)} characters go before your next message")
            except (OSError, UnicodeDecodeError) as e:
                self.note(f"error: {e}")
        else:
            self.note(f"unknown command {name}; /help lists them")
        return True


class Lines:
    """Turns from the terminal: one line, several by \\ or \"\"\", or up to an empty line."""

    def __init__(self, until_empty: bool):
        self.until_empty = until_empty
        try:
            import readline              # gives input() editing and history
        except ImportError:
            readline = None
        self._readline = readline

    def read(self) -> "str | None":
        """None at the end of input."""
        lines, block = [], False
        while True:
            try:
                line = input("> " if not lines and not block else ". ")
            except EOFError:
                return "\n".join(lines) if lines else None
            if block:
                if line.rstrip().endswith('"""'):
                    lines.append(line.rstrip()[:-3])
                    return "\n".join(lines)
                lines.append(line)
            elif not lines and line.startswith('"""'):
                block = True
                if line[3:].rstrip().endswith('"""'):
                    return line[3:].rstrip()[:-3]
                lines.append(line[3:])
            elif self.until_empty and not line.startswith("/"):
                if not line:
                    return "\n".join(lines)
                lines.append(line)
            elif line.endswith("\\"):
                lines.append(line[:-1])
            else:
                return "\n".join([*lines, line])
