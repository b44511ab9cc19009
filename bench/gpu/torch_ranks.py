# SPDX-FileCopyrightText: 2026 The Perseid Authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch ranks of torchrun, one for each GPU of a host, for the benchmarks of peers."""
import os
import time

import torch
import torch.distributed as dist


class Ranks:
    """This process's rank in a group of NCCL."""

    def __init__(self):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.device = torch.device("cuda", self.rank)
        torch.cuda.set_device(self.device)
        dist.init_process_group("nccl", device_id=self.device)

    def seconds(self, body, times):
        """Seconds of one of `times` calls back to back, on the slowest rank, after a rest of 3 ms."""
        torch.cuda.synchronize()
        time.sleep(3e-3)
        dist.barrier()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            body()
        torch.cuda.synchronize()
        slowest = torch.tensor([(time.perf_counter() - start) / times], device=self.device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.item()
