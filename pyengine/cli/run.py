"""pyengine-cli run: answers one prompt, streaming text to stdout and the rest to stderr.

Imported by the command line only.
"""
import sys

from . import arguments

EPILOG = """\
The prompt is -p, or -f FILE, or what comes by stdin; with none of them and a terminal, a chat begins.
Where the file has a chat template the prompt is one user turn; --raw completes the text as it is.
Escapes (\\n, \\t, \\xHH ...) in -p and -sys are replaced, unless --no-escape; in -f and stdin never.
Other commands: chat, serve, pull, inspect, tokenize, embed, quantize, perplexity, compare, explain, fit, tune, bench, doctor
(pyengine-cli COMMAND --help).
"""


def parser():
    p = arguments.parser("", "Answer a prompt with a GGUF model.", epilog=EPILOG)
    from .. import __version__

    p.add_argument("--version", action="version", version=f"pyengine {__version__}")
    p.add_argument("-p", "--prompt", metavar="TEXT")
    p.add_argument("-f", "--file", metavar="FILE", help="read the prompt from a file (UTF-8; - is stdin)")
    p.add_argument("-sys", "--system-prompt", metavar="TEXT", help="a system message before the prompt")
    p.add_argument("--raw", "-no-cnv", "--no-conversation", dest="raw", action="store_true",
                   help="complete the text, without the chat template")
    p.add_argument("-cnv", "--conversation", action="store_true", help="chat, also where a prompt is given: it is the first turn")
    p.add_argument("-st", "--single-turn", action="store_true", help="one turn, then end (the default with a prompt)")
    p.add_argument("-e", "--escape", dest="escape", action="store_true", default=True, help="replace escapes (default)")
    p.add_argument("--no-escape", dest="escape", action="store_false")
    p.add_argument("--json", action="store_true", help="print the answer, its tokens and timings as one JSON object")
    p.add_argument("-mli", "--multiline-input", action="store_true", help="in a chat: a turn ends with an empty line")
    p.add_argument("--chat-template-kwargs", type=arguments.json_object, metavar="JSON", help="variables for the chat template, as '{\"enable_thinking\": false}'")
    arguments.add_model(p)
    arguments.add_sampling(p)
    return p


def main(argv) -> int:
    args = parser().parse_args(argv)
    prompt = read_prompt(args)
    system = args.system_prompt
    if system is not None and args.escape:
        system = arguments.unescape(system)
    if args.raw and (system is not None or args.conversation or args.chat_template_kwargs is not None):
        raise SystemExit("--raw completes the text as it is: expected no -sys, no -cnv and no --chat-template-kwargs with it")
    if prompt is None or args.conversation and not args.single_turn:
        from . import chat

        return chat.talk(args, system, prompt)
    with arguments.load(args) as model:
        return answer(model, args, prompt, system)


def read_prompt(args) -> "str | bytes | None":
    if args.prompt is not None:
        if args.file is not None:
            raise SystemExit("-p and -f are two prompts: expected one")
        return arguments.unescape(args.prompt) if args.escape else args.prompt
    if args.file is not None and args.file != "-":
        with open(args.file, "rb") as f:
            return _text(f.read(), args.file)
    if args.file == "-" or sys.stdin is not None and not sys.stdin.isatty() and not args.conversation:
        return _text(sys.stdin.buffer.read(), "stdin")
    return None


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SystemExit(f"{where}: byte {e.start} is not UTF-8") from None


def answer(model, args, prompt, system) -> int:
    note = say(args)
    chat = not args.raw and model.has_chat_template
    if system is not None and not chat:
        raise SystemExit("-sys: this file has no chat template, and without one there is no system message")
    if args.chat_template_kwargs is not None and not chat:
        raise SystemExit("--chat-template-kwargs: this file has no chat template that could read them")
    if chat:
        note("chat template of the file: the prompt is one user turn (--raw completes the text)")
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": prompt})
        stream = model.chat(messages, stream=True, template_variables=args.chat_template_kwargs, **arguments.sampling(args))
    else:
        note("completing the text" + ("" if args.raw else ": the file has no chat template"))
        stream = model.generate(prompt, stream=True, **arguments.sampling(args))
    code = 0
    try:
        for piece in stream:
            if not args.json:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        code = 130
    stream.close()
    result = stream.result
    if result is None:
        return code or 1
    if args.json:
        import json

        out = dict(result.as_dict(), prompt=prompt, model=model.model_path, mode="chat" if chat else "raw")
        print(json.dumps(out, ensure_ascii=True))
    else:
        sys.stdout.write("\n")
        sys.stdout.flush()
    note(timings(result))
    if args.profile:
        print_profile(model)
    return code


def say(args):
    """Prints notes on stderr, unless there is none or --quiet."""
    def note(text: str) -> None:
        if not args.quiet and sys.stderr is not None:
            print(f"[{text}]", file=sys.stderr)

    return note


def timings(result) -> str:
    t = result.timings
    ended = {"stop": "end of turn", "length": "length reached", None: "interrupted"}[result.finish_reason]
    return (f"prompt {t['prompt_n']} tokens, {t['prompt_ms']:.0f} ms, {t['prompt_per_second']:.1f}/s; "
            f"generated {t['predicted_n']} tokens, {t['predicted_ms']:.0f} ms, {t['predicted_per_second']:.1f}/s; "
            f"{ended}; seed {result.seed}")


def print_profile(model) -> None:
    """Time of every instruction over all steps so far, and the rate at which it read its weights."""
    program, out = model.program, sys.stderr
    total = sum(seconds for *_, seconds, _ in program.profile) or 1.0
    print(f"{'':4} {'op':10} {'ms/step':>9} {'share':>6} {'GB/s':>7}  ({program.steps} steps, {model.n_threads} threads)", file=out)
    for n, op, label, seconds, size in program.profile:
        wall = seconds / model.n_threads
        rate = f"{size * program.steps / wall / 1e9:7.1f}" if size and wall else " " * 7
        print(f"{n:4d} {op:10} {1e3 * wall / max(1, program.steps):9.3f} {100 * seconds / total:5.1f}% {rate}  {label}", file=out)
