"""The system calls that a program is refused, in each way of isolation.

Runs inside the jail, before the program: imports only the standard library.
"""

import ctypes
import os
import platform
import struct

_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of classic BPF
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in `struct seccomp_data`
_EPERM, _ENOSYS = 1, 38
_CLONE_THREAD, _AF_UNIX = 0x10000, 1
_SAME_EVERYWHERE = 424  # from here on calls have one number on all machines
_NEWER_ALLOWED = (436, 437, 439, 441, 449)  # close_range, openat2, faccessat2, epoll_pwait2, futex_waitv
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2

MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> audit architecture, place in the tables below (-1: the machine has no such call)."""

_REFUSED = {
    # processes: a program is one, and reaches no other
    "fork": (57, -1), "vfork": (58, -1), "execve": (59, 221), "execveat": (322, 281), "kill": (62, 129),
    "tkill": (200, 130), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "setpriority": (141, 140), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122), "sched_setattr": (314, 274), "ioprio_set": (251, 30),
    "migrate_pages": (256, 238), "move_pages": (279, 239),
    # other ways to reach others, or memory that no limit counts
    "socket": (41, 198), "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "memfd_create": (319, 279), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219),
    # the file system's shape, and files by handle
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "mknod": (133, -1),
    "mknodat": (259, 33), "quotactl": (179, 60), "acct": (163, 89), "fanotify_init": (300, 262),
    # the kernel's own business
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294),
    "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "syslog": (103, 116), "personality": (135, 92),
    "iopl": (172, -1), "ioperm": (173, -1), "vhangup": (153, 58), "sethostname": (170, 161),
    "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}  # fmt: skip

_ATTRIBUTES = {
    "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, -1), "fchown": (93, 55),
    "lchown": (94, -1), "fchownat": (260, 54), "utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1),
    "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
}  # fmt: skip
"""Refused where the host's own files are in sight: Landlock guards their bytes, not their modes, owners and times."""

_CLONE, _SOCKETPAIR, _PRLIMIT = (56, 220), (53, 199), (302, 261)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _refusal(error: int) -> bytes:
    return _instruction(_RETURN, _REFUSE | error)


def program(machine: str, *, host_files: bool) -> bytes:
    """The filter in classic BPF: each call is allowed, refused with EPERM, or, where it is new or unknown, ENOSYS."""
    architecture, place = MACHINES[machine]
    allow = _instruction(_RETURN, _ALLOW)
    lines = [_instruction(_LOAD, _ARCHITECTURE), _instruction(_EQUAL, architecture, 1, 0), _instruction(_RETURN, _KILL)]
    lines.append(_instruction(_LOAD, _NUMBER))
    for number in _NEWER_ALLOWED:
        lines += [_instruction(_EQUAL, number, 0, 1), allow]
    lines += [_instruction(_AT_LEAST, _SAME_EVERYWHERE, 0, 1), _refusal(_ENOSYS)]  # also x32's, io_uring, clone3
    for numbers in (_REFUSED | (_ATTRIBUTES if host_files else {})).values():
        if numbers[place] >= 0:
            lines += [_instruction(_EQUAL, numbers[place], 0, 1), _refusal(_EPERM)]
    # by their first argument: threads but no processes, pairs of sockets, limits of this process
    for numbers, test in (
        (_CLONE, _instruction(_ANY_BIT, _CLONE_THREAD, 1, 0)),
        (_SOCKETPAIR, _instruction(_EQUAL, _AF_UNIX, 1, 0)),
        (_PRLIMIT, _instruction(_EQUAL, 0, 1, 0)),
    ):
        lines += [_instruction(_EQUAL, numbers[place], 0, 4), _instruction(_LOAD, _FIRST_ARGUMENT), test]
        lines += [_refusal(_EPERM), allow]
    return b"".join([*lines, allow])


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def refuse_calls(libc: ctypes.CDLL, *, host_files: bool) -> None:
    """Put the filter over this process for good. OSError if the kernel has none."""
    text = program(platform.machine(), host_files=host_files)
    given = _Program(len(text) // 8, text)
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, ctypes.byref(given), 0, 0)):
        if libc.prctl(*arguments) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"seccomp: {os.strerror(error)}")
