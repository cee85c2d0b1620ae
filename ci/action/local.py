#!/usr/bin/env python3
"""Runs a composite action without GitHub.

    local.py ACTION_FOLDER [--input NAME=VALUE]... [--cache FOLDER]

Runs the steps in order in the current directory. Prints the duration of each step and then the outputs, one NAME=VALUE
per line. Supports what the project's actions use: `run` steps with bash, `if`, `env`, outputs, GITHUB_PATH, and
actions/cache, whose entries are directories in the folder given with --cache. Anything else is an error, so that a step
is never skipped unnoticed.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w.-]*)|(?P<sign>==|!=|&&|\|\||!|\(|\)))")


class Expression:
    """A GitHub Actions expression: strings, contexts, ==, !=, &&, ||, ! and parentheses."""

    def __init__(self, text, contexts):
        self.contexts = contexts
        self.tokens = []
        at = 0
        while at < len(text.rstrip()):
            match = TOKEN.match(text, at)
            if not match:
                raise SystemExit(f"unsupported expression: {text!r}")
            self.tokens.append((match.lastgroup, match.group(match.lastgroup)))
            at = match.end()

    def value(self):
        value = self.either()
        if self.tokens:
            raise SystemExit(f"unsupported expression near {self.tokens[0][1]!r}")
        return value

    def accept(self, *signs):
        if self.tokens and self.tokens[0] in [("sign", sign) for sign in signs]:
            return self.tokens.pop(0)[1]
        return None

    def either(self):
        left = self.both()
        while self.accept("||"):
            right = self.both()
            left = left or right
        return left

    def both(self):
        left = self.comparison()
        while self.accept("&&"):
            right = self.comparison()
            left = left and right
        return left

    def comparison(self):
        left = self.operand()
        while sign := self.accept("==", "!="):
            right = self.operand()
            left = (left == right) == (sign == "==")
        return left

    def operand(self):
        if self.accept("!"):
            return not self.operand()
        if self.accept("("):
            value = self.either()
            if not self.accept(")"):
                raise SystemExit("missing parenthesis in an expression")
            return value
        kind, text = self.tokens.pop(0)
        if kind == "text":
            return text[1:-1].replace("''", "'")
        if kind == "name":
            return self.look_up(text)
        raise SystemExit(f"unsupported expression near {text!r}")

    def look_up(self, name):
        value = self.contexts
        for part in name.split("."):
            # As on GitHub, an unknown name expands to the empty string.
            value = value.get(part, "") if isinstance(value, dict) else ""
        return value


def expand(text, contexts):
    """Replaces each ${{ EXPRESSION }} in a text."""

    def replace(match):
        value = Expression(match.group(1), contexts).value()
        return str(value).lower() if isinstance(value, bool) else str(value)

    return re.sub(r"\$\{\{(.*?)\}\}", replace, str(text))


def read_outputs(path):
    """Reads a file with NAME=VALUE lines, as written to GITHUB_OUTPUT."""
    outputs = {}
    for line in path.read_text().splitlines():
        name, separator, value = line.partition("=")
        if not separator:
            raise SystemExit(f"unsupported output: {line!r}")
        outputs[name] = value
    return outputs


class Runner:
    def __init__(self, action, inputs, cache):
        self.action = action
        self.cache = cache
        self.temporary = Path(tempfile.mkdtemp(prefix="action-"))
        definition = yaml.safe_load((action / "action.yml").read_text())
        known = definition.get("inputs") or {}
        for name in inputs:
            if name not in known:
                raise SystemExit(f"the action has no input {name!r}")
        values = {name: inputs.get(name, str(entry.get("default", ""))) for name, entry in known.items()}
        self.contexts = {
            "inputs": values,
            "github": {"action_path": str(action), "action_repository": "", "action_ref": ""},
            "runner": {"arch": {"x86_64": "X64", "aarch64": "ARM64"}.get(platform.machine(), ""), "os": "Linux"},
            "steps": {},
        }
        self.steps = definition["runs"]["steps"]
        self.outputs = definition.get("outputs") or {}
        self.path = []

    def run(self):
        for number, step in enumerate(self.steps, 1):
            condition = step.get("if")
            title = step.get("id") or step.get("uses", "").partition("@")[0] or f"step {number}"
            if condition is not None and not Expression(str(condition), self.contexts).value():
                print(f"== {title}: skipped, because the condition is false: {condition}", flush=True)
                continue
            begun = time.monotonic()
            if "run" in step:
                self.run_script(step)
            elif step.get("uses", "").startswith("actions/cache@"):
                self.restore(step["with"])
            else:
                raise SystemExit(f"unsupported step: {step}")
            print(f"== {title}: {time.monotonic() - begun:.1f} s", flush=True)
        for name, entry in self.outputs.items():
            print(f"{name}={expand(entry['value'], self.contexts)}")

    def run_script(self, step):
        if step.get("shell") != "bash":
            raise SystemExit(f"unsupported shell: {step.get('shell')}")
        files = {name: self.temporary / name for name in ("output", "path", "env")}
        for file in files.values():
            file.write_text("")
        script = self.temporary / "script"
        script.write_text(expand(step["run"], self.contexts))
        environment = dict(os.environ)
        environment.update({name: expand(value, self.contexts) for name, value in (step.get("env") or {}).items()})
        environment.update(
            GITHUB_ACTION_PATH=str(self.action),
            GITHUB_ACTIONS="true",
            GITHUB_OUTPUT=str(files["output"]),
            GITHUB_PATH=str(files["path"]),
            GITHUB_ENV=str(files["env"]),
            RUNNER_TEMP=str(self.temporary),
            PATH=":".join([*reversed(self.path), os.environ["PATH"]]),
        )
        status = subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", script], env=environment).returncode
        if status:
            sys.exit(status)
        self.path += files["path"].read_text().split()
        if files["env"].read_text():
            raise SystemExit("GITHUB_ENV is not supported")
        if "id" in step:
            self.contexts["steps"][step["id"]] = {"outputs": read_outputs(files["output"])}

    def restore(self, settings):
        """Makes the cached path a link to the entry's directory, so that the cache keeps files added there."""
        if self.cache is None:
            print("no --cache: nothing is restored or saved")
            return
        path, key = (expand(settings[name], self.contexts) for name in ("path", "key"))
        entry = self.cache / key.replace("/", "_")
        print(f"cache {'hit' if entry.exists() else 'miss'}: {key}")
        entry.mkdir(parents=True, exist_ok=True)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        elif path.exists():
            raise SystemExit(f"{path} exists; the cache entry would replace it. Use another HOME, or omit --cache")
        path.symlink_to(entry)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", type=Path)
    parser.add_argument("--input", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--cache", type=Path)
    arguments = parser.parse_args()
    inputs = dict(entry.split("=", 1) for entry in arguments.input)
    cache = arguments.cache.resolve() if arguments.cache else None
    Runner(arguments.action.resolve(), inputs, cache).run()


if __name__ == "__main__":
    main()
