"""The program in a jail that runs another one on several inputs, and writes what came out, a line each.

It is sent as text. It knows the program and the inputs, never what is expected: nothing in this process is worth
reading or forging, since the host compares.

    {"program": "def f(a): return a + 1", "setup": "", "items": [{"call": "f(1)"}, {"entry": "f", "args": [2]}], ...}
    ->  {"value": 2}
        {"value": 3}
"""

import io
import json
import os
import signal
import sys
import types


def coded(value):
    """Plain data of builtin types as JSON, where lists are lists and everything else has its name."""
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or isinstance(value, bool) else str(value)
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [coded(each) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [coded(each) for each in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": [coded(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[coded(key), coded(each)] for key, each in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return {"other": type(value).__name__}


def fed(code, text):
    """What the program writes when it is run on an input."""
    written = io.BytesIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "replace")), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(written, encoding="utf-8", errors="replace", write_through=True)
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code:
            raise
    return written.getvalue().decode("utf-8", "replace")


def called(code, setup):
    """A function of an item that calls the program's functions, which are defined once."""
    module = sys.modules["solution"] = types.ModuleType("solution")
    exec(setup, module.__dict__)
    exec(code, module.__dict__)

    def value_of(item):
        if "call" in item:
            return eval(item["call"], module.__dict__)
        owner = module.__dict__
        if "Solution" in owner and item["entry"] not in owner:
            return getattr(owner["Solution"](), item["entry"])(*item["args"])
        return owner[item["entry"]](*item["args"])

    return value_of


def set_alarm(seconds: float) -> None:
    """End this process when it has used so much time of a core, or waited twice as long; a program may prevent it."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 2 * seconds)


def main() -> None:
    request = json.load(sys.stdin)
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    code = compile(request["program"], "program.py", "exec")
    is_fed = "stdin" in request["items"][0]
    set_alarm(request["alarm_s"])
    value_of = None if is_fed else called(code, request["setup"])
    for item in request["items"]:
        set_alarm(request["alarm_s"])
        try:
            reply = {"output": fed(code, item["stdin"])} if value_of is None else {"value": coded(value_of(item))}
            line = json.dumps(reply)
        except BaseException as error:
            line = json.dumps({"raised": f"{type(error).__name__}: {error}"[:300]})
        results.write(line + "\n")
        results.flush()
    set_alarm(0)
    os._exit(0)


if __name__ == "__main__":
    main()
