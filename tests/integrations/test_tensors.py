"""Tensors of PyTorch and TensorFlow are leaves of which nothing but the metadata is read."""

from __future__ import annotations

import math
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from agreement import text_of, walk_and_compare

import treeviz
from treeviz import integrations

pytestmark = pytest.mark.oldest_jax


class NeverRead:
    """What a tensor has that costs or fetches something."""

    def __getattr__(self, name):
        raise AssertionError(f"{name} was read")

    def __array__(self, *args):
        raise AssertionError("the values were read")

    def __repr__(self):
        raise AssertionError("the values were printed")

    __bool__ = __len__ = __iter__ = __repr__


def fake_torch():
    torch = types.ModuleType("torch")

    class dtype(str):
        __repr__ = __str__ = str.__str__

    class Tensor(NeverRead):
        __module__ = "torch"

        def __init__(self, shape, dtype_="torch.bfloat16", device="cuda:0", requires_grad=False):
            self.shape, self.dtype, self.device, self.requires_grad = shape, dtype(dtype_), device, requires_grad

        def element_size(self):
            return 2

        def untyped_storage(self):
            n_bytes = 2 * math.prod(self.shape)
            return types.SimpleNamespace(device=self.device, nbytes=lambda: n_bytes)

        def expand(self, *shape):
            expanded = Tensor(shape, self.dtype, self.device)
            expanded.untyped_storage = self.untyped_storage
            return expanded

    class Sparse(Tensor):
        """As `torch.eye(n).to_sparse()`: n indices of 8 bytes for each axis, and n values."""

        def __init__(self, n, layout="sparse_coo"):
            super().__init__((n, n), device="cpu")
            self.layout = f"torch.{layout}"
            indices, values = Tensor((n, 4), device="cpu"), Tensor((n,), device="cpu")
            names = {"sparse_coo": ["_indices"], "sparse_csr": ["crow_indices", "col_indices"]}[layout]
            for name in names:
                setattr(self, name, lambda: indices)
            setattr(self, "_values" if layout == "sparse_coo" else "values", lambda: values)

        def untyped_storage(self):
            raise NotImplementedError("Cannot access storage of SparseTensorImpl")

    class Parameter(Tensor):
        __module__ = "torch.nn.parameter"

    torch.Tensor, torch.Parameter, torch.Sparse = Tensor, Parameter, Sparse
    return torch


def fake_tensorflow():
    tensorflow = types.ModuleType("tensorflow")

    class DType:
        name, size = "float32", 4

    class Tensor(NeverRead):
        dtype = DType

        def __init__(self, shape, device=""):
            self.shape, self.device = shape, device

    class EagerTensor(Tensor):
        __module__ = "tensorflow.python.framework.ops"

    class Variable(NeverRead):
        __module__ = "tensorflow.python.ops.variables"
        shape, dtype, device, trainable = (2, 3), DType, "/job:localhost/replica:0/task:0/device:GPU:1", True

    tensorflow.Tensor, tensorflow.EagerTensor, tensorflow.Variable = Tensor, EagerTensor, Variable
    return tensorflow


@pytest.fixture
def fake(request, monkeypatch):
    """The module that a test asks for, in the place of the real one, as if our file about it was never loaded."""
    module = {"torch": fake_torch, "tensorflow": fake_tensorflow}[request.param]()
    module.__spec__ = ModuleSpec(request.param, None)
    monkeypatch.setitem(sys.modules, request.param, module)
    monkeypatch.delitem(sys.modules, f"treeviz.integrations.{request.param}", raising=False)
    monkeypatch.setattr(integrations, "_loaded", integrations._loaded - {request.param})
    yield module
    sys.modules.pop(f"treeviz.integrations.{request.param}", None)


@pytest.mark.parametrize("fake", ["torch"], indirect=True)
def test_a_torch_tensor_shows_shape_dtype_device_and_whether_it_has_a_gradient(fake):
    tree = {"w": fake.Parameter((2, 3), requires_grad=True), "x": fake.Tensor((4,), "torch.float16", "cpu")}
    table = walk_and_compare(tree)
    facts = [(row.kind, row.type, row.shape, row.dtype, row.facts.bytes, row.facts.text) for row in table.leaves]
    assert facts == [
        ("tensor", "Parameter", (2, 3), "bfloat16", 12, "cuda:0, requires_grad"),
        ("tensor", "Tensor", (4,), "float16", 8, "cpu"),
    ]
    assert table.notes == {}
    assert table.headline[:3] == ("2 leaves", "Parameter 6", "Tensor 4")
    assert "├─ w  Parameter bfloat16[2,3] tensor  cuda:0, requires_grad" in text_of(tree).splitlines()


@pytest.mark.parametrize("fake", ["torch"], indirect=True)
def test_a_torch_tensor_counts_the_bytes_that_it_holds(fake):
    tree = {
        "plain": fake.Tensor((4,), device="cpu"),
        "meta": fake.Tensor((1000,), device="meta"),
        "sparse": fake.Sparse(1000),
        "csr": fake.Sparse(1000, "sparse_csr"),
        "expanded": fake.Tensor((1,), device="cpu").expand(1000, 1000),
    }
    rows = {row.path: row for row in treeviz.walk(tree).leaves}
    n_bytes = {path: row.facts.bytes for path, row in rows.items()}
    assert n_bytes == {"plain": 8, "meta": 0, "sparse": 10_000, "csr": 18_000, "expanded": 2}
    assert rows["sparse"].facts.text == "cpu, sparse_coo" and rows["sparse"].shape == (1000, 1000)


@pytest.mark.parametrize("fake", ["torch"], indirect=True)
def test_the_same_tensor_in_two_places_is_shared(fake):
    tensor = fake.Tensor((4,))
    assert treeviz.walk([tensor, tensor]).headline[0] == "2 leaves (1 unique)"


@pytest.mark.parametrize("fake", ["tensorflow"], indirect=True)
def test_a_tensorflow_tensor_shows_shape_dtype_and_device(fake):
    device = "/job:localhost/replica:0/task:0/device:CPU:0"
    tree = [fake.EagerTensor((2, 3), device), fake.Tensor((None, 3)), fake.Variable()]
    table = walk_and_compare(tree)
    facts = [(row.kind, row.type, row.shape, row.dtype, row.facts.bytes, row.facts.text) for row in table.leaves]
    assert facts == [
        ("tensor", "EagerTensor", (2, 3), "float32", 24, "cpu:0"),
        ("tensor", "Tensor", None, "float32", 0, ""),
        ("tensor", "Variable", (2, 3), "float32", 24, "gpu:1, trainable"),
    ]


def test_real_torch_tensors_are_shown_and_not_read():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    layer = torch.nn.Linear(2, 3)
    tree = {"state": layer.state_dict(), "p": layer.weight, "meta": torch.empty(2, device="meta"), "i": torch.arange(3)}
    table = walk_and_compare(tree)
    assert {row.kind for row in table.leaves} == {"tensor"}
    by_path = {row.path: row for row in table.leaves}
    assert (by_path["p"].type, by_path["p"].shape, by_path["p"].dtype) == ("Parameter", (3, 2), "float32")
    assert by_path["p"].facts.text == "cpu, requires_grad"
    assert (by_path["meta"].facts.text, by_path["meta"].facts.bytes) == ("meta", 0)
    assert (by_path["i"].dtype, by_path["i"].facts.bytes) == ("int64", 24)
    assert by_path["state/weight"].facts.bytes == 24
    sparse = treeviz.walk(torch.eye(1000).to_sparse())[0].facts
    assert sparse.bytes == 1000 * (4 + 2 * 8) and sparse.text == "cpu, sparse_coo"


def test_real_tensorflow_tensors_are_shown_and_not_read():
    tensorflow = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    table = walk_and_compare([tensorflow.ones((2, 3)), tensorflow.Variable([1.0])])
    assert [(row.kind, row.shape, row.dtype) for row in table.leaves] == [
        ("tensor", (2, 3), "float32"),
        ("tensor", (1,), "float32"),
    ]
