"""Who takes part in bench/distributions.py. Rows come configuration by configuration: what is compiled for the first of
one, and tensors of its mask, serve the others."""

import dataclasses

import torch

import attune_c
import backward_side_by_side as backward
import contestants
import hostile_data

PEERS = ("FA3", "FA4", "cuDNN", "FA2", "Flex", "FLASH")  # the last two: FlexAttention's backends
MODULES = {"FA3": "flash_attn_interface", "FA4": "flash_attn.cute", "FLASH": "flash_attn.cute"}


@dataclasses.dataclass
class Dropping(contestants.Entry):
    """Draws the same bits at every launch."""
    attend: object = None  # O of other values
    kept_share: float = 1.0


class Flex:
    """torch's flex_attention on the backend that is asked for."""

    def __init__(self, row, tensors):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        torch._dynamo.reset()  # a limit on recompilations is counted for all configurations together
        problem, self.block_mask = row.problem, None
        if problem.mask is not None:
            self.block_mask = create_block_mask(lambda b, h, q, k: problem.mask(b, h, q, k, tensors),
                                                problem.batch if problem.tensors else None, None, problem.seq,
                                                problem.seq, device=hostile_data.DEVICE)
        self.score, self.compiled = problem.score, torch.compile(flex_attention, dynamic=False)

    def entry(self, inputs, options):
        state = {}

        def launch():
            with torch.no_grad():
                state["o"] = self.compiled(inputs.q, inputs.k, inputs.v, score_mod=self.score,
                                           block_mask=self.block_mask, kernel_options=options)

        return contestants.Entry(launch, lambda: state["o"])


def fallback_launches(runtime):
    return runtime.status()["counters"]["fallback_launches"]


def attune(row, inputs, runtime, extra=""):
    problem = row.problem
    shape = attune_c.Shape(problem.batch, problem.heads, problem.heads, problem.seq, problem.seq)
    kernel = runtime.kernel_from_yaml(row.yaml + extra, shape)
    walks_back = row.kind == "sm80"

    def made(values):
        return contestants.launched(kernel, dataclasses.replace(inputs, v=values), {"plan": kernel.plan},
                                    walks_back=walks_back)

    entry = made(inputs.v)
    if walks_back:
        before = fallback_launches(runtime)
        entry.launch()
        if fallback_launches(runtime) == before:
            raise RuntimeError(f"`{kernel.plan}` took strides that were to bring the sm80 family")
        entry.notes = {"plan": "the sm80 family's first guess"}
    if not problem.dropout:
        return entry

    def attend(values):
        other = made(values)
        other.launch()
        return other.output()

    return Dropping(entry.launch, entry.output, entry.notes, attend=attend, kept_share=backward.Attune.kept_share)


def sdpa(backend, row, inputs):
    if not row.problem.dropout:
        return contestants.sdpa(backend, row.problem, inputs)

    def attend(values):
        torch.manual_seed(backward.DROPOUT_SEED)
        other = contestants.sdpa(backend, row.problem, dataclasses.replace(inputs, v=values))
        other.launch()
        return other.output()

    state = {}

    def launch():
        state["o"] = attend(inputs.v)

    return Dropping(launch, lambda: state["o"], attend=attend, kept_share=backward.Autograd.kept_share)


def could(row):
    """The peers that can say the row's problem."""
    if row.kind == "sm80":
        return ("FA2",)
    if row.kind == "dense":
        return "FA3", "FA4", "cuDNN"
    if row.problem.dropout:
        return ("cuDNN",)
    return ("Flex", "FLASH") if row.flash is None else ("FA3", "FA4", "Flex", "FLASH")


class Contestants:
    def __init__(self, runtimes, peers, strict=False):
        self.runtimes, self.strict = runtimes, strict
        self.peers = [name for name in peers if name not in MODULES or contestants.can_import(MODULES[name])]
        self.config, self.tensors, self.flex = None, {}, None
        self.unable = set()  # (configuration, peer): asked once

    def enter(self, row, generator):
        """Comes before all else of a row."""
        if row.config == self.config:
            return
        self.config, self.flex = row.config, None
        self.tensors = {name: contestants.make_tensor(name, row.problem, generator) for name in row.problem.tensors}

    def makers(self, row, inputs):
        """name -> () -> entry."""
        found = {}
        for name, runtime in self.runtimes.items():
            found[name] = lambda runtime=runtime: attune(row, inputs, runtime)
            if self.strict:
                found[f"{name} strict"] = lambda runtime=runtime: attune(row, inputs, runtime, "accuracy: strict\n")
        for name in could(row):
            if name in self.peers and (row.config, name) not in self.unable:
                found[name] = lambda name=name: self.peer(name, row, inputs)
        return found

    def peer(self, name, row, inputs):
        if name in ("Flex", "FLASH"):
            self.flex = self.flex or Flex(row, self.tensors)
            return self.flex.entry(inputs, {"BACKEND": "FLASH"} if name == "FLASH" else {})
        if name in ("FA3", "FA4"):
            function = contestants.fa3 if name == "FA3" else contestants.fa4
            return function(row.problem, inputs, **row.flash)
        backends = {"cuDNN": contestants.SDPBackend.CUDNN_ATTENTION, "FA2": contestants.SDPBackend.FLASH_ATTENTION}
        return sdpa(backends[name], row, inputs)
