"""What cannot be read, and arguments that are none: one line, and status 2."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treeviz.cli import main, output


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="nobody is who may read nothing")
@pytest.mark.parametrize("name", ["secret.npz", "secret", "part"])
def test_what_may_not_be_read_is_one_line_and_status_2(tmp_path, monkeypatch, capsys, name):
    """Root may read all, and so is nobody for a while."""
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    Path("secret.npz").touch(0)
    Path("secret").mkdir(0)
    Path("part").mkdir()
    Path("part").chmod(0o755)
    Path("part/model.safetensors").touch(0)
    main([name])  # nobody may not even import what lies in root's home
    capsys.readouterr()
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        status = main([name])
    finally:
        if is_root:
            os.seteuid(0)
    printed = capsys.readouterr()
    what = "part/model.safetensors" if name == "part" else name
    assert (status, printed.out, printed.err) == (output.TROUBLE, "", f"treeviz: {what}: Permission denied\n")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("gone.npz", None, "gone.npz: No such file or directory"),
        ("model.pkl", b"", "treeviz does not open pickles"),
        ("model.h5", b"", "model.h5: treeviz reads .safetensors, "),
        ("broken.npz", b"PK", "broken.npz is not a whole .npz file"),
        ("broken.npy", b"\x93NUMPY\x01", "broken.npy is not a whole .npy file"),
        ("broken.safetensors", b"\xff" * 20, "broken.safetensors is not a whole .safetensors file"),
        ("empty.safetensors", b"", "empty.safetensors is not a whole .safetensors file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line_and_status_2(tmp_path, capsys, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert main([str(tmp_path / name)]) == output.TROUBLE
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_fault_of_treeviz_is_no_difference(monkeypatch, capsys):
    assert (output.SAME, output.DIFFERENT, output.TROUBLE) == (0, 1, 2), "as the guide says"
    monkeypatch.setattr("treeviz.cli.doctor._distributions", lambda: {}["x"])
    assert main(["doctor"]) == output.TROUBLE
    assert "KeyError: 'x'" in capsys.readouterr().err


def test_no_arguments_and_unknown_ones_are_status_2(capsys):
    for arguments in ([], ["x.npz", "--unknown"], ["chek", "x.npz"]):
        with pytest.raises(SystemExit) as exit:
            main(arguments)
        assert exit.value.code == 2
    assert "no file 'chek'; did you mean check?" in capsys.readouterr().err
