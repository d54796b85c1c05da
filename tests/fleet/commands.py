"""Commands in processes of their own, which fork from one that has imported Scrapy: a new one takes 0.9 s of CPU."""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from scrapy import cmdline

from scrapy_bloom.commands.command_line import main
from tests.fleet.servers import PATIENCE
from tests.support.processes import PROCESSES

QUIET = {"TELNETCONSOLE_ENABLED": False, "REMOTE_CONTROL_ENABLED": False, "LOG_LEVEL": "INFO"}


def write_project(directory: Path, spiders: str, **settings: Any) -> Path:
    """Make *directory* a Scrapy project with a module of *spiders*, and return it."""
    (directory / "scrapy.cfg").write_text("[settings]\ndefault = project_settings\n")
    own = {"SPIDER_MODULES": ["project_spiders"], **QUIET, **settings}
    (directory / "project_settings.py").write_text("".join(f"{name} = {value!r}\n" for name, value in own.items()))
    (directory / "project_spiders.py").write_text(spiders)
    return directory


class Command:
    """A command in *project*: of Scrapy, if its first word is ``scrapy``, or else of ours."""

    def __init__(self, project: Path, *words: str) -> None:
        self.log_file, self._out = project / "log", project / "out"
        self._process = PROCESSES.Process(target=_run, args=(project, words, self._out, self.log_file))
        self._process.start()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.exitcode

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def finish(self) -> str:
        """Wait for its end, and return what it has printed."""
        self._process.join(PATIENCE)
        is_alive = self.code is None
        self.kill()
        assert not is_alive, f"the command hangs:\n{self.log()}"
        return self._out.read_text()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def children(self, *, servers: bool) -> list[int]:
        """Return the ids of its processes: those of servers, or those of workers."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return [int(pid) for pid in children if (b"-server" in Path(f"/proc/{pid}/cmdline").read_bytes()) is servers]


def _run(project: Path, words: Sequence[str], out: Path, log: Path) -> None:
    os.chdir(project)
    sys.path.insert(0, str(project))
    for path, how, stream in ((out, os.O_TRUNC, sys.stdout), (log, os.O_APPEND, sys.stderr)):
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | how, 0o600), stream.fileno())
    popen: Any = subprocess.Popen
    subprocess.Popen = (
        lambda command, **options: (  # type: ignore[misc, assignment] # workers fork from this process
            _Forked(command[2], **options) if command[:2] == [sys.executable, "-m"] else popen(command, **options)
        )
    )
    if words[0] == "scrapy":
        cmdline.execute(list(words))
    sys.exit(main(words))


class _Forked:
    """What of `subprocess.Popen` the command uses, for ``python -m`` *module* with a pipe as its standard input."""

    def __init__(self, module: str, *, stdin: int, bufsize: int, start_new_session: bool) -> None:
        assert (stdin, bufsize, start_new_session) == (subprocess.PIPE, 0, True)
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.closerange(3, read)
            os.closerange(read + 1, 1024)
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            sys.stdin = os.fdopen(read)
            _exit_after(import_module(module).main)
        os.close(read)
        self.stdin = os.fdopen(write, "wb", 0)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(os.WNOHANG)

    def wait(self, how: int = 0) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, how)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _exit_after(call: Any) -> None:
    code: Any = 1
    try:
        call()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
