"""What may be typed after `mindeval`. Imports nothing heavy, so that --help is quick."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

DEFAULT_ENDPOINT = "127.0.0.1:7860"
_EPILOG = """\
exit codes:
  0    done
  1    the evaluation did not succeed
  2    wrong usage, or a file that cannot be used
  3    the service cannot be reached
  4    the service refused
  130  interrupted; an evaluation that was created goes on

environment:
  MINDEVAL_ENDPOINT, MINDEVAL_PROJECT, MINDEVAL_TOKEN   as the options of these names
  MINDEVAL_DEBUG=1                                      tracebacks
"""
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?\Z")
_OPTIONS_WITH_VALUE = ("--endpoint", "--project", "--token-file", "--tls-ca")
Run = Callable[[Any, argparse.Namespace], Awaitable[int]]


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        print(f"mindeval: error: {message}; see `{self.prog} --help` [USAGE]", file=sys.stderr)
        raise SystemExit(2)


class _ShowVersion(argparse.Action):
    """As argparse's own, without looking the version up for every command."""

    def __call__(self, *_: Any) -> NoReturn:
        from mindeval.client._version import version

        print(f"mindeval {version()}")
        raise SystemExit(0)


def build_parser() -> argparse.ArgumentParser:
    """The parser; `run` of its result is the coroutine function of the command."""
    shared = _shared_options(argparse.SUPPRESS)
    parser = _Parser(
        prog="mindeval",
        description="Evaluate checkpoints on an evaluation service.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[_shared_options(None)],
    )
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    _add_serve(commands)
    _add_suite(commands, shared)
    _add_dataset(commands, shared)
    _add_push(commands, shared)
    _add_checkpoints(commands, shared)
    _add_evaluate(commands, shared)
    _add_readers(commands, shared)
    return parser


def command_index(words: Sequence[str]) -> int:
    """Position of the command: the first word that is neither a shared option nor the value of one."""
    index = 0
    while index < len(words) and words[index].startswith("-"):
        index += 2 if words[index] in _OPTIONS_WITH_VALUE else 1
    return index


def parse_duration(text: str) -> float:
    """Seconds of "90", "90s", "10m" or "1h30m".

    Raises:
        argparse.ArgumentTypeError: When it is none of these, or not above 0.
    """
    match = _DURATION.match(text) if text else None
    seconds = sum(float(part or 0) * factor for part, factor in zip(match.groups(), (3600, 60, 1))) if match else 0.0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration, such as 90s, 10m or 1h30m")
    return seconds


def _shared_options(default: Any) -> argparse.ArgumentParser:
    """Options that may stand before or after the command; only those before it have defaults."""

    def of(value: Any) -> Any:
        return value if default is None else default

    parser = argparse.ArgumentParser(add_help=False)
    group = parser.add_argument_group("service")
    group.add_argument(
        "--endpoint",
        metavar="HOST:PORT",
        default=of(os.environ.get("MINDEVAL_ENDPOINT") or DEFAULT_ENDPOINT),
        help=f"address of the service (default {DEFAULT_ENDPOINT})",
    )
    group.add_argument(
        "--project",
        default=of(os.environ.get("MINDEVAL_PROJECT") or "default"),
        help="project (default 'default')",
    )
    group.add_argument("--token-file", metavar="FILE", default=of(None), help="file with the token")
    group.add_argument("--tls", action="store_true", default=of(False), help="use TLS with the system's authorities")
    group.add_argument("--tls-ca", metavar="FILE", default=of(None), help="use TLS with these authorities (PEM)")
    group = parser.add_argument_group("output")
    group.add_argument(
        "--json", action="store_true", default=of(False), help="one JSON document on standard output, nothing else"
    )
    group.add_argument("--quiet", action="store_true", default=of(False), help="no progress")
    return parser


def _add_serve(commands: Any) -> None:
    # Only for --help: `main` hands everything after these words to the service's own modules.
    commands.add_parser("serve", add_help=False, help="run the service (mindeval serve --help)")
    commands.add_parser("metrics", add_help=False, help="list or check metrics (mindeval metrics --help)")


def _add_suite(commands: Any, shared: argparse.ArgumentParser) -> None:
    suite = commands.add_parser("suite", help="put, list or get suites", parents=[shared])
    actions = suite.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    put = actions.add_parser("put", help="register a version of a suite", parents=[shared])
    put.add_argument("file", metavar="FILE", help="definition (YAML or JSON)")
    put.add_argument("--name", help="id of the suite; the definition's name, or the file's, when not given")
    put.set_defaults(run=_command("commands", "put_suite"))
    listing = actions.add_parser("list", help="list the suites", parents=[shared])
    listing.set_defaults(run=_command("commands", "list_suites"))
    get = actions.add_parser("get", help="print a suite as a definition", parents=[shared])
    get.add_argument("name", metavar="NAME", help="id or full name")
    get.set_defaults(run=_command("commands", "get_suite"))


def _add_dataset(commands: Any, shared: argparse.ArgumentParser) -> None:
    dataset = commands.add_parser("dataset", help="put, list or get datasets", parents=[shared])
    actions = dataset.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    put = actions.add_parser("put", help="register a version of a dataset", parents=[shared])
    put.add_argument("name", metavar="NAME", help="id of the dataset")
    put.add_argument("files", metavar="FILE", nargs="+", help="its files, in reading order")
    put.add_argument("--format", required=True, choices=("text", "text_lines", "jsonl", "tokens_npy"))
    put.add_argument("--language", required=True, choices=("en", "zh", "mixed"), help="language of the text")
    put.add_argument("--text-field", default="", metavar="FIELD", help="field of the text in JSONL (default 'text')")
    put.add_argument("--padding-token", type=int, metavar="ID", help="token that is never scored (tokens_npy)")
    put.set_defaults(run=_command("commands", "put_dataset"))
    listing = actions.add_parser("list", help="list the datasets", parents=[shared])
    listing.set_defaults(run=_command("commands", "list_datasets"))
    get = actions.add_parser("get", help="show a dataset", parents=[shared])
    get.add_argument("name", metavar="NAME", help="id or full name")
    get.set_defaults(run=_command("commands", "get_dataset"))


def _add_push(commands: Any, shared: argparse.ArgumentParser) -> None:
    push = commands.add_parser("push", help="send a checkpoint, or each one that a training saves", parents=[shared])
    push.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="folder (Hugging Face, rank_N), .safetensors or .ckpt file, or a URI that the service reaches too",
    )
    push.add_argument("--run", dest="run_id", metavar="RUN", help="training run that it belongs to")
    push.add_argument("--step", type=int, help="optimizer steps done (needs --run)")
    push.add_argument("--epoch", type=float, default=0.0, help="epochs done")
    push.add_argument(
        "--evaluate", dest="suite", metavar="SUITE", help="have it evaluated; does not wait for the result"
    )
    push.add_argument(
        "--model-files", metavar="DIR", help="folder with config.json or mindeval_model.json, and tokenizer"
    )
    push.add_argument(
        "--watch", action="store_true", help="follow a folder and push each checkpoint once it is complete"
    )
    group = push.add_argument_group("with --watch")
    group.add_argument(
        "--poll", type=parse_duration, default=5.0, metavar="TIME", help="time between looks (default 5s)"
    )
    group.add_argument(
        "--steps-per-epoch", type=int, metavar="N", help="for files that say epoch and step within it only"
    )
    group.add_argument("--state", metavar="FILE", help="what was pushed already (default: in the user's cache)")
    push.set_defaults(run=_command("pushing", "push"))


def _add_checkpoints(commands: Any, shared: argparse.ArgumentParser) -> None:
    name_help = "digest, its first digits (at least four), or RUN@STEP"
    parser = commands.add_parser(
        "checkpoints", help="list, compare, pin or delete pushed checkpoints", parents=[shared]
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=_Parser)
    listing = actions.add_parser("list", help="list them, most recently used first", parents=[shared])
    listing.add_argument("--run", dest="run_id", metavar="RUN", help="only those of a run, by step")
    listing.add_argument("--limit", type=int, default=50, help="at most this many (default 50)")
    listing.set_defaults(run=_command("checkpoints", "list_checkpoints"))
    diff = actions.add_parser("diff", help="which tensors differ, and by how much", parents=[shared])
    diff.add_argument("base", metavar="BASE", help=name_help)
    diff.add_argument("other", metavar="OTHER", help="the later one")
    diff.add_argument("--names-only", action="store_true", help="do not compute by how much")
    diff.set_defaults(run=_command("checkpoints", "diff_checkpoints"))
    for action, text in (
        ("show", "show one"),
        ("pin", "keep one whatever the budget says"),
        ("unpin", "let go of one"),
        ("delete", "forget one; results of its evaluations stay"),
    ):
        command = actions.add_parser(action, help=text, parents=[shared])
        command.add_argument("checkpoint", metavar="CHECKPOINT", help=name_help)
        command.set_defaults(run=_command("checkpoints", f"{action}_checkpoint"))


def _add_evaluate(commands: Any, shared: argparse.ArgumentParser) -> None:
    evaluate = commands.add_parser("evaluate", help="push a checkpoint and evaluate it", parents=[shared])
    evaluate.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="as for push; or digest, its first digits or RUN@STEP of a pushed checkpoint",
    )
    evaluate.add_argument("--model-files", metavar="DIR", help="as for push")
    evaluate.add_argument("--suite", required=True, help="id or full name of the suite")
    evaluate.add_argument("--run", dest="run_id", metavar="RUN", help="training run that it belongs to")
    evaluate.add_argument("--step", type=int, default=0, help="optimizer steps done")
    evaluate.add_argument("--epoch", type=float, default=0.0, help="epochs done")
    evaluate.add_argument("--timeout", type=parse_duration, metavar="TIME", help="longest run time, such as 10m")
    evaluate.add_argument("--rerun", action="store_true", help="evaluate again what was evaluated before")
    evaluate.add_argument("--no-wait", action="store_true", help="return as soon as it is created")
    evaluate.set_defaults(run=_command("evaluating", "evaluate"))
    watch = commands.add_parser("watch", help="follow an evaluation to its end", parents=[shared])
    watch.add_argument("name", metavar="NAME", help="id or full name")
    watch.set_defaults(run=_command("evaluating", "watch"))


def _add_readers(commands: Any, shared: argparse.ArgumentParser) -> None:
    listing = commands.add_parser("list", help="list evaluations, newest first", parents=[shared])
    listing.add_argument("--filter", default="", help="such as 'run = r1 AND step >= 100 AND state = FAILED'")
    listing.add_argument("--limit", type=int, default=20, help="at most this many (default 20)")
    listing.set_defaults(run=_command("commands", "list_evaluations"))
    get = commands.add_parser("get", help="show an evaluation", parents=[shared])
    get.add_argument("name", metavar="NAME", help="id or full name")
    get.set_defaults(run=_command("commands", "get_evaluation"))
    cancel = commands.add_parser("cancel", help="end an evaluation", parents=[shared])
    cancel.add_argument("name", metavar="NAME", help="id or full name")
    cancel.set_defaults(run=_command("commands", "cancel_evaluation"))


def _command(module: str, name: str) -> Run:
    """A command that is imported when it runs."""

    async def run(session: Any, options: argparse.Namespace) -> int:
        from importlib import import_module

        command: Run = getattr(import_module(f"mindeval.client.cli.{module}"), name)
        return await command(session, options)

    return run
