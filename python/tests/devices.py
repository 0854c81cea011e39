"""Where tests make their tensors: on ATTUNE_TEST_DEVICE, the CPU if nothing is said."""

import contextlib
import os

import torch

DEVICE = os.environ.get("ATTUNE_TEST_DEVICE", "cpu")


def on_device():
    """For all that is made within it and does not say where."""
    return torch.device(DEVICE)


def made(function):
    """What the function makes there."""
    with on_device():
        return function()


@contextlib.contextmanager
def one_thread():
    """For tensors so small that threads are in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
