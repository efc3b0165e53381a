"""Python programs that start at once: children of an interpreter that has imported JAX, which alone takes a second.

`command("jax")` stands where `sys.executable` would: what it starts has its own arguments, environment, folder and
streams, and an end of its own with all that runs at an exit. It knows `-W`, `-c`, `-m` and scripts. treeviz is never
imported before; a test of what an import does needs `sys.executable`.

    python -P pythons.py SOCKET JAX…         imports the modules, and forks for each program that is asked for
    python -IS pythons.py SOCKET ARGUMENTS…  stands for such a program: passes streams and signals on, ends as it does

Where there is no fork that can be watched, `command` is `sys.executable`.
"""

import array
import marshal
import os
import signal
import socket
import sys

FORWARDED = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
servers = {}


def command(*modules):
    """The command, up to the arguments, of a Python that has imported these modules."""
    if not hasattr(os, "pidfd_open"):
        return [sys.executable]
    if modules not in servers:
        servers[modules] = start(modules)
    return [sys.executable, "-IS", __file__, servers[modules][1]]


def put_kernel(folder):
    """Put a kernel for notebooks into a folder of Jupyter's data, which goes before the installed one."""
    import json
    from pathlib import Path

    argv = [*command("jax", "ipykernel.kernelapp", "ipywidgets", "anywidget"), "-m", "ipykernel_launcher"]
    kernel = {"argv": [*argv, "-f", "{connection_file}"], "display_name": "Python 3", "language": "python"}
    file = Path(folder) / "kernels" / "python3" / "kernel.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(kernel))


def start(modules):
    import atexit
    import subprocess
    import tempfile

    address = os.path.join(tempfile.mkdtemp(prefix="pythons"), "socket")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    arguments = [sys.executable, "-P", __file__, "--serve", address, *modules]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(arguments, env=environment, start_new_session=True, **pipes)
    server.stdout.readline()  # it listens
    atexit.register(server.__exit__, None, None, None)
    return server, address


# The one that stands for a program


def stand_for_program(address, arguments):
    is_open = [is_there(fd) for fd in range(3)]
    for fd in range(3):
        if not is_open[fd]:
            os.open(os.devnull, os.O_RDWR)  # or the connection would take its number
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    asked = marshal.dumps((arguments, dict(os.environ), os.getcwd(), is_open))
    head = len(asked).to_bytes(8, "big")
    connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", range(3)))])
    connection.sendall(asked)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):  # the program's alone: who reads what it writes hears of its end
        os.dup2(nothing, fd)
    pid = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    for number in FORWARDED:
        signal.signal(number, lambda number, _: os.kill(pid, number))
    status = int.from_bytes(connection.recv(8, socket.MSG_WAITALL) or b"\1\0", "big")  # or the server has failed
    if os.WIFSIGNALED(status):
        for number in FORWARDED:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def is_there(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


# The one that forks


def serve(address, modules):
    """Return in each child what it is asked to be."""
    import importlib
    import selectors

    waiting = selectors.DefaultSelector()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(0, selectors.EVENT_READ)
    print("ready", flush=True)
    for name in modules:
        importlib.import_module(name)
    settle()
    clients = {}  # of each file that is waited for: the connection, the program and its file
    while True:
        key, _ = waiting.select()[0]  # one at a time: the next may have taken a number that this one frees
        if key.fileobj == 0:  # who started this one is gone
            for _, pid, _ in clients.values():
                os.kill(pid, signal.SIGKILL)
            os.unlink(address)
            os.rmdir(os.path.dirname(address))
            os._exit(0)
        elif key.fileobj is listener:
            connection, _ = listener.accept()
            asked, fds = receive(connection)
            if (pid := os.fork()) == 0:
                listener.close()
                return asked, fds
            for fd in fds:
                os.close(fd)
            client = connection, pid, os.pidfd_open(pid)
            clients[connection.fileno()] = clients[client[2]] = client
            waiting.register(connection, selectors.EVENT_READ)
            waiting.register(client[2], selectors.EVENT_READ)
            connection.sendall(pid.to_bytes(8, "big"))
        elif key.fd in clients:
            connection, pid, watched = clients[key.fd]
            if key.fd != watched:  # who stood for the program was killed
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            for fd in connection.fileno(), watched:
                waiting.unregister(fd)
                del clients[fd]
            try:
                connection.sendall(status.to_bytes(8, "big"))
            except OSError:
                pass
            connection.close()
            os.close(watched)


def settle():
    """Nothing of what is there is looked at again by a collection of garbage, so that it stays shared."""
    import gc

    gc.collect()
    gc.freeze()


def receive(connection):
    head, control, *_ = connection.recvmsg(8, socket.CMSG_LEN(3 * 4))
    fds = array.array("i")
    fds.frombytes(control[0][2])
    asked = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    return marshal.loads(asked), fds.tolist()


# The program


def become(asked, fds):
    """Be what was asked for; gives what is to be run."""
    arguments, environment, folder, is_open = asked
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
        if not is_open[number]:
            os.close(number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    open_streams(is_open)
    update_jax()
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    while arguments[0] == "-W":
        import warnings

        warnings.simplefilter(arguments[1])
        sys.warnoptions.append(arguments[1])
        arguments = arguments[2:]
    return arguments


def open_streams(is_open):
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        how = {"encoding": encoding or "utf-8", "errors": "backslashreplace" if fd == 2 else errors or "strict"}
        stream = open(fd, "w" if fd else "r", closefd=False, **how) if is_open[fd] else None  # noqa: SIM115
        if fd == 2 and stream:
            stream.reconfigure(line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def update_jax():
    """What JAX has read of the environment when it was imported."""
    if "jax" not in sys.modules:
        return
    jax = sys.modules["jax"]
    for variable, text in os.environ.items():
        name = variable.lower()
        if variable.startswith("JAX_") and name in jax.config.values:
            was = jax.config.values[name]
            value = text.lower() in ("1", "true", "yes", "on") if isinstance(was, bool) else type(was or "")(text)
            if value != was:
                jax.config.update(name, value)


def run(arguments):
    import runpy
    import types

    first, *rest = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(first)))
        sys.argv = arguments
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        run(become(*serve(sys.argv[2], sys.argv[3:])))
    else:
        stand_for_program(sys.argv[1], sys.argv[2:])
