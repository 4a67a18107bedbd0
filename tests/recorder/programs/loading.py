"""A DataLoader with workers and pinned memory, copies that overlap, a host function, and a timed stream."""

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    data = TensorDataset(torch.randn(4096, 1024))
    loader = DataLoader(data, batch_size=256, num_workers=2, pin_memory=True, persistent_workers=True)
    stream, model = torch.cuda.Stream(), torch.nn.Linear(1024, 1024, device="cuda")
    for _ in range(2):
        for (batch,) in loader:
            with torch.cuda.stream(stream):
                there = batch.to("cuda", non_blocking=True)
            torch.cuda.current_stream().wait_stream(stream)
            there.record_stream(torch.cuda.current_stream())
            model(there).sum().backward()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    back = model.weight.detach().to("cpu", non_blocking=True)
    end.record()
    end.synchronize()
    start.elapsed_time(end)
    torch.cuda.empty_cache()
