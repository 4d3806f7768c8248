"""The filter of system calls, run by a small machine of our own: so that the other architecture's is tested, too."""

import struct

import pytest

from rlvr.jail import seccomp

ALLOWED, EPERM, ENOSYS, KILLED = 0x7FFF0000, 0x50001, 0x50026, 0x80000000
CALLS = {  # call, number of x86_64, of aarch64, first argument
    "read": (0, 63, 0, ALLOWED),
    "openat": (257, 56, 0, ALLOWED),
    "mmap": (9, 222, 0, ALLOWED),
    "futex": (202, 98, 0, ALLOWED),
    "exit_group": (231, 94, 0, ALLOWED),
    "close_range": (436, 436, 3, ALLOWED),
    "a thread": (56, 220, 0x3D0F00, ALLOWED),
    "a process": (56, 220, 17, EPERM),
    "a user namespace": (56, 220, 0x10000011, EPERM),
    "a pair of unix sockets": (53, 199, 1, ALLOWED),
    "a pair of others": (53, 199, 2, EPERM),
    "socket": (41, 198, 1, EPERM),
    "kill": (62, 129, 0, EPERM),
    "ptrace": (101, 117, 0, EPERM),
    "execve": (59, 221, 0, EPERM),
    "own limits": (302, 261, 0, ALLOWED),
    "another's limits": (302, 261, 1, EPERM),
    "io_uring_setup": (425, 425, 0, ENOSYS),
    "clone3": (435, 435, 0, ENOSYS),
    "pidfd_getfd": (438, 438, 0, ENOSYS),
    "a call of the future": (700, 700, 0, ENOSYS),
    "socket of x32": (0x40000000 + 41, 0x40000000 + 198, 2, ENOSYS),
}


def verdict(program: bytes, architecture: int, number: int, argument: int) -> int:
    """What the filter returns for a call."""
    data = struct.pack("<IIQQ", number, architecture, 0, argument)
    lines = list(struct.iter_unpack("HBBI", program))
    place, value = 0, 0
    while True:
        code, if_true, if_false, operand = lines[place]
        place += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
            case 0x06:
                return operand
            case _:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
                place += if_true if holds else if_false


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("machine", seccomp.MACHINES)
def test_calls(machine: str, call: str) -> None:
    architecture, place = seccomp.MACHINES[machine]
    *numbers, argument, expected = CALLS[call]
    for host_files in (False, True):
        assert (
            verdict(seccomp.program(machine, host_files=host_files), architecture, numbers[place], argument) == expected
        )


def test_another_architecture_is_killed() -> None:
    assert verdict(seccomp.program("x86_64", host_files=False), 0x40000003, 0, 0) == KILLED


@pytest.mark.parametrize(("machine", "fchmod"), [("x86_64", 91), ("aarch64", 52)])
def test_modes_and_owners_stay_where_files_are_the_hosts(machine: str, fchmod: int) -> None:
    architecture, _ = seccomp.MACHINES[machine]
    verdicts = [verdict(seccomp.program(machine, host_files=host), architecture, fchmod, 0) for host in (False, True)]
    assert verdicts == [ALLOWED, EPERM]
