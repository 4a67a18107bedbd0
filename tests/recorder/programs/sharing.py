"""CUDA tensors through torch.multiprocessing (PyTorch's notes "Multiprocessing best practices")."""

import sys

import torch
import torch.multiprocessing as mp


def consume(queue, answers) -> None:
    """Change each tensor in place, as a learner does with batches of an actor."""
    while (item := queue.get()) is not None:
        item.add_(1)
        torch.cuda.synchronize()
        answers.put(float(item.float().sum()))
        del item


if __name__ == "__main__":
    method = sys.argv[1] if len(sys.argv) > 1 else "spawn"
    context = mp.get_context(method)
    queue, answers = context.Queue(), context.Queue()
    child = context.Process(target=consume, args=(queue, answers))
    child.start()
    kept = []
    for elements, kind in (
        (16, torch.float32),
        (1 << 10, torch.int64),
        (1 << 20, torch.bfloat16),
        (1 << 24, torch.float32),
    ):
        for start in (0, 3):
            tensor = torch.zeros(elements + start, device="cuda", dtype=kind)[start:]
            queue.put(tensor)
            answers.get(timeout=60)
            kept.append(tensor)
    queue.put(None)
    child.join()
